"""Retention: what was delivered or given up is kept for a while; what is pending until it is one of these."""

from __future__ import annotations

from typing import Any

import psycopg

from tidelock.postgres.queries import load

QUERIES = load("tidelock.triggers", "sql/retention.sql")

# Rows looked at by one statement: none holds its locks for long.
_BATCH = 5_000


async def prune(connection: psycopg.AsyncConnection[Any], retention_ns: int, batch: int = _BATCH) -> int:
    """Remove what is old or belongs to triggers that are gone; gives how many events that were."""
    removed, after, more = 0, 0, True
    wanted = {"retention_us": retention_ns // 1_000, "limit": batch}
    while more:
        row = await (await connection.execute(QUERIES["prune"], wanted | {"after": after})).fetchone()
        if row is None:
            break
        after, gone, more = row
        removed += gone
    while orphans := await _count(connection, batch):
        removed += orphans
    return removed


async def _count(connection: psycopg.AsyncConnection[Any], batch: int) -> int:
    row = await (await connection.execute(QUERIES["prune_orphans"], {"limit": batch})).fetchone()
    assert row is not None, "a count always has a row"
    return int(row[0])
