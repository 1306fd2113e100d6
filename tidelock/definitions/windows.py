"""Windows: aggregates over stretches of time or numbers of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidelock.canonical import canonical_hash
from tidelock.columns import COLUMN_NAME, is_column_name, is_identifier, table_column
from tidelock.definitions.aggregates import ALLOWED, Aggregate, parse_aggregate
from tidelock.definitions.eventtimes import WindowTime, read_window_time
from tidelock.definitions.frames import Frame, read_frame
from tidelock.definitions.meters import check_group
from tidelock.definitions.streams import TABLE_COLUMNS, Stream
from tidelock.sections import Section, shown

#: the keys of `[windows.NAME]`
WINDOW_KEYS = {
    "stream": "The stream it reads.",
    "window": '`{ tumbling = "10s" }`, `{ hopping = ["10s", "5s"] }` (size, step), `{ session = "30s" }` (gap) or '
    "`{ count = 100 }` (rows).",
    "eventtime": '`{ enabled = false, late_tolerance = "0s", idle_timeout }`: by the events\' own time instead of '
    "the time they arrived.",
    "group_by": "Columns; each combination of their values has windows of its own.",
    "select": f"Columns of the window's table: {ALLOWED}.",
    "live": "Record the table's changes, for subscriptions and triggers. Default `true`.",
}
_OWN_COLUMNS = TABLE_COLUMNS | {"window_start", "window_end", "window_ordinal"}


@dataclass(frozen=True, slots=True)
class Window:
    """One row per closed window and group, as a table of its name."""

    name: str
    stream: str
    frame: Frame
    eventtime: WindowTime
    group_by: tuple[str, ...]
    select: Mapping[str, Aggregate]
    #: whether the table's changes are recorded
    live: bool = True

    @property
    def group_columns(self) -> tuple[str, ...]:
        """What the group columns are called in the table."""
        return tuple(map(table_column, self.group_by))

    def canonical(self) -> dict[str, object]:
        """Plain JSON, in the form of its table in tidelock.toml, with everything said and one way to say it."""
        return {
            "stream": self.stream,
            "window": self.frame.canonical(),
            "eventtime": self.eventtime.canonical(),
            "group_by": list(self.group_by),
            "select": {name: str(aggregate) for name, aggregate in self.select.items()},
            "live": self.live,
        }

    def hash(self) -> str:
        return canonical_hash({"window": self.name, "definition": self.canonical()})


def read_window(name: str, section: Section, stream_named: Callable[[str], Stream]) -> Window:
    """The window a table declares."""
    section.only(WINDOW_KEYS)
    stream_name = section.text("stream")
    if stream_name is None:
        raise section.fail("stream", "is missing: name the stream the window reads")
    stream = stream_named(stream_name)
    group_by = _read_group_by(section, stream)
    return Window(
        name=name,
        stream=stream.name,
        frame=read_frame(section),
        eventtime=read_window_time(stream.name, section.table("eventtime"), stream.columns, stream.eventtime),
        group_by=group_by,
        select=_read_select(section, stream, taken=set(map(table_column, group_by))),
        live=section.flag("live", True),
    )


def _read_group_by(section: Section, stream: Stream) -> tuple[str, ...]:
    columns = section.names("group_by")
    for column in columns:
        # Calculated ones hide the envelope's, as declared ones do. Their types are known when Spark has read them.
        if column not in stream.calculated:
            _check_column(section, "group_by", column, stream)
            check_group(section, column, stream)
        if not is_identifier(table_column(column)):
            raise section.fail("group_by", f"{shown(column)} cannot be the name of a column: [A-Za-z_][A-Za-z0-9_.]*")
        if table_column(column) in _OWN_COLUMNS:
            raise section.fail("group_by", f'"{column}" is taken; a window\'s table has such a column of its own')
    if len(set(map(table_column, columns))) < len(columns):
        raise section.refuse("group_by", "columns with different names; a path's dots become underscores")
    return columns


def _read_select(section: Section, stream: Stream, taken: set[str]) -> dict[str, Aggregate]:
    table = section.table("select")
    if not table.values:
        raise section.fail("select", f"is missing: give at least one column, {ALLOWED}")
    select = {}
    for name in table.values:
        if not is_column_name(name):
            raise table.fail(name, f"a column's name must have the form {COLUMN_NAME}")
        if name in taken or name in _OWN_COLUMNS:
            raise table.fail(name, "the name is taken by a column of group_by or one that every window has")
        select[name] = _read_aggregate(table, name, stream)
    return select


def _read_aggregate(table: Section, name: str, stream: Stream) -> Aggregate:
    aggregate = table.parsed(name, parse_aggregate, ALLOWED)
    if aggregate is None:
        raise table.refuse(name, ALLOWED)
    if aggregate.column is None or aggregate.column in stream.calculated:
        return aggregate
    _check_column(table, name, aggregate.column, stream)
    kind = stream.type_of(aggregate.column)
    if kind is not None and (why := aggregate.objection(kind)) is not None:
        raise table.fail(name, why)
    return aggregate


def _check_column(section: Section, key: str, column: str, stream: Stream) -> None:
    if not stream.has(column):
        available = stream.available(calculated=True)
        raise section.fail(key, f'stream "{stream.name}" has no column "{column}"; available: {available}')
