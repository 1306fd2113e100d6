"""Row keys: the text of an event's key columns, computed when it arrives.

One key column is its text, several are a compact JSON array of texts. A text is normal for its column's type, so that
`7`, `"7"` and `7.0` are one row of a bigint column. A value that does not fit its type keeps its text as sent: the fold
turns such an event into an error row, which must name the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import msgspec

from tidelock.columns import STRING, ColumnType, data_path
from tidelock.decimals import plain_decimal
from tidelock.definitions.streams import Stream
from tidelock.instants import format_instant, parse_rfc3339

#: JSON text of a value -> its text in a key
_Normal = Callable[[bytes], str]
#: envelope and data of an event -> its row key, or the text of one of its columns
_Reader = Callable[[Mapping[str, object], bytes | None], str]

_NO_DATA = b"{}"
_ABSENT = msgspec.Raw()
_NULLS = (b"", b"null")

_decode_text = msgspec.json.Decoder(str).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class MissingKeyColumn(Exception):
    """An event of a keyed stream has no value for a key column."""

    def __init__(self, stream: str, column: str) -> None:
        super().__init__(f'stream "{stream}" needs a value for its key column "{column}"')
        self.column = column


def row_key(stream: Stream, envelope: Mapping[str, object], data: bytes | None) -> str:
    """The row key of an event of a keyed stream; `data` is JSON text. Raises MissingKeyColumn."""
    return _reader(stream)(envelope, data)


@lru_cache(maxsize=1024)
def _reader(stream: Stream) -> _Reader:
    """The function that reads the key of one stream, built once: it runs for every event."""
    columns = [_column(stream, name) for name in stream.key]
    if len(columns) == 1:
        return columns[0]
    return lambda envelope, data: _encode([column(envelope, data) for column in columns]).decode()


def _column(stream: Stream, name: str) -> _Reader:
    """The function that reads one key column: a declared one or a path from data, any other from the envelope."""
    normal = _normal(stream.columns.get(name, STRING))
    path = (name,) if name in stream.columns else data_path(name)
    if path is None:
        return partial(_envelope_text, stream.name, name)
    decode, inner = _member_decoder(path[0]), path[1:]

    def text(_: Mapping[str, object], data: bytes | None) -> str:
        try:
            value = bytes(decode(data or _NO_DATA).member)
        except (msgspec.DecodeError, RecursionError):
            value = b""  # not an object, so it has no members
        for member in inner:
            value = _inner(value, member)
        if value in _NULLS:
            raise MissingKeyColumn(stream.name, name)
        return normal(value)

    return text


def _member_decoder(name: str) -> Callable[[bytes], Any]:
    """A decoder that finds one member of an object and skips the others, much faster than decoding everything."""
    fields = [("member", msgspec.Raw, _ABSENT)]
    return msgspec.json.Decoder(msgspec.defstruct("Member", fields, rename={"member": name}, gc=False)).decode


def _envelope_text(stream: str, name: str, envelope: Mapping[str, object], _: bytes | None) -> str:
    value = envelope.get(name)
    if value is None:
        raise MissingKeyColumn(stream, name)
    return str(value)


def _inner(value: bytes, name: str) -> bytes:
    try:
        return bytes(_decode_members(value or _NO_DATA).get(name, _ABSENT))
    except (msgspec.DecodeError, RecursionError):
        return b""


def _normal(column: ColumnType) -> _Normal:
    match column.name:
        case "int":
            return partial(_integer, 9, 2**31)
        case "bigint":
            return partial(_integer, 18, 2**63)
        case "decimal":
            return partial(_decimal, column.precision - column.scale, column.scale)
        case "timestamp":
            return _timestamp
        case _:
            return _text


def _text(value: bytes) -> str:
    """A JSON string's content; of anything else the JSON text."""
    if not value.startswith(b'"'):
        return value.decode()
    if b"\\" not in value:
        return value[1:-1].decode()
    try:
        return _decode_text(value)
    except msgspec.DecodeError:
        return value.decode()  # a lone surrogate: not valid text


def _integer(safe_digits: int, limit: int, value: bytes) -> str:
    # This few digits always fit, and most keys are like that.
    if value.isdigit() and len(value) <= safe_digits:
        return str(int(value))
    text = _text(value)
    plain = plain_decimal(text, safe_digits + 1, 0)
    return plain if plain is not None and -limit <= int(plain) < limit else text


def _decimal(whole_digits: int, decimals: int, value: bytes) -> str:
    text = _text(value)
    plain = plain_decimal(text, whole_digits, decimals)
    return text if plain is None else plain


def _timestamp(value: bytes) -> str:
    text = _text(value)
    try:
        return format_instant(parse_rfc3339(text))
    except ValueError:
        return text
