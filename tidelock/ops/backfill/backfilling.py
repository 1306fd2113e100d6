"""Backfilling: the rows of an older table into the ledger, in their order, each once, however often it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from dataclasses import replace
from hashlib import sha256

import msgspec

from tidelock.model import Conflict, Problem, Rejected, Verdict
from tidelock.ops.backfill.chunks import EventMaker, OldChunk, chunks
from tidelock.ops.backfill.oldtable import OldTable
from tidelock.ops.backfill.outcome import Backfilled, RowProblem
from tidelock.ops.backfill.position import Position
from tidelock.ops.backfill.statements import Place
from tidelock.ops.files.sender import Sender
from tidelock.postgres.database import Database
from tidelock.postgres.reconnect import database_errors

PROBLEMS_SHOWN = 10
# Sent together: one is admitted while the one ahead of it is recorded.
_CHUNKS_TOGETHER = 4


class Backfilling:
    """One run. `told` is called with the rows this run has done and the part of them that it is."""

    def __init__(self, table: OldTable, sender: Sender, chunk_events: int, told: Callable[[int, float], None]) -> None:
        assert table.columns is not None, "a table is chosen first"
        self._table = table
        self._maker = EventMaker(table.columns, table.name)
        self._sender = sender
        self._chunk_events = chunk_events
        self._told = told
        self._place: Place | None = None
        self.result = Backfilled()
        #: set it to stop behind what is being recorded
        self.stop = sender.stop

    async def run(self, database: Database, *, restart: bool) -> Backfilled:
        """Record what is left of the table, or look at all of it again."""
        position = Position(database, self._key(), f"{self._table.place} {self._table.name}")
        with database_errors("backfill"):
            try:
                if restart:
                    await position.begin_anew()
                self._place, self.result.total = await position.read()
                self.result.resumed_after = self.result.total.rows
                await self._record(position)
                await self._finish(position)
            finally:
                await position.close()
        return self.result

    async def all_problems(self, database: Database) -> list[RowProblem]:
        """Every row that could not be recorded, by whichever run."""
        position = Position(database, self._key(), "")
        try:
            return await position.problems(None)
        finally:
            await position.close()

    async def _record(self, position: Position) -> None:
        left = await asyncio.to_thread(self._table.count, self._place)
        batches = self._batches()
        # The next rows are read while these are being recorded.
        reading = asyncio.create_task(asyncio.to_thread(next, batches, None))
        try:
            while (batch := await reading) is not None and not self.stop.is_set():
                reading = asyncio.create_task(asyncio.to_thread(next, batches, None))
                problems: list[RowProblem] = []
                for chunk, verdicts in zip(batch, await self._sender.send(batch), strict=True):
                    problems += self._count(chunk, verdicts)
                # Only now: a row that is not recorded yet is behind no stored position.
                await position.move(self._place, self.result.total, problems)
                done = self.result.counts.rows
                self._told(done, done / max(left, done, 1))
        finally:
            await asyncio.wait([reading])
            await asyncio.to_thread(batches.close)
        self.result.finished = batch is None

    async def _finish(self, position: Position) -> None:
        """What has no place is told of, and so is what was added where this run had been already."""
        result = self.result
        if result.finished:
            result.unplaced, ids = await asyncio.to_thread(self._table.unplaced)
            await position.note_unplaced([RowProblem.of(0, row_id, _UNPLACED) for row_id in ids])
            await position.move(self._place, result.total, finished=True)
            every, after = await asyncio.to_thread(lambda: (self._table.count(None), self._table.count(self._place)))
            result.behind = max(0, every - after - result.total.rows)
        result.problems = await position.problems(PROBLEMS_SHOWN)

    def _batches(self) -> Generator[list[OldChunk], None, None]:
        batch: list[OldChunk] = []
        rows = self._table.rows(self._place)
        for chunk in chunks(rows, self._chunk_events, self._maker, self.result.resumed_after):
            batch.append(chunk)
            if len(batch) == _CHUNKS_TOGETHER:
                yield batch
                batch = []
        if batch:
            yield batch

    def _count(self, chunk: OldChunk, verdicts: list[Verdict]) -> list[RowProblem]:
        self.result.counts.add(verdicts)
        self.result.total = replace(self.result.total)
        self.result.total.add(verdicts)
        self._place = chunk.place
        first = chunk.last - len(chunk.events) + 1
        return [
            RowProblem.of(first + index, chunk.ids[index], verdict)
            for index, verdict in enumerate(verdicts)
            if isinstance(verdict, Rejected | Conflict)
        ]

    def _key(self) -> str:
        """The same table, meant to be something else, is another backfill."""
        assert self._table.columns is not None
        meant = [self._table.place, self._table.name, self._table.columns.canonical]
        return sha256(msgspec.json.encode(meant)).hexdigest()


_UNPLACED = Rejected(Problem("invalid_event", "the row has no received_at or no id, so it has no place in the order"))
