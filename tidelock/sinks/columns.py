"""The columns of a store: the same in the lake and in ClickHouse, in one order.

Those of the ledger's events, with the time of receipt as `ingested_at`, then the commit digest and the position in
Kafka. Hashes are hexadecimal strings, which every reader can show and compare.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

_QUANTITY = pa.decimal128(38, 9)


@dataclass(frozen=True, slots=True)
class StoreColumn:
    """One column of every store."""

    name: str
    arrow: pa.DataType
    clickhouse: str
    #: of `events JOIN commits`; the quantity travels as a text where the driver reads
    postgres: str

    @property
    def nullable(self) -> bool:
        return self.clickhouse.startswith("Nullable")


def _number(name: str, postgres: str | None = None) -> StoreColumn:
    return StoreColumn(name, pa.int64(), "Int64", postgres or name)


def _text(name: str, postgres: str | None = None) -> StoreColumn:
    return StoreColumn(name, pa.string(), "String", postgres or name)


def _word(name: str) -> StoreColumn:
    """A string with few distinct values."""
    return StoreColumn(name, pa.string(), "LowCardinality(String)", name)


def _optional(name: str, postgres: str | None = None) -> StoreColumn:
    return StoreColumn(name, pa.string(), "Nullable(String)", postgres or name)


#: of one ledger: which events they are
LEDGER = (
    _number("ingress_sequence"),
    _number("commit_id", "events.commit_id"),
    _number("source_timestamp"),
    _word("tenant_id"),
    _word("stream"),
    _optional("customer_ref"),
    _optional("resource_id"),
    _optional("row_key"),
    _word("op"),
    _number("occurred_at"),
    _number("ingested_at", "received_at"),
    StoreColumn("quantity", _QUANTITY, "Nullable(Decimal(38, 9))", "quantity::numeric(38,9)"),
    _optional("data", "data::text"),
    _optional("causality_key"),
    _optional("correlation_id"),
    _optional("causation_id"),
    _optional("source"),
    _optional("idempotency_key"),
    _text("content_hash", "encode(content_hash, 'hex')"),
    # These came with the second form of the ledger: a store of before has nulls in them where it was loaded by then.
    _optional("key_source", "CASE key_source WHEN 'c' THEN 'client' WHEN 'd' THEN 'derived' ELSE 'none' END"),
    _optional("target"),
    StoreColumn("target_sequence", pa.int64(), "Nullable(Int64)", "target_sequence"),
    _optional("reason"),
    _optional("batch_id"),
    _optional("row_digest", "encode(row_digest, 'hex')"),
    _text("commit_digest", "encode(commits.digest, 'hex')"),
)
#: what a store of the first form lacks
LATER = ("key_source", "target", "target_sequence", "reason", "batch_id", "row_digest")
#: of its mirror: where they are in Kafka; -1 if loaded from the ledger
MIRROR = (
    StoreColumn("kafka_partition", pa.int32(), "Int32", "-1"),
    StoreColumn("kafka_offset", pa.int64(), "Int64", "-1::bigint"),
)
COLUMNS = (*LEDGER, *MIRROR)
NAMES = tuple(column.name for column in COLUMNS)
SEQUENCE = "ingress_sequence"
SCHEMA = pa.schema([pa.field(column.name, column.arrow) for column in COLUMNS])
_SPARK = {pa.int64(): "BIGINT", pa.int32(): "INT", pa.string(): "STRING", _QUANTITY: "DECIMAL(38,9)"}
#: the same in Spark's form, so that Spark need not open files to learn their schema
SPARK_SCHEMA = ", ".join(f"{column.name} {_SPARK[column.arrow]}" for column in COLUMNS)


def select_sql(columns: tuple[StoreColumn, ...] = COLUMNS, *, exact: bool = False) -> str:
    """The ledger in the form of a store. `exact`: quantities as strings, because Arrow does not know Postgres's
    numeric.
    """
    listed = ", ".join(
        f"({column.postgres}){'::text' if exact and column.arrow == _QUANTITY else ''} AS {column.name}"
        for column in columns
    )
    return f"SELECT {listed} FROM events JOIN commits ON commits.commit_id = events.commit_id"


def conformed(rows: pa.Table, columns: tuple[StoreColumn, ...] = COLUMNS) -> pa.Table:
    """Rows from anywhere, in the types and the order of the columns; quantities may be strings, and later columns may
    be missing.
    """
    arrays = [
        pa.nulls(rows.num_rows, column.arrow)
        if column.name in LATER and column.name not in rows.column_names
        else rows[column.name].cast(column.arrow)
        for column in columns
    ]
    return pa.table(arrays, schema=pa.schema([pa.field(column.name, column.arrow) for column in columns]))
