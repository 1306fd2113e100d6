"""Windows: aggregates over intervals of time or numbers of rows; which rows belong to one, and what it may select."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidelock.canonical import canonical_hash
from tidelock.columns import COLUMN_NAME, ColumnType, is_column_name, is_identifier, table_column
from tidelock.definitions.eventtimes import WindowTime, read_window_time
from tidelock.definitions.meters import check_group
from tidelock.definitions.streams import TABLE_COLUMNS, Stream
from tidelock.durations import format_duration, parse_duration
from tidelock.sections import Section, shown

#: by name, the rank among a hundred values
PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}
#: what a window may select
FUNCTIONS = ("count", "sum", "min", "max", "avg", "first", "last", "unique_count", *PERCENTILES)
ALLOWED = f"count(*) or one of {' '.join(FUNCTIONS)} over a column, such as sum(quantity)"
#: the keys of `[windows.NAME]`
WINDOW_KEYS = {
    "stream": "The stream to read.",
    "window": '`{ tumbling = "10s" }`, `{ hopping = ["10s", "5s"] }` (size, step), `{ session = "30s" }` (gap) or '
    "`{ count = 100 }` (rows).",
    "eventtime": '`{ enabled = false, late_tolerance = "0s", idle_timeout }`: by the events\' own time instead of '
    "the time they arrived.",
    "group_by": "Columns; each combination of their values has its own windows.",
    "select": f"Columns of the window's table: {ALLOWED}.",
    "live": "Record the table's changes, for subscriptions and triggers. Default `true`.",
}
_OWN_COLUMNS = TABLE_COLUMNS | {"window_start", "window_end", "window_ordinal"}

#: every row belongs to size / step hopping windows; beyond this it is a mistake
HOPS_MAX = 10_000

_FRAMES_ALLOWED = 'one of { tumbling = "10s" }, { hopping = ["10s", "5s"] }, { session = "30s" }, { count = 100 }'
_COUNT_MAX = 2**31 - 1

#: decimal places of sums and averages, and so of decimals that can be summed without loss
AMOUNT_DECIMALS = 9

_CALL = re.compile(r"\s*([A-Za-z_0-9]+)\s*\(\s*(\S+)\s*\)\s*")


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
        """The names of the group columns in the table."""
        return tuple(map(table_column, self.group_by))

    def canonical(self) -> dict[str, object]:
        """Plain JSON, in the form of its table in tidelock.toml, complete and canonical."""
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
    """The window declared by a table."""
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
        # Calculated columns hide the envelope's, as declared ones do. Their types are known once Spark has parsed them.
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
            raise table.fail(name, "the name is already used by group_by or by a column that every window has")
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


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Equal intervals, one after the other, aligned to the epoch."""

    size_ns: int

    def canonical(self) -> dict[str, object]:
        return {"tumbling": format_duration(self.size_ns)}


@dataclass(frozen=True, slots=True)
class Hopping:
    """Equal intervals, a new one every step, aligned to the epoch."""

    size_ns: int
    step_ns: int

    def canonical(self) -> dict[str, object]:
        return {"hopping": [format_duration(self.size_ns), format_duration(self.step_ns)]}


@dataclass(frozen=True, slots=True)
class Session:
    """Rows less than the gap apart."""

    gap_ns: int

    def canonical(self) -> dict[str, object]:
        return {"session": format_duration(self.gap_ns)}


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows, in the order of their release."""

    rows: int

    def canonical(self) -> dict[str, object]:
        return {"count": self.rows}


Frame = Tumbling | Hopping | Session | Count


def read_frame(section: Section) -> Frame:
    """The frame that `window = {...}` declares: exactly one of the four."""
    value = section.values.get("window")
    if value is None:
        raise section.fail("window", f"is missing: it must be {_FRAMES_ALLOWED}")
    if not isinstance(value, Mapping) or len(value) != 1:
        raise section.refuse("window", _FRAMES_ALLOWED)
    table = section.table("window")
    table.only(("tumbling", "hopping", "session", "count"))
    if "hopping" in value:
        return _read_hopping(table)
    if "count" in value:
        return _read_count(table)
    if (gap_ns := table.duration_ns("session", minimum=1)) is not None:
        return Session(gap_ns)
    return Tumbling(table.duration_ns("tumbling", minimum=1) or 0)


def _read_hopping(table: Section) -> Hopping:
    value = table.values["hopping"]
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(item, str) for item in value):
        raise table.refuse("hopping", 'size and step, such as ["10s", "5s"]')
    try:
        size_ns, step_ns = map(parse_duration, value)
    except ValueError as error:
        raise table.refuse("hopping", f"size and step, each {error}") from None
    if not 0 < step_ns <= size_ns:
        raise table.refuse("hopping", "size and step, with a step greater than 0 and no greater than the size")
    if size_ns > step_ns * HOPS_MAX:
        raise table.refuse(
            "hopping", f"a size of at most {HOPS_MAX} steps, because every row belongs to that many windows"
        )
    return Hopping(size_ns, step_ns)


def _read_count(table: Section) -> Count:
    rows = table.values["count"]
    if not isinstance(rows, int) or isinstance(rows, bool) or not 1 <= rows <= _COUNT_MAX:
        raise table.refuse("count", f"a whole number of rows from 1 to {_COUNT_MAX}")
    return Count(rows)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A function over a column."""

    #: one of `FUNCTIONS`
    function: str
    #: None: `count(*)`, every row
    column: str | None

    def __str__(self) -> str:
        return f"{self.function}({self.column or '*'})"

    def objection(self, column: ColumnType) -> str | None:
        """Why the function cannot be computed over a column of this type; None if it can."""
        added = self.function in ("sum", "avg")
        calculates = added or self.function in PERCENTILES
        compares = self.function in ("min", "max", "unique_count")
        if (calculates and not column.numeric) or (compares and column.name == "json"):
            return f'{self.function} cannot be computed over column "{self.column}", which is {column}'
        if added and column.name == "decimal" and column.scale > AMOUNT_DECIMALS:
            return (
                f'{self.function} has at most {AMOUNT_DECIMALS} exact decimals, but column "{self.column}" '
                f"is {column}; use a column with fewer, or a calculated column with "
                f"CAST(... AS DECIMAL(28,{AMOUNT_DECIMALS}))"
            )
        return None


def parse_aggregate(text: str) -> Aggregate:
    """The aggregate written as text. Raises ValueError with what is allowed."""
    match = _CALL.fullmatch(text)
    if match is None or match[1].lower() not in FUNCTIONS:
        raise ValueError(ALLOWED)
    function, column = match[1].lower(), match[2]
    if column == "*" and function != "count":
        raise ValueError(f"{function} of a column, such as {function}(quantity); only count accepts *")
    return Aggregate(function, None if column == "*" else column)
