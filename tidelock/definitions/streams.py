"""Streams: named kinds of events, with what is declared about them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tidelock.canonical import canonical_hash
from tidelock.columns import (
    ALLOWED,
    COLUMN_NAME,
    ENVELOPE,
    KEY_ENVELOPE,
    ColumnType,
    data_path,
    is_column_name,
    is_identifier,
    parse_column_type,
    table_column,
)
from tidelock.definitions.eventtimes import EventTime, read_event_time
from tidelock.sections import Section

#: the keys of `[streams.NAME]`, for the check of unknown ones and for the reference page
STREAM_KEYS = {
    "key": "Key column or list of key columns. The stream then keeps the latest row per key, in a table of its name.",
    "columns": f"Names and types of the members of `data`: {ALLOWED}.",
    "eventtime": "`{ column, type }` of the event's own time; `ordered` adds `late_tolerance` and `idle_timeout`.",
    "ordered": "Keep the rows in event-time order, in a table `NAME_ordered`. Default `false`.",
    "calculated": "Columns computed from others by Spark SQL expressions, in a stream with a key.",
    "live": "Record the table's changes, for subscriptions and triggers. Default `true`.",
}
#: what every table has besides its columns
TABLE_COLUMNS = frozenset({"tenant_id", "source_timestamp"})
_ORDERED_COLUMNS = frozenset({"ingress_sequence", "position", "event_time"})


@dataclass(frozen=True, slots=True)
class Stream:
    """A named kind of event. An undeclared one has only a name."""

    name: str
    #: columns whose values make the row key; none: no table of latest rows
    key: tuple[str, ...] = ()
    #: declared members of `data`; none: envelope columns and paths only
    columns: Mapping[str, ColumnType] = field(default_factory=dict)
    eventtime: EventTime | None = None
    #: whether the rows in event-time order are a table
    ordered: bool = False
    #: name -> Spark SQL expression
    calculated: Mapping[str, str] = field(default_factory=dict)
    #: whether the changes of its tables are recorded
    live: bool = True

    def __hash__(self) -> int:
        # Compiled readers are cached by stream, on the path of every event: the name suffices.
        return hash(self.name)

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables the fold keeps for this stream."""
        return (self.name,) * bool(self.key) + (f"{self.name}_ordered",) * self.ordered

    def has(self, column: str) -> bool:
        """Whether events have this column: declared, of the envelope, or a path if nothing is declared."""
        return column in self.columns or column in ENVELOPE or (not self.columns and data_path(column) is not None)

    def type_of(self, column: str) -> ColumnType | None:
        """The type of a column; a declared column hides the envelope's. None: a path, which has none."""
        return self.columns.get(column) or ENVELOPE.get(column)

    def available(self, *, calculated: bool = False) -> str:
        """The available columns, for an error message."""
        more = self.calculated if calculated else ()
        names = ", ".join(dict.fromkeys([*self.columns, *more, *ENVELOPE]))
        return names if self.columns else f"{names}, or a path such as data.a.b"

    def canonical(self) -> dict[str, object]:
        """Plain JSON, in the form of its table in tidelock.toml, complete and canonical."""
        form: dict[str, object] = {
            "key": list(self.key),
            "columns": {name: str(column) for name, column in self.columns.items()},
            "ordered": self.ordered,
            "calculated": dict(self.calculated),
            "live": self.live,
        }
        return form if self.eventtime is None else form | {"eventtime": self.eventtime.canonical()}

    def hash(self) -> str:
        return canonical_hash({"stream": self.name, "definition": self.canonical()})


def read_stream(name: str, section: Section, eventtime_types: Collection[str] | None) -> Stream:
    """The stream declared by a table. Types of None: any name is accepted; plugins may add it."""
    section.only(STREAM_KEYS)
    columns = _read_columns(section.table("columns"))
    ordered = section.flag("ordered", False)
    stream = Stream(
        name=name,
        key=_read_key(name, section, columns),
        columns=columns,
        eventtime=_read_eventtime(name, section, columns, ordered, eventtime_types),
        ordered=ordered,
        calculated=_read_calculated(section, columns),
        live=section.flag("live", True),
    )
    _check_table(stream, section)
    return stream


def _read_columns(section: Section) -> dict[str, ColumnType]:
    columns = {}
    for name in section.values:
        if not is_column_name(name):
            raise section.fail(name, f"a column's name must have the form {COLUMN_NAME}")
        column = section.parsed(name, parse_column_type, f"one of: {ALLOWED}")
        if column is None:
            raise section.refuse(name, f"one of: {ALLOWED}")
        columns[name] = column
    return columns


def _read_key(stream: str, section: Section, columns: Mapping[str, ColumnType]) -> tuple[str, ...]:
    key = section.names("key")
    for column in key:
        if column in columns:
            if columns[column].name in ("json", "double"):
                raise section.fail(
                    "key",
                    f'column "{column}" is {columns[column]}; a key column needs a type whose equal values are always '
                    "written the same, such as string, bigint or decimal",
                )
        elif columns or (column not in KEY_ENVELOPE and not is_path_column(column)):
            available = ", ".join(columns) or f"{', '.join(KEY_ENVELOPE)}, or a path such as data.a.b"
            raise section.fail("key", f'stream "{stream}" has no column "{column}" for a key; available: {available}')
    return key


def is_path_column(column: str) -> bool:
    """Whether it is a path whose name can become a column name."""
    return data_path(column) is not None and is_identifier(table_column(column))


def _read_eventtime(
    name: str, section: Section, columns: Mapping[str, ColumnType], ordered: bool, types: Collection[str] | None
) -> EventTime | None:
    if "eventtime" not in section.values:
        return None
    table = section.table("eventtime")
    eventtime = read_event_time(name, table, columns, types)
    waits = set(table.values) - {"column", "type"}
    if waits and not ordered:
        raise table.fail(min(waits), "needs ordered = true; for a window, set it in the window's eventtime")
    return eventtime


def _read_calculated(section: Section, columns: Mapping[str, ColumnType]) -> dict[str, str]:
    table = section.table("calculated")
    if table.values and not section.names("key"):
        raise section.fail("calculated", "needs a stream with a key; declare `key`")
    calculated = {}
    for name in table.values:
        if not is_column_name(name) or name in columns:
            raise table.fail(name, f"the name must have the form {COLUMN_NAME} and must not be used by another column")
        expression = table.text(name)
        calculated[name] = "" if expression is None else expression.strip()
    return calculated


def _check_table(stream: Stream, section: Section) -> None:
    if stream.ordered and stream.eventtime is None:
        raise section.fail("ordered", 'needs eventtime; { column = "occurred_at" } works on every stream')
    reserved = TABLE_COLUMNS | _ORDERED_COLUMNS if stream.ordered else TABLE_COLUMNS
    names = (*stream.columns, *stream.calculated, *map(table_column, stream.key))
    for name in names if stream.tables else ():
        if name in reserved:
            own = ", ".join(sorted(reserved))
            raise section.fail("columns", f'"{name}" is reserved: a table of this stream has {own} of its own')
