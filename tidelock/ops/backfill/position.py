"""Positions: how far a backfill is, kept in the ledger's own database together with the rows it could not record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import psycopg

from tidelock.ops.backfill.outcome import Counts, RowProblem
from tidelock.ops.backfill.statements import Place
from tidelock.postgres.database import Database
from tidelock.postgres.queries import load
from tidelock.postgres.reconnect import Steady

QUERIES = load("tidelock.ops", "sql/backfills.sql")


class Position:
    """How far one backfill has come. It outlives a restart of the database, as the backfill does."""

    def __init__(self, database: Database, key: str, name: str) -> None:
        self._database = database
        self._key = key
        self._name = name
        self._steady = Steady(database, "tidelock backfill", patience=database.patience)

    async def read(self) -> tuple[Place | None, Counts]:

        async def step(connection: psycopg.AsyncConnection[Any]) -> Any:
            return await (await connection.execute(QUERIES["read_backfill"], [self._key])).fetchone()

        row = await self._steady.run(step)
        if row is None:
            return None, Counts()
        place, rows, accepted, duplicates, conflicts, rejected, _ = row
        return (None if place is None else tuple(place)), Counts(rows, accepted, duplicates, conflicts, rejected)

    async def begin_anew(self) -> None:
        """Forget what earlier runs did; the ledger does not."""
        await self.move(None, Counts(), forget_from=0)

    async def note_unplaced(self, problems: Sequence[RowProblem]) -> None:
        """The rows that have no place, in the stead of those that had none before."""

        async def step(connection: psycopg.AsyncConnection[Any]) -> None:
            async with connection.transaction():
                await connection.execute(QUERIES["forget_unplaced"], [self._key])
                await self._add(connection, problems)

        await self._steady.run(step)

    async def problems(self, limit: int | None) -> list[RowProblem]:
        async def step(connection: psycopg.AsyncConnection[Any]) -> list[Any]:
            return await (await connection.execute(QUERIES["read_problems"], [self._key, limit])).fetchall()

        found = await self._steady.run(step)
        return [RowProblem(number, row_id, msgspec.Raw(verdict.encode())) for number, row_id, verdict in found]

    async def close(self) -> None:
        await self._steady.close()

    async def move(
        self,
        place: Place | None,
        counts: Counts,
        problems: Sequence[RowProblem] = (),
        *,
        finished: bool = False,
        forget_from: int | None = None,
    ) -> None:
        """Everything up to a place was dealt with, and these of its rows could not be recorded."""
        values = {
            "backfill": self._key, "name": self._name, "position": None if place is None else list(place),
            "rows": counts.rows, "accepted": counts.accepted, "duplicates": counts.duplicates,
            "conflicts": counts.conflicts, "rejected": counts.rejected, "finished": finished,
        }  # fmt: skip
        first = min((problem.row for problem in problems), default=forget_from)

        async def step(connection: psycopg.AsyncConnection[Any]) -> None:
            async with connection.transaction():
                await connection.execute(QUERIES["move_backfill"], values)
                if first is not None:
                    await connection.execute(QUERIES["forget_problems"], [self._key, first])
                await self._add(connection, problems)

        await self._steady.run(step)

    async def _add(self, connection: psycopg.AsyncConnection[Any], problems: Sequence[RowProblem]) -> None:
        for problem in problems:
            values = [self._key, problem.row, problem.id, bytes(problem.verdict).decode()]
            await connection.execute(QUERIES["add_problem"], values)
