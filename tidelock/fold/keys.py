"""Keys: the strings of multi-column keys, for whole Arrow columns at a time, and the ranges in which such keys lie.

Rows are indexed by tenant and key, so a known beginning of a key, given the values of its first columns, avoids reading
other rows. It is never the only condition: the columns themselves are compared too. A multi-column key may escape
characters in different ways, depending on its writer, and of a very long one only the beginning is kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from hashlib import sha256
from itertools import takewhile
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelock.columns import ColumnType, decimal_form
from tidelock.instants import format_instant

_SPACE, _QUOTE, _BACKSLASH = map(ord, ' "\\')
_SPECIAL = r'["\\\x00-\x1f]'
_SECOND = 1_000_000_000
#: longest key that is kept unchanged. With a tenant's name of at most a KiB it fits into an index entry, which Postgres
#: limits to 2,704 bytes
BYTES_MAX = 1_024
#: how much of a longer one is kept, before its digest
LETTERS_KEPT = 200
# Different writers escape these differently inside JSON.
_ESCAPED = frozenset('"\\\x7f\u2028\u2029') | frozenset(map(chr, range(32)))
_SURROGATES = 0xD800


def joined(*members: pa.Array) -> pa.Array:
    """Compact JSON arrays of members that are already JSON; null becomes `null`."""
    texts = [pc.fill_null(member, "null") for member in members]
    return pc.binary_join_element_wise("[", pc.binary_join_element_wise(*texts, ","), "]", "")


def bounded(keys: pa.Array) -> pa.Array:
    """Keys that an index can hold: of a longer one, the beginning and the digest of all of it.

    A group may be as long as producers like, and no event may stop the fold. A truncated key does not end with a
    bracket, so it cannot equal another key.
    """
    long = pc.fill_null(pc.greater(pc.binary_length(keys), BYTES_MAX), False)
    if not pc.any(long).as_py():
        return keys
    cut = [f"{key[:LETTERS_KEPT]}...{sha256(key.encode()).hexdigest()}" for key in keys.filter(long).to_pylist()]
    return pc.replace_with_mask(keys, long, pa.array(cut, pa.string()))


def json_strings(texts: pa.Array) -> pa.Array:
    """Strings as JSON. Few need more than quotes, and those are left to Python."""
    quoted = pc.binary_join_element_wise('"', texts, '"', "")
    if _plain(texts):
        return quoted
    special = pc.fill_null(pc.match_substring_regex(texts, _SPECIAL), False)
    if not pc.any(special).as_py():
        return quoted
    escaped = [json.dumps(text, ensure_ascii=False) for text in texts.filter(special).to_pylist()]
    return pc.replace_with_mask(quoted, special, pa.array(escaped, pa.string()))


def _plain(texts: pa.Array) -> bool:
    """Whether no string has a byte that JSON escapes; all of them are looked through at once, and perhaps others."""
    if not pa.types.is_string(texts.type) or texts.buffers()[2] is None:
        return False
    data = np.frombuffer(texts.buffers()[2], np.uint8)
    return bool(data.min(initial=_SPACE) >= _SPACE and not ((data == _QUOTE) | (data == _BACKSLASH)).any())


def period_strings(starts: pa.Array) -> pa.Array:
    """Starts of periods, which are whole seconds, as JSON strings. There are few, and each is formatted once."""
    encoded = starts.dictionary_encode()
    moments = pc.divide(encoded.dictionary, _SECOND).cast(pa.timestamp("s"))
    return pc.strftime(moments, format='"%Y-%m-%dT%H:%M:%SZ"').take(encoded.indices)


def number_strings(numbers: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', numbers.cast(pa.string()), '"', "")


def instant_strings(instants: pa.Array) -> pa.Array:
    """Instants in RFC 3339, each formatted once."""
    encoded = instants.dictionary_encode()
    texts = pa.array([format_instant(instant) for instant in encoded.dictionary.to_pylist()], pa.string())
    return texts.take(encoded.indices)


class KeyRange(NamedTuple):
    """A range of keys."""

    start: str
    #: the exclusive end; None: there is one key, which is the start
    end: str | None


def key_range(texts: Sequence[str], columns: int) -> KeyRange | None:
    """The range of keys of this many columns that begin with these strings, at least one; None: anywhere."""
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
    """The string of a key column's value in the key; None if it is not certain."""
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
    """The common beginning of all compact JSON arrays that begin with these strings, and whether it is the
    whole key.
    """
    start = "["
    for number, text in enumerate(texts, start=1):
        certain = "".join(takewhile(_unescaped, text))
        if len(certain) < len(text):
            return f'{start}"{certain}', False
        start += f'"{text}"' + ("," if number < columns else "]")
    return start, len(texts) == columns


def _unescaped(character: str) -> bool:
    return character not in _ESCAPED and ord(character) < _SURROGATES - 1
