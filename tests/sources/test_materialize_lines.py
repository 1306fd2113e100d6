"""COPY's text format: whatever a field holds comes back, however the blocks are cut."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.sources.connect.materialize import Lines, fields

pytestmark = pytest.mark.check

_ESCAPED = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\b": "\\b", "\f": "\\f", "\v": "\\v"}
# Many of what is escaped, and texts that look like escapes.
_texts = st.text(st.sampled_from('\\\t\n\r\b\f\vNntx01a"é€😀 .') | st.characters(exclude_categories=["Cs"]))
_rows = st.lists(st.lists(st.none() | _texts, min_size=1, max_size=5), max_size=8)


def _written(value: str | None, chance: random.Random) -> bytes:
    """As a server may write it: control characters by letter, octal or hexadecimal."""
    if value is None:
        return b"\\N"
    written = b""
    for character in value:
        if character in _ESCAPED and character != "\\" and chance.random() < 0.3:
            # Three digits, or the next character could be taken for one.
            written += chance.choice(["\\%03o", "\\x%02x"]).encode() % ord(character)
        else:
            written += _ESCAPED.get(character, character).encode()
    return written


@given(_rows, st.randoms(use_true_random=False))
def test_rows_come_back_as_they_were_however_blocks_are_cut(
    rows: list[list[str | None]], chance: random.Random
) -> None:
    text = b"".join(b"\t".join(_written(value, chance) for value in row) + b"\n" for row in rows)
    lines, found = Lines(), []
    while text:
        size = chance.randint(1, len(text))
        found += [fields(line) for line in lines.feed(text[:size])]
        text = text[size:]
    assert found == rows


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (rb"\N", [None]),
        (rb"\\N", ["\\N"]),
        (b"", [""]),
        (b"\t", ["", ""]),
        (rb"a\101\x41\q\.", ["aAAq."]),
        (rb"\xZ", ["xZ"]),
        (rb"\0", ["\0"]),
        ("é\\t\t€".encode(), ["é\t", "€"]),
    ],
)
def test_every_escape_means_what_the_format_says(line: bytes, expected: list[str | None]) -> None:
    assert fields(line) == expected
