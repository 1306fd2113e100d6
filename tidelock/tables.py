"""Tables: what the fold maintains, by name. Their columns are the contract of SQL, REST and GraphQL alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tidelock.columns import (
    AMOUNT,
    BIGINT,
    BOOLEAN,
    DOUBLE,
    STRING,
    TIMESTAMP,
    ColumnType,
    parse_column_type,
    table_column,
)
from tidelock.definitions import Count, Definitions, Session, Stream, Window
from tidelock.definitions.windows import PERCENTILES, Aggregate

#: Postgres schema of the tables; no role has this name, so it is on no search path
SCHEMA = "tidelock_tables"
#: column with the text of a row's key; no declared column can have that name
KEY = "$key"
#: column with the text of the key of a window's group
GROUP = "$group"

_AGGREGATES = {
    "agg_sum": AMOUNT,
    "agg_count": BIGINT,
    "agg_max": AMOUNT,
    "agg_min": AMOUNT,
    "agg_last": AMOUNT,
    "watermark_ts": TIMESTAMP,
    "value": AMOUNT,
    "total": AMOUNT,
}
_COUNTER = {"metric": STRING, "customer_ref": STRING, "period_start": TIMESTAMP}
_ADJUSTED = {"last_at": TIMESTAMP, "adj_sum": AMOUNT, "adj_count": BIGINT, "adj_max": AMOUNT, "adj_min": AMOUNT}
#: what came for a counter after it was closed may be its last; what was only late never is
_CLOSED = {"closed_last": AMOUNT, "closed_last_at": TIMESTAMP}
#: since a correction `adj_max`, `adj_min` and the last beside the value are those of all that the total covers
_PARTED = {"parted": BOOLEAN}
#: the index of ordered output; no other table has one like it
_POSITION = ("tenant_id", "position")
#: columns of a keyed stream's table next to its key if none are declared: what the producer sent
UNDECLARED = {
    "customer_ref": STRING,
    "resource_id": STRING,
    "occurred_at": TIMESTAMP,
    "quantity": AMOUNT,
    "data": ColumnType("json"),
}


@dataclass(frozen=True, slots=True)
class Table:
    """Rows by (tenant, key). Every table also has `tenant_id`, and its `source_timestamp` as metadata."""

    name: str
    #: in the order they are shown, without `tenant_id`
    columns: Mapping[str, ColumnType]
    #: columns whose texts make the key
    key: tuple[str, ...]
    #: the fold's internal state, stored next to them
    state: Mapping[str, ColumnType] = field(default_factory=dict)
    #: internal to the fold: nobody else reads it
    internal: bool = False
    #: columns that its rows are looked up by, beside their keys
    indexes: tuple[tuple[str, ...], ...] = ()
    #: rows are added and removed, but never replaced
    appended: bool = field(default=False, compare=False)

    @property
    def listed_by(self) -> str | None:
        """The column by which rows are ordered before their keys, whose order as strings is meaningless."""
        if self.key == ("ingress_sequence",) and list(self.columns)[1:2] == ["position"]:
            return "position"
        return "ingress_sequence" if self.name == "late_rows" else None

    @property
    def numbered(self) -> bool:
        """Whether it is ordered output: its rows are found by their sequences, and no text is indexed."""
        return _POSITION in self.indexes

    @property
    def keyed(self) -> bool:
        """Whether rows are found by their keys: those that wait for their time are found by that."""
        return not (self.internal and self.appended)

    @property
    def stored(self) -> Mapping[str, ColumnType]:
        """Columns and state."""
        return {**self.columns, **self.state}

    def canonical(self) -> dict[str, object]:
        """Plain JSON, from which `read_tables` makes it again."""
        form: dict[str, object] = {
            "name": self.name,
            "columns": {name: str(type_) for name, type_ in self.columns.items()},
            "key": list(self.key),
        }
        if self.indexes:
            form["indexes"] = [list(index) for index in self.indexes]
        return form | {"internal": True} if self.internal else form


COUNTERS = Table("counters", {**_COUNTER, **_AGGREGATES}, tuple(_COUNTER), {**_ADJUSTED, **_CLOSED, **_PARTED})
#: the same while no meter was ever closed and nothing was corrected
OPEN_COUNTERS = replace(COUNTERS, state=_ADJUSTED)
COUNTER_GROUPS = Table(
    "counter_groups",
    {**_COUNTER, "group_key": STRING, **_AGGREGATES},
    (*_COUNTER, "group_key"),
    {**_ADJUSTED, "adj_last": AMOUNT, "adj_last_at": TIMESTAMP, **_PARTED},
)
ADJUSTMENTS = Table(
    "adjustments",
    {
        **_COUNTER,
        "ingress_sequence": BIGINT,
        "quantity": AMOUNT,
        "amount": AMOUNT,
        "reason": STRING,
        "occurred_at": TIMESTAMP,
    },
    ("metric", "ingress_sequence"),
)
#: what a counter was when its period was closed
STATEMENTS = Table(
    "statements",
    {
        **_COUNTER,
        "period_end": TIMESTAMP,
        "value": AMOUNT,
        "total": AMOUNT,
        "event_count": BIGINT,
        "closed_sequence": BIGINT,
        "definition": STRING,
    },
    tuple(_COUNTER),
    appended=True,
)
#: the ends through which meters were closed, for a tenant or for all, each later than the one before
CLOSED_METERS = Table(
    "meters$closed",
    {"metric": STRING, "closed_sequence": BIGINT, "through": TIMESTAMP},
    ("metric", "closed_sequence"),
    internal=True,
)
#: the texts that counters and groups of `unique_count` have seen
DISTINCT = Table(
    "meters$distinct",
    {"metric": STRING, "in_value": ColumnType("boolean"), "in_total": ColumnType("boolean")},
    ("metric",),
    internal=True,
)
ERROR_ROWS = Table(
    "error_rows",
    {"source": STRING, "ingress_sequence": BIGINT, "code": STRING, "message": STRING},
    ("source", "ingress_sequence"),
)
LATE_ROWS = Table(
    "late_rows",
    {"window": STRING, "ingress_sequence": BIGINT, "event_time": TIMESTAMP, "watermark": TIMESTAMP, "reason": STRING},
    ("window", "ingress_sequence"),
)
WATERMARKS = Table(
    "watermarks",
    {"window": STRING, "watermark": TIMESTAMP},
    ("window",),
    {
        "max_timestamp_seen": TIMESTAMP,
        "closed_through": TIMESTAMP,
        "last_row_at": TIMESTAMP,
        "buffer_size": BIGINT,
        "late_dropped_count": BIGINT,
        "watermark_emitted_count": BIGINT,
        "released": BIGINT,
    },
    internal=True,
)
#: tables that exist without any definition
ALWAYS = {
    table.name: table
    for table in (
        COUNTERS,
        COUNTER_GROUPS,
        ADJUSTMENTS,
        STATEMENTS,
        ERROR_ROWS,
        LATE_ROWS,
        WATERMARKS,
        CLOSED_METERS,
        DISTINCT,
    )
}


def latest_table(stream: Stream, calculated: Mapping[str, ColumnType]) -> Table:
    """The table of a keyed stream. The types of its calculated columns come from Spark."""
    key = tuple(map(table_column, stream.key))
    if stream.columns:
        columns = dict(stream.columns)
    else:
        columns = {table_column(name): stream.type_of(name) or STRING for name in stream.key} | UNDECLARED
    return Table(stream.name, columns | dict(calculated), key)


def ordered_table(stream: Stream) -> Table:
    """The rows of a stream in the order of their time."""
    own = {"ingress_sequence": BIGINT, "position": BIGINT, "event_time": TIMESTAMP}
    columns = own | dict(latest_table(stream, {}).columns)
    return Table(f"{stream.name}_ordered", columns, ("ingress_sequence",), indexes=(_POSITION,), appended=True)


def window_table(window: Window, types: Mapping[str, ColumnType]) -> Table:
    """The closed windows, given the types of the columns it uses."""
    groups = {table_column(name): types.get(name, STRING) for name in window.group_by}
    ordinal = {"window_ordinal": BIGINT} if isinstance(window.frame, Count) else {}
    times = {"window_start": TIMESTAMP, "window_end": TIMESTAMP}
    selected = {name: result_type(found, types.get(found.column or "")) for name, found in window.select.items()}
    key = (*groups, next(iter(ordinal), "window_start"))
    return Table(window.name, groups | ordinal | times | selected, key, appended=True)


def open_table(window: Window, types: Mapping[str, ColumnType]) -> Table:
    """The open windows. A group counted in rows always has one, which carries its number."""
    own = {GROUP: STRING, **_groups(window), "window_start": TIMESTAMP, "window_end": TIMESTAMP}
    counted = isinstance(window.frame, Count)
    if counted:
        own |= {"window_ordinal": BIGINT, "rows": BIGINT}
    states = state_columns(tuple(window.select.values()), types)
    key = (GROUP,) if counted else (GROUP, "window_start")
    # Windows by arrival end for all tenants at once.
    indexes = [("tenant_id", "window_end") if window.eventtime.enabled else ("window_end",)] if not counted else []
    indexes += [("tenant_id", GROUP)] if isinstance(window.frame, Session) else []
    return Table(f"{window.name}$open", own | states, key, internal=True, indexes=tuple(indexes))


def holds(window: Window) -> bool:
    """Whether rows are held. Windows of time aggregate them on arrival, with the same result."""
    return isinstance(window.frame, Count) and window.eventtime.enabled


def held_table(window: Window, types: Mapping[str, ColumnType]) -> Table:
    """Rows that a count window holds until no earlier row can arrive."""
    states = state_columns(tuple(window.select.values()), types)
    return _held(f"{window.name}$held", {GROUP: STRING, **_groups(window), **states})


def held_ordered_table(stream: Stream) -> Table:
    """Rows that ordered output holds."""
    return _held(f"{stream.name}_ordered$held", latest_table(stream, {}).columns)


def tables_of(
    definitions: Definitions, calculated: Mapping[str, Mapping[str, ColumnType]] | None = None
) -> dict[str, Table]:
    """Every table, given the types of calculated columns by stream."""
    tables = dict(ALWAYS)
    for name, stream in definitions.streams.items():
        made = [latest_table(stream, (calculated or {}).get(name, {}))] if stream.key else []
        made += [ordered_table(stream), held_ordered_table(stream)] if stream.ordered else []
        tables |= {table.name: table for table in made}
    for window in definitions.windows.values():
        types = column_types(window, definitions.streams.get(window.stream), (calculated or {}).get(window.stream, {}))
        made = [window_table(window, types), open_table(window, types)]
        made += [held_table(window, types)] if holds(window) else []
        tables |= {table.name: table for table in made}
    return tables


def column_types(window: Window, stream: Stream | None, calculated: Mapping[str, ColumnType]) -> dict[str, ColumnType]:
    """The types of the columns that a window uses; paths, which have none, are missing."""
    stream = stream or Stream(window.stream)
    used = dict.fromkeys([*window.group_by, *(found.column for found in window.select.values() if found.column)])
    types = {name: calculated.get(name) or stream.type_of(name) for name in used}
    return {name: type_ for name, type_ in types.items() if type_ is not None}


def read_tables(forms: Iterable[Mapping[str, Any]]) -> dict[str, Table]:
    """Tables as `canonical` wrote them."""
    tables = dict(ALWAYS)
    for form in forms:
        if (name := form["name"]) not in ALWAYS:
            columns = {column: parse_column_type(text) for column, text in form["columns"].items()}
            internal, indexes = form.get("internal", False), tuple(map(tuple, form.get("indexes", ())))
            tables[name] = Table(name, columns, tuple(form["key"]), internal=internal, indexes=indexes)
    return tables


def result_type(aggregate: Aggregate, column: ColumnType | None) -> ColumnType:
    """The type of an aggregate over a column of this type; None: a path, which is a string."""
    if aggregate.function in PERCENTILES:
        return DOUBLE
    match aggregate.function:
        case "count" | "unique_count":
            return BIGINT
        case "sum" | "avg":
            return AMOUNT
    return column or STRING


def state_columns(aggregates: Sequence[Aggregate], types: Mapping[str, ColumnType]) -> dict[str, ColumnType]:
    """Their states, numbered: the names of the results may be as long as Postgres allows."""
    return {
        name: type_
        for number, aggregate in enumerate(aggregates)
        for name, type_ in _state(number, aggregate, aggregates, types.get(aggregate.column or ""))
    }


def histogram_number(number: int, aggregates: Sequence[Aggregate]) -> int:
    """The percentiles of a column share one histogram, which has the number of the first of them."""
    column = aggregates[number].column
    return next(n for n, each in enumerate(aggregates) if each.function in PERCENTILES and each.column == column)


def _groups(window: Window) -> dict[str, ColumnType]:
    """The texts of a group's columns, numbered."""
    return {f"group_{number}": STRING for number in range(len(window.group_by))}


def _held(name: str, columns: Mapping[str, ColumnType]) -> Table:
    own = {"ingress_sequence": BIGINT, "event_time": TIMESTAMP}
    indexes = (("tenant_id", "event_time"),)
    return Table(name, own | dict(columns), ("ingress_sequence",), internal=True, indexes=indexes, appended=True)


def _state(
    number: int, aggregate: Aggregate, aggregates: Sequence[Aggregate], type_: ColumnType | None
) -> Iterator[tuple[str, ColumnType]]:
    if aggregate.function in ("sum", "avg"):
        yield f"sum_{number}", AMOUNT
    if aggregate.function in ("count", "avg"):
        yield f"count_{number}", BIGINT
    if aggregate.function in ("min", "max", "first", "last"):
        yield f"value_{number}", type_ or STRING
    if aggregate.function in ("first", "last"):
        yield f"time_{number}", TIMESTAMP
        yield f"sequence_{number}", BIGINT
    if aggregate.function == "unique_count":
        yield f"texts_{number}", STRING
    if aggregate.function in PERCENTILES and histogram_number(number, aggregates) == number:
        yield f"buckets_{number}", STRING
