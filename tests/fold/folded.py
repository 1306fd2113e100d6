"""Short ways to be the fold in tests of what reads its tables: rows put there by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import sql

from tests.model.values import key_text
from tidelock.definitions import Definitions
from tidelock.instants import format_instant, parse_rfc3339
from tidelock.tables import (
    ADJUSTMENTS,
    COUNTER_GROUPS,
    COUNTERS,
    ERROR_ROWS,
    KEY,
    LATE_ROWS,
    SCHEMA,
    WATERMARKS,
    Table,
    tables_of,
)

Connection = psycopg.AsyncConnection[Any]

_TYPES = {"string": 'text COLLATE "C"', "int": "integer", "double": "double precision", "timestamp": "bigint"}


async def put(connection: Connection, table: Table, tenant: str, key: str, row: Mapping[str, Any]) -> None:
    stored = {"tenant_id": tenant, KEY: key, "source_timestamp": 1, **row}
    await connection.execute(
        sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
            sql.Identifier(SCHEMA, table.name),
            sql.SQL(", ").join(map(sql.Identifier, stored)),
            sql.SQL(", ").join(map(sql.Literal, stored.values())),
        )
    )


async def counter(
    connection: Connection, tenant: str, metric: str, customer: str, start: str, value: str | None, *,
    total: str | None = None, **group: str | None,
) -> None:  # fmt: skip
    """A counter, or with `group_key` a group of one. Its watermark is its start."""
    instant = parse_rfc3339(start)
    key = [metric, customer, format_instant(instant), *group.values()]
    row = {
        "metric": metric, "customer_ref": customer, "period_start": instant, **group, "agg_sum": value or 0,
        "agg_count": 1, "watermark_ts": instant, "value": value, "total": total if total is not None else value,
        "adj_sum": 0, "adj_count": 0,
    }  # fmt: skip
    await put(connection, COUNTER_GROUPS if group else COUNTERS, tenant, key_text(key), row)


async def adjustment(connection: Connection, tenant: str, metric: str, customer: str, sequence: int) -> None:
    row = {
        "metric": metric, "customer_ref": customer, "period_start": 0, "ingress_sequence": sequence, "quantity": None,
        "amount": "1.50", "reason": "late", "occurred_at": 1,
    }  # fmt: skip
    await put(connection, ADJUSTMENTS, tenant, key_text([metric, str(sequence)]), row)


async def error_row(connection: Connection, tenant: str, source: str, sequence: int, code: str) -> None:
    row = {"source": source, "ingress_sequence": sequence, "code": code, "message": "m"}
    await put(connection, ERROR_ROWS, tenant, key_text([source, str(sequence)]), row)


async def late_row(
    connection: Connection, tenant: str, window: str, sequence: int, event_time: str, *, reason: str = "late"
) -> None:
    """Judged by a watermark of an hour later."""
    instant = parse_rfc3339(event_time)
    row = {
        "window": window, "ingress_sequence": sequence, "event_time": instant,
        "watermark": instant + 3_600_000_000_000, "reason": reason,
    }  # fmt: skip
    await put(connection, LATE_ROWS, tenant, key_text([window, str(sequence)]), row)


async def watermark(connection: Connection, tenant: str, window: str, watermark: str | None, **state: Any) -> None:
    """How far a window is. None: it goes by arrival."""
    row = {
        "window": window, "watermark": None if watermark is None else parse_rfc3339(watermark), "last_row_at": 1,
        "buffer_size": 0, "late_dropped_count": 0, "watermark_emitted_count": 1, "released": 0, **state,
    }  # fmt: skip
    await put(connection, WATERMARKS, tenant, key_text([window]), row)


async def create(connection: Connection, table: Table) -> None:
    """The table of a keyed stream, as the fold makes it."""
    columns = "".join(f'"{name}" {_TYPES.get(type_.name, str(type_))}, ' for name, type_ in table.columns.items())
    await connection.execute(
        f'CREATE TABLE {SCHEMA}."{table.name}" (tenant_id text COLLATE "C" NOT NULL, "{KEY}" text COLLATE "C" '
        f'NOT NULL, {columns}source_timestamp bigint NOT NULL, PRIMARY KEY (tenant_id, "{KEY}"))'.encode()
    )


async def define(connection: Connection, definitions: Definitions, version: int = 1) -> Mapping[str, Table]:
    """What the fold writes down of the tables it keeps."""
    tables = tables_of(definitions)
    await connection.execute(
        "INSERT INTO fold_definitions VALUES (true, %s, %s, '{}', %s) ON CONFLICT (only_row) DO UPDATE "
        "SET version = excluded.version, definitions = excluded.definitions, tables = excluded.tables",
        (version, json.dumps(definitions.canonical()), json.dumps([table.canonical() for table in tables.values()])),
    )
    return tables
