"""Tables: what the fold keeps, by name. Their columns are the contract of SQL, REST and GraphQL alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidelock.columns import BIGINT, STRING, TIMESTAMP, ColumnType, parse_column_type, table_column
from tidelock.definitions import Definitions, Stream

#: Postgres schema of the tables; nobody's role has this name, so it is on no search path
SCHEMA = "tidelock_tables"
#: column with the text of a row's key; no declared column can have that name
KEY = "$key"

_AMOUNT = ColumnType("decimal", 38, 9)
_AGGREGATES = {
    "agg_sum": _AMOUNT,
    "agg_count": BIGINT,
    "agg_max": _AMOUNT,
    "agg_min": _AMOUNT,
    "agg_last": _AMOUNT,
    "watermark_ts": TIMESTAMP,
    "value": _AMOUNT,
    "total": _AMOUNT,
}
_COUNTER = {"metric": STRING, "customer_ref": STRING, "period_start": TIMESTAMP}
_ADJUSTED = {"last_at": TIMESTAMP, "adj_sum": _AMOUNT, "adj_count": BIGINT, "adj_max": _AMOUNT, "adj_min": _AMOUNT}
#: what a keyed stream's table has beside its key where no columns are declared: what the producer said
UNDECLARED = {
    "customer_ref": STRING,
    "resource_id": STRING,
    "occurred_at": TIMESTAMP,
    "quantity": _AMOUNT,
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
    #: what the fold keeps beside them, for itself
    state: Mapping[str, ColumnType] = field(default_factory=dict)

    @property
    def stored(self) -> Mapping[str, ColumnType]:
        """Columns and state."""
        return {**self.columns, **self.state}

    def canonical(self) -> dict[str, object]:
        """Plain JSON, from which `read_tables` makes it again."""
        return {
            "name": self.name,
            "columns": {name: str(type_) for name, type_ in self.columns.items()},
            "key": list(self.key),
        }


COUNTERS = Table("counters", {**_COUNTER, **_AGGREGATES}, tuple(_COUNTER), _ADJUSTED)
COUNTER_GROUPS = Table(
    "counter_groups",
    {**_COUNTER, "group_key": STRING, **_AGGREGATES},
    (*_COUNTER, "group_key"),
    {**_ADJUSTED, "adj_last": _AMOUNT, "adj_last_at": TIMESTAMP},
)
ADJUSTMENTS = Table(
    "adjustments",
    {
        **_COUNTER,
        "ingress_sequence": BIGINT,
        "quantity": _AMOUNT,
        "amount": _AMOUNT,
        "reason": STRING,
        "occurred_at": TIMESTAMP,
    },
    ("metric", "ingress_sequence"),
)
ERROR_ROWS = Table(
    "error_rows",
    {"source": STRING, "ingress_sequence": BIGINT, "code": STRING, "message": STRING},
    ("source", "ingress_sequence"),
)
#: tables there are without any definition
ALWAYS = {table.name: table for table in (COUNTERS, COUNTER_GROUPS, ADJUSTMENTS, ERROR_ROWS)}


def latest_table(stream: Stream, calculated: Mapping[str, ColumnType]) -> Table:
    """The table of a keyed stream. The types of its calculated columns are Spark's to tell."""
    key = tuple(map(table_column, stream.key))
    if stream.columns:
        columns = dict(stream.columns)
    else:
        columns = {table_column(name): stream.type_of(name) or STRING for name in stream.key} | UNDECLARED
    return Table(stream.name, columns | dict(calculated), key)


def tables_of(
    definitions: Definitions, calculated: Mapping[str, Mapping[str, ColumnType]] | None = None
) -> dict[str, Table]:
    """Every table, given the types of calculated columns by stream."""
    keyed = (stream for stream in definitions.streams.values() if stream.key)
    latest = (latest_table(stream, (calculated or {}).get(stream.name, {})) for stream in keyed)
    return ALWAYS | {table.name: table for table in latest}


def read_tables(forms: Iterable[Mapping[str, object]]) -> dict[str, Table]:
    """Tables as `canonical` wrote them."""
    tables = dict(ALWAYS)
    for form in forms:
        name, columns, key = str(form["name"]), form["columns"], form["key"]
        assert isinstance(columns, dict)
        assert isinstance(key, list)
        if name not in ALWAYS:
            tables[name] = Table(name, {c: parse_column_type(t) for c, t in columns.items()}, tuple(key))
    return tables
