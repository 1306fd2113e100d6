"""Partitions of the events, made ahead of the head so that a commit never waits for one."""

from __future__ import annotations

from typing import Any

import psycopg

from tidelock.ledger.queries import load

QUERIES = load("tidelock.ledger", "sql/ledger.sql")

# Making a partition locks the default one, and whoever reads behind it waits: give up early, try again later.
# Until it is made, the default partition takes the rows.
_LOCK_TIMEOUT = "200ms"
# Not there yet for a good reason: somebody else made it, or the lock could not be had.
_NOT_NOW = (psycopg.errors.LockNotAvailable, psycopg.errors.DuplicateTable, psycopg.errors.InvalidObjectDefinition)


async def ensure_partitions(connection: psycopg.AsyncConnection[Any], partition_events: int) -> None:
    """Make the partition the head is in, and the one after it."""
    row = await (await connection.execute(QUERIES["read_head"])).fetchone()
    assert row is not None, "ledger_head always has its one row"
    for sequence in (row[0] + 1, row[0] + 1 + partition_events):
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
                await connection.execute(QUERIES["ensure_partition"], [sequence, partition_events])
        except _NOT_NOW:
            return
