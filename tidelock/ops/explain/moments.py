"""Moments: what a table was when the fold had come to a sequence is read from the ledger, at one moment of it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg import sql

from tidelock.durations import format_duration
from tidelock.errors import RequestError
from tidelock.postgres.queries import load

QUERIES = load("tidelock.ops", "sql/tables.sql")

# Compiling these long expressions takes longer than most slices; doubles are written with their shortest digits.
_SESSION = "SET LOCAL jit = off; SET LOCAL extra_float_digits = 1"


class Moment:
    """One moment of the database, and how long it may be looked at."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], timeout_ns: int) -> None:
        self._connection = connection
        self._ends = time.monotonic_ns() + timeout_ns

    async def execute(self, query: sql.Composed | bytes) -> psycopg.AsyncCursor[Any]:
        """Raises QueryCanceled when no time is left."""
        await self.hurry()
        return await self._connection.execute(query, binary=True)

    async def hurry(self) -> None:
        """Let the next statement take no longer than what is left for all of them. Raises QueryCanceled."""
        left_ms = (self._ends - time.monotonic_ns()) // 10**6
        if left_ms <= 0:
            raise psycopg.errors.QueryCanceled
        await self._connection.execute(f"SET LOCAL statement_timeout = {left_ms}".encode())


@asynccontextmanager
async def moment(connection: psycopg.AsyncConnection[Any], timeout_ns: int) -> AsyncIterator[Moment]:
    """Every query inside sees the same database. Raises RequestError if they take longer than that, together."""
    try:
        async with connection.transaction():
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            await connection.execute(_SESSION)
            found = Moment(connection, timeout_ns)
            await found.hurry()
            yield found
    except psycopg.errors.QueryCanceled:
        raise RequestError(
            f"this has more events than are read within {format_duration(timeout_ns)}, the setting explain_timeout: "
            "raise it, or ask for a shorter time"
        ) from None


async def frontier(connection: psycopg.AsyncConnection[Any], as_of: int | None) -> int:
    """The sequence that numbers are complete through: where the fold is, or before it. Raises RequestError."""
    row = await (await connection.execute(QUERIES["read_cursor"], ("fold",))).fetchone()
    through = int(row[0]) if row else 0
    if as_of is not None and not 1 <= as_of <= through:
        raise RequestError(f"asOf is a sequence from 1 to {through}, which is how far the fold is", field="asOf")
    return through if as_of is None else as_of
