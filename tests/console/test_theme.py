"""What is written on a surface can be read, in the light and in the dark."""

import re
from pathlib import Path

import pytest

import tidelock.console

THEME = (Path(tidelock.console.__file__).parent / "assets" / "theme.css").read_text()
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in re.findall(r"^:root.*?^}", THEME, re.S | re.M)
)
#: as WCAG asks of small text
CONTRAST_MIN = 4.5


@pytest.mark.parametrize("tokens", [LIGHT, LIGHT | DARK], ids=["light", "dark"])
@pytest.mark.parametrize("text", ["text", "muted", "faint", "accent", "good", "warn", "bad"])
def test_text_stands_out_from_its_surface(tokens: dict[str, str], text: str) -> None:
    on = ["surface", "bg", *([f"{text}-soft"] if f"{text}-soft" in tokens else [])]
    assert min(_contrast(tokens[text], tokens[surface]) for surface in on) >= CONTRAST_MIN


def _contrast(one: str, other: str) -> float:
    dark, bright = sorted(map(_luminance, (one, other)))
    return (bright + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
