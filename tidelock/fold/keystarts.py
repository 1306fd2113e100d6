"""Key starts: what is certain of a key's text, given the values of its first columns.

Rows are indexed by tenant and key, so that knowing where keys lie spares looking at other rows. It is never all that is
asked: the columns themselves are compared too. Whoever wrote a key of several columns may have escaped characters in
one way or another, and of a very long one only the beginning is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from itertools import takewhile
from typing import NamedTuple

from tidelock.columns import ColumnType, decimal_form
from tidelock.fold.keys import BYTES_MAX, LETTERS_KEPT
from tidelock.instants import format_instant

# These are escaped inside JSON, by one writer so and by another otherwise.
_ESCAPED = frozenset('"\\\x7f\u2028\u2029') | frozenset(map(chr, range(32)))
_SURROGATES = 0xD800


class KeyRange(NamedTuple):
    """Where keys lie."""

    start: str
    #: before which they lie; None: there is one, which is the start
    end: str | None


def key_range(texts: Sequence[str], columns: int) -> KeyRange | None:
    """Where the keys of so many columns lie that begin with these texts, at least one; None: anywhere."""
    if not texts:
        return None
    if columns == 1:
        return KeyRange(texts[0], None)
    start, whole = _start(texts, columns)
    if whole and len(start.encode()) <= BYTES_MAX:
        return KeyRange(start, None)
    start = start[:LETTERS_KEPT]
    return KeyRange(start, start[:-1] + chr(ord(start[-1]) + 1))


def key_text(type_: ColumnType, value: object) -> str | None:
    """The text that a value of a key's column has in the key; None where that is not certain."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return format_instant(value) if type_.name == "timestamp" else str(value)
        case Decimal():
            return decimal_form(value)
        case date():
            return value.isoformat()
        case str():
            return value
        case _:
            return None


def _start(texts: Sequence[str], columns: int) -> tuple[str, bool]:
    """How every compact JSON array that begins with these texts begins, whoever wrote it, and whether that is all."""
    start = "["
    for number, text in enumerate(texts, start=1):
        certain = "".join(takewhile(_unescaped, text))
        if len(certain) < len(text):
            return f'{start}"{certain}', False
        start += f'"{text}"' + ("," if number < columns else "]")
    return start, len(texts) == columns


def _unescaped(character: str) -> bool:
    return character not in _ESCAPED and ord(character) < _SURROGATES - 1
