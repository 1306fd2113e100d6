"""Partitions of the events, made ahead of the head so that a commit never waits for one."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import psycopg

from tidelock.errors import TidelockError
from tidelock.postgres.database import Database
from tidelock.postgres.queries import load

log = logging.getLogger(__name__)

QUERIES = load("tidelock.ledger", "sql/ledger.sql")

_TURN_S = 30.0
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


async def keep_partitions(database: Database, partition_events: int) -> None:
    """Make partitions ahead of the head for as long as it runs; a failure is made good by the next turn."""
    while True:
        await asyncio.sleep(_TURN_S)
        try:
            async with await database.connect(name="tidelock partitions") as connection:
                await ensure_partitions(connection, partition_events)
        except (psycopg.Error, TidelockError) as error:
            log.warning("the ledger's next partition cannot be made: %s", error)
