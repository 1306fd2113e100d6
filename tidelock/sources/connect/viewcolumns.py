"""View columns: how columns of a Materialize view map to those of a stream, and their text to JSON."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from tidelock.columns import ColumnType, is_column_name
from tidelock.definitions import Stream
from tidelock.errors import SettingsError
from tidelock.model import Op
from tidelock.sources.connect.connector import RowChange

#: text of a value as Materialize writes it -> its JSON
_Writer = Callable[[str], bytes]

_SPELLINGS = {
    "bool": "boolean", "float4": "real", "float8": "double precision", "int2": "smallint", "int4": "integer",
    "int": "integer", "int8": "bigint", "decimal": "numeric", "varchar": "character varying", "string": "text",
    "timestamptz": "timestamp with time zone", "timestamp": "timestamp without time zone", "json": "jsonb",
    "bpchar": "character", "char": "character",
}  # fmt: skip
_SMALL = frozenset({"smallint", "integer", "uint2"})
_WHOLE = _SMALL | {"bigint", "uint4"}
_FLOATS = frozenset({"real", "double precision"})
#: what a column of a stream takes; a string takes whatever has a text
_TAKEN: Mapping[str, frozenset[str]] = {
    "int": _SMALL,
    "bigint": _WHOLE,
    "double": _FLOATS | _SMALL,
    "decimal": _WHOLE | {"uint8", "numeric"},
    "boolean": frozenset({"boolean"}),
    "timestamp": frozenset({"timestamp with time zone", "timestamp without time zone"}),
    "date": frozenset({"date"}),
    "json": frozenset({"jsonb"}),
}
#: what to declare a column as
_FITTING = {
    **dict.fromkeys(_SMALL, "int"), "bigint": "bigint", "uint4": "bigint", "uint8": "decimal(20,0)",
    **dict.fromkeys(_FLOATS, "double"), "numeric": "decimal(38,9)", "boolean": "boolean", "date": "date",
    "timestamp with time zone": "timestamp", "timestamp without time zone": "timestamp", "jsonb": "json",
}  # fmt: skip
_MODIFIER = re.compile(r"\([0-9, ]*\)")
_INTEGER = re.compile(r"-?[0-9]+")
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_TIMESTAMP = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}) ([0-9:]{8}(?:\.[0-9]+)?)(?:([+-][0-9]{2})(?::?([0-9]{2}))?)?")
_encode = msgspec.json.Encoder().encode


def known_type(name: str) -> str:
    """A type's name in one spelling, without its length or precision."""
    plain = " ".join(_MODIFIER.sub("", name).lower().split())
    return _SPELLINGS.get(plain, plain)


@dataclass(frozen=True, slots=True)
class ViewColumns:
    """The columns that are asked for: those of the key first, the others by name."""

    names: tuple[str, ...]
    key: tuple[str, ...]
    writers: tuple[_Writer, ...]

    def change(self, op: Op, values: Sequence[str | None]) -> RowChange:
        """The change that a row's texts tell. The same row has the same text every time: snapshots compare them."""
        count = len(self.key) if op == "delete" else len(self.names)
        members = [
            b'"%s":%s' % (name.encode(), b"null" if value is None else write(value))
            for name, value, write in zip(self.names[:count], values, self.writers, strict=False)
        ]
        return RowChange(op, b"{%s}" % b",".join(members))


def view_columns(stream: Stream, view: str, found: Mapping[str, str]) -> ViewColumns:
    """What is asked for, of the columns that were found with their types. Raises SettingsError."""
    wrong: list[str] = []
    for name, declared in stream.columns.items():
        if name not in found:
            near = difflib.get_close_matches(name, found, n=1)
            hint = f'; did you mean "{near[0]}"?' if near else f"; it has {', '.join(found)}"
            wrong.append(f'the view has no column "{name}"{hint}')
        elif not _takes(declared, known_type(found[name])):
            fitting = _FITTING.get(known_type(found[name]), "string")
            wrong.append(
                f'column "{name}" is {found[name]} in the view and {declared} in the stream; declare it as {fitting}, '
                "or cast it in the view"
            )
    if wrong:
        raise SettingsError(f'stream "{stream.name}" does not match view {view}: {"; ".join(wrong)}', field="columns")
    names = (*stream.key, *sorted(set(stream.columns) - set(stream.key)))
    return ViewColumns(names, stream.key, tuple(_writer(stream.columns[name]) for name in names))


def declaration(stream: str, found: Mapping[str, str], key: Sequence[str]) -> str:
    """The lines of tidelock.toml that would declare a stream for these columns."""
    columns = ", ".join(
        f'{name} = "{_FITTING.get(known_type(found[name]), "string")}"' for name in found if is_column_name(name)
    )
    keys = list(key) or [next(iter(found), "id")]
    told = f'"{keys[0]}"' if len(keys) == 1 else "[" + ", ".join(f'"{name}"' for name in keys) + "]"
    return f"[streams.{stream}]\nkey = {told}\ncolumns = {{ {columns} }}"


def _takes(declared: ColumnType, found: str) -> bool:
    return declared.name == "string" or found in _TAKEN[declared.name]


def _writer(column: ColumnType) -> _Writer:
    match column.name:
        case "int" | "bigint":
            return lambda text: text.encode() if _INTEGER.fullmatch(text) else _encode(text)
        case "double":
            return lambda text: text.encode() if _JSON_NUMBER.fullmatch(text) else _encode(text)
        case "boolean":
            return lambda text: {"t": b"true", "f": b"false"}.get(text) or _encode(text)
        case "timestamp":
            return _timestamp
        case "json":
            return _json
    # A decimal too: many readers would round a JSON number.
    return _encode


def _timestamp(text: str) -> bytes:
    """RFC 3339. Without a zone it is UTC."""
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        return _encode(text)
    date, time, hours, minutes = found.groups()
    zone = "Z" if hours in (None, "+00", "-00") and minutes in (None, "00") else f"{hours}:{minutes or '00'}"
    return _encode(f"{date}T{time}{zone}")


def _json(text: str) -> bytes:
    raw = text.encode()
    try:
        msgspec.json.decode(raw, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return _encode(text)
    return raw
