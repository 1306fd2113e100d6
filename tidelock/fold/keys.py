"""Keys: the texts of keys of several columns, for whole Arrow columns at a time; and where such keys lie.

Rows are indexed by tenant and key, so what is certain of a key's text, given the values of its first columns, spares
looking at other rows. It is never all that is asked: the columns themselves are compared too. Whoever wrote a key of
several columns may have escaped characters in one way or another, and of a very long one only the beginning is kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from hashlib import sha256
from itertools import takewhile
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.columns import ColumnType, decimal_form
from tidelock.instants import format_instant

_SPECIAL = r'["\\\x00-\x1f]'
_SECOND = 1_000_000_000
#: longest key that stays as it is. With a tenant's name, of a KiB at most, it fits into an index, which Postgres ends
#: at 2,704 bytes
BYTES_MAX = 1_024
#: what is kept of a longer one, before its digest
LETTERS_KEPT = 200
# These are escaped inside JSON, by one writer so and by another otherwise.
_ESCAPED = frozenset('"\\\x7f\u2028\u2029') | frozenset(map(chr, range(32)))
_SURROGATES = 0xD800


def joined(*members: pa.Array) -> pa.Array:
    """Compact JSON arrays of members that are JSON texts already; null becomes `null`."""
    texts = [pc.fill_null(member, "null") for member in members]
    return pc.binary_join_element_wise("[", pc.binary_join_element_wise(*texts, ","), "]", "")


def bounded(keys: pa.Array) -> pa.Array:
    """Keys that an index can hold: of a longer one the beginning, and the digest of all of it.

    A group is as long a text as producers like, and no event may stop the fold. What was cut does not end with a
    bracket, so it is nobody else's key.
    """
    long = pc.fill_null(pc.greater(pc.binary_length(keys), BYTES_MAX), False)
    if not pc.any(long).as_py():
        return keys
    cut = [f"{key[:LETTERS_KEPT]}...{sha256(key.encode()).hexdigest()}" for key in keys.filter(long).to_pylist()]
    return pc.replace_with_mask(keys, long, pa.array(cut, pa.string()))


def json_strings(texts: pa.Array) -> pa.Array:
    """Texts as JSON strings. Few need more than quotes, and those are left to Python."""
    quoted = pc.binary_join_element_wise('"', texts, '"', "")
    special = pc.fill_null(pc.match_substring_regex(texts, _SPECIAL), False)
    if not pc.any(special).as_py():
        return quoted
    escaped = [json.dumps(text, ensure_ascii=False) for text in texts.filter(special).to_pylist()]
    return pc.replace_with_mask(quoted, special, pa.array(escaped, pa.string()))


def period_strings(starts: pa.Array) -> pa.Array:
    """Starts of periods, which are whole seconds, as JSON strings. There are few: each is written once."""
    encoded = starts.dictionary_encode()
    moments = pc.divide(encoded.dictionary, _SECOND).cast(pa.timestamp("s"))
    return pc.strftime(moments, format='"%Y-%m-%dT%H:%M:%SZ"').take(encoded.indices)


def number_strings(numbers: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', numbers.cast(pa.string()), '"', "")


def instant_strings(instants: pa.Array) -> pa.Array:
    """Instants as texts of RFC 3339, each written once."""
    encoded = instants.dictionary_encode()
    texts = pa.array([format_instant(instant) for instant in encoded.dictionary.to_pylist()], pa.string())
    return texts.take(encoded.indices)


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
