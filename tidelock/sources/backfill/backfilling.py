"""Backfilling: the rows of an older table into the ledger, in their order, each once, however often it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import msgspec
import psycopg

from tidelock.model import Accepted, Conflict, Duplicate, Problem, Rejected, Verdict
from tidelock.postgres.database import Database
from tidelock.postgres.queries import load
from tidelock.postgres.reconnect import Steady, database_errors
from tidelock.sources.backfill.events import EventMaker, OldChunk, chunks
from tidelock.sources.backfill.oldtable import OldTable, SortKey
from tidelock.sources.sender import Sender

QUERIES = load("tidelock.sources", "sql/backfills.sql")

PROBLEMS_SHOWN = 10
# Sent together: one is admitted while the one ahead of it is recorded.
_CHUNKS_TOGETHER = 4
_UNPLACED = Rejected(
    Problem("invalid_event", "the row has no received_at or no id, so its place in the order is unknown")
)


class OldRowProblem(msgspec.Struct, frozen=True, rename="camel"):
    """A row that could not be recorded, or was recorded with different content."""

    #: in the order of the backfill; 0: it has no place in it
    row: int
    id: str | None
    #: as returned by the ledger
    verdict: msgspec.Raw

    @classmethod
    def of(cls, row: int, row_id: str | None, verdict: Rejected | Conflict) -> OldRowProblem:
        return cls(row, row_id, msgspec.Raw(msgspec.json.encode(verdict)))

    @property
    def told(self) -> str:
        """In one line, for people."""
        found = msgspec.json.decode(self.verdict)
        if found["status"] == "rejected":
            return f"{found['error']['code']}  {found['error']['message']}"
        sequence, key = found["ingressSequence"], found["idempotencyKey"]
        return f"conflict  key {key} is recorded with other content as sequence {sequence}"


@dataclass(slots=True)
class Counts:
    """Counts of rows by outcome."""

    rows: int = 0
    accepted: int = 0
    duplicates: int = 0
    conflicts: int = 0
    rejected: int = 0

    def add(self, verdicts: list[Verdict]) -> None:
        self.rows += len(verdicts)
        for verdict in verdicts:
            if isinstance(verdict, Accepted):
                self.accepted += 1
            elif isinstance(verdict, Duplicate):
                self.duplicates += 1
            elif isinstance(verdict, Conflict):
                self.conflicts += 1
            else:
                self.rejected += 1


@dataclass(slots=True)
class Backfilled:
    """The report of a run."""

    #: of this run, and of all runs of the same backfill
    counts: Counts = field(default_factory=Counts)
    total: Counts = field(default_factory=Counts)
    #: rows processed by earlier runs
    resumed_after: int = 0
    #: rows without a place in the order, because received_at or id is missing
    unplaced: int = 0
    #: rows added to the older table before the position already reached
    behind: int = 0
    finished: bool = False
    #: the first of them
    problems: list[OldRowProblem] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every row of the table is in the ledger, unchanged."""
        found = self.total
        return self.finished and not (found.conflicts or found.rejected or self.unplaced or self.behind)


class Backfilling:
    """One run. `told` is called with the rows this run has done and the part of them that it is."""

    def __init__(self, table: OldTable, sender: Sender, chunk_events: int, told: Callable[[int, float], None]) -> None:
        assert table.columns is not None, "a table is chosen first"
        self._table = table
        self._maker = EventMaker(table.columns, table.name)
        self._sender = sender
        self._chunk_events = chunk_events
        self._told = told
        self._reached: SortKey | None = None
        self.result = Backfilled()
        #: set it to stop after what is being recorded
        self.stop = sender.stop

    async def run(self, database: Database, *, restart: bool) -> Backfilled:
        """Record the rest of the table, or read all of it again."""
        position = BackfillPosition(database, self._key(), f"{self._table.place} {self._table.name}")
        with database_errors("backfill"):
            try:
                if restart:
                    await position.begin_anew()
                self._reached, self.result.total = await position.read()
                self.result.resumed_after = self.result.total.rows
                await self._record(position)
                await self._finish(position)
            finally:
                await position.close()
        return self.result

    async def all_problems(self, database: Database) -> list[OldRowProblem]:
        """Every row that could not be recorded, by whichever run."""
        position = BackfillPosition(database, self._key(), "")
        try:
            return await position.problems(None)
        finally:
            await position.close()

    async def _record(self, position: BackfillPosition) -> None:
        left = await asyncio.to_thread(self._table.count, self._reached)
        batches = self._batches()
        # The next rows are read while these are being recorded.
        reading = asyncio.create_task(asyncio.to_thread(next, batches, None))
        try:
            while (batch := await reading) is not None and not self.stop.is_set():
                reading = asyncio.create_task(asyncio.to_thread(next, batches, None))
                problems: list[OldRowProblem] = []
                for chunk, verdicts in zip(batch, await self._sender.send(batch), strict=True):
                    problems += self._count(chunk, verdicts)
                # Only now: the stored position must never pass a row that is not recorded.
                await position.move(self._reached, self.result.total, problems)
                done = self.result.counts.rows
                self._told(done, done / max(left, done, 1))
        finally:
            await asyncio.wait([reading])
            await asyncio.to_thread(batches.close)
        self.result.finished = batch is None

    async def _finish(self, position: BackfillPosition) -> None:
        """Report rows without a place, and rows added before the current position."""
        result = self.result
        if result.finished:
            result.unplaced, ids = await asyncio.to_thread(self._table.unplaced)
            await position.note_unplaced([OldRowProblem.of(0, row_id, _UNPLACED) for row_id in ids])
            await position.move(self._reached, result.total, finished=True)
            every, after = await asyncio.to_thread(lambda: (self._table.count(None), self._table.count(self._reached)))
            result.behind = max(0, every - after - result.total.rows)
        result.problems = await position.problems(PROBLEMS_SHOWN)

    def _batches(self) -> Generator[list[OldChunk], None, None]:
        batch: list[OldChunk] = []
        rows = self._table.rows(self._reached)
        for chunk in chunks(rows, self._chunk_events, self._maker, self.result.resumed_after):
            batch.append(chunk)
            if len(batch) == _CHUNKS_TOGETHER:
                yield batch
                batch = []
        if batch:
            yield batch

    def _count(self, chunk: OldChunk, verdicts: list[Verdict]) -> list[OldRowProblem]:
        self.result.counts.add(verdicts)
        self.result.total = replace(self.result.total)
        self.result.total.add(verdicts)
        self._reached = chunk.sort_key
        first = chunk.last - len(chunk.events) + 1
        return [
            OldRowProblem.of(first + index, chunk.ids[index], verdict)
            for index, verdict in enumerate(verdicts)
            if isinstance(verdict, Rejected | Conflict)
        ]

    def _key(self) -> str:
        """The same table with another mapping is another backfill."""
        assert self._table.columns is not None
        meant = [self._table.place, self._table.name, self._table.columns.canonical]
        return sha256(msgspec.json.encode(meant)).hexdigest()


class BackfillPosition:
    """The position of one backfill. It survives a restart of the database, as the backfill does."""

    def __init__(self, database: Database, key: str, name: str) -> None:
        self._database = database
        self._key = key
        self._name = name
        self._steady = Steady(database, "tidelock backfill", patience=database.patience)

    async def read(self) -> tuple[SortKey | None, Counts]:

        async def step(connection: psycopg.AsyncConnection[Any]) -> Any:
            return await (await connection.execute(QUERIES["read_backfill"], [self._key])).fetchone()

        row = await self._steady.run(step)
        if row is None:
            return None, Counts()
        place, rows, accepted, duplicates, conflicts, rejected, _ = row
        return (None if place is None else tuple(place)), Counts(rows, accepted, duplicates, conflicts, rejected)

    async def begin_anew(self) -> None:
        """Discard the progress of earlier runs; the ledger keeps their events."""
        await self.move(None, Counts(), forget_from=0)

    async def note_unplaced(self, problems: Sequence[OldRowProblem]) -> None:
        """Replace the recorded rows without a place."""

        async def step(connection: psycopg.AsyncConnection[Any]) -> None:
            async with connection.transaction():
                await connection.execute(QUERIES["forget_unplaced"], [self._key])
                await self._add(connection, problems)

        await self._steady.run(step)

    async def problems(self, limit: int | None) -> list[OldRowProblem]:
        async def step(connection: psycopg.AsyncConnection[Any]) -> list[Any]:
            return await (await connection.execute(QUERIES["read_problems"], [self._key, limit])).fetchall()

        found = await self._steady.run(step)
        return [OldRowProblem(number, row_id, msgspec.Raw(verdict.encode())) for number, row_id, verdict in found]

    async def close(self) -> None:
        await self._steady.close()

    async def move(
        self,
        reached: SortKey | None,
        counts: Counts,
        problems: Sequence[OldRowProblem] = (),
        *,
        finished: bool = False,
        forget_from: int | None = None,
    ) -> None:
        """Everything up to a position was processed, and these rows could not be recorded."""
        values = {
            "backfill": self._key, "name": self._name, "position": None if reached is None else list(reached),
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

    async def _add(self, connection: psycopg.AsyncConnection[Any], problems: Sequence[OldRowProblem]) -> None:
        for problem in problems:
            values = [self._key, problem.row, problem.id, bytes(problem.verdict).decode()]
            await connection.execute(QUERIES["add_problem"], values)
