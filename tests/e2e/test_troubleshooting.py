"""The page on troubleshooting says what the product says: its messages, codes and settings are those of the code."""

import ast
import re
from pathlib import Path

import pytest

from tidelock.graphql import websocket
from tidelock.http import clients
from tidelock.triggers.attempts import OUTCOMES

pytestmark = pytest.mark.check

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def constants() -> list[str]:
    """Every text in the product's code; a text with values in it is in pieces, as the page has it."""
    nodes = (node for path in (ROOT / "tidelock").rglob("*.py") for node in ast.walk(ast.parse(path.read_text())))
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def test_every_message_of_the_page_is_one_of_the_product() -> None:
    cells = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("|")]
    messages = [text for cell in cells for text in re.findall(r"`([^`]*[a-z] [^`]*)`", cell)]
    assert len(messages) > 40
    said = "\n".join(constants())
    pieces = {piece.strip() for message in messages for piece in message.split("...")} - {""}
    assert not {piece for piece in pieces if piece not in said}


def test_every_code_of_a_rejected_event_is_explained() -> None:
    sources = [*(ROOT / "tidelock" / "ingest").glob("*.py"), *(ROOT / "tidelock" / "ledger").glob("co*.py")]
    refusal = re.compile(r'(?:_Refused|Problem|_rejected)\(\s*"([a-z_]+)"')
    given = {code for path in sources for code in refusal.findall(path.read_text())}
    assert len(given) > 5
    explained = set(re.findall(r"^\| `([a-z_]+)` \|", section("Events are rejected"), re.MULTILINE))
    assert explained == given


def test_every_close_code_is_explained() -> None:
    codes = {value for module in (clients, websocket) for name, value in vars(module).items() if name[:6] == "CLOSE_"}
    assert len(codes) > 8
    assert codes <= set(map(int, re.findall(r"^\| (\d{4}) \|", section("A subscription ends"), re.MULTILINE)))


def test_every_failure_of_a_webhook_is_explained() -> None:
    explained = set(re.findall(r"`([a-z]+)`", section("Webhooks do not arrive")))
    assert set(OUTCOMES) - {"delivered"} <= explained


def test_every_name_of_the_page_is_one_of_the_product() -> None:
    """Settings, codes, fields: one that is renamed or misspelt is nowhere in the code."""
    written = "\n".join(path.read_text() for path in (ROOT / "tidelock").rglob("*.py"))
    names = set(re.findall(r"`(?:[a-z]+\.)?([a-z]+(?:_[a-z]+)+)`", PAGE))
    assert len(names) > 40
    assert not {name for name in names if not re.search(rf"\b{name}\b", written)}
