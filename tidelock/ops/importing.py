"""Importing: a file's rows into the ledger, in their order, each once, however often it is stopped and run again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import msgspec

from tidelock.errors import SettingsError
from tidelock.model import Answer, Conflict, Rejected, Verdict
from tidelock.ops.files.mapping import ColumnMap
from tidelock.ops.files.outcome import Imported, RowProblem
from tidelock.ops.files.position import Position, digest_of
from tidelock.ops.files.rows import RowFile, format_of, open_rows
from tidelock.ops.files.sender import Sender
from tidelock.ops.files.sendings import Chunk, Defaults, chunks
from tidelock.postgres.database import Database
from tidelock.postgres.reconnect import database_errors

PROBLEMS_SHOWN = 10
# Sent together: one is admitted while the one ahead of it is recorded.
_CHUNKS_TOGETHER = 4


@dataclass(frozen=True, slots=True)
class ImportFile:
    """What to import, and what its rows are meant to be."""

    path: Path
    format: str | None = None
    stream: str | None = None
    tenant_id: str | None = None
    #: `column=field`, as on the command line
    mapping: tuple[str, ...] = ()


class Importing:
    """One run. `told` is called with the rows this run has done and the part of the file that was read."""

    def __init__(
        self,
        file: ImportFile,
        sender: Sender,
        chunk_events: int,
        rejects: Path | None,
        told: Callable[[int, float], None],
    ) -> None:
        self._file = file
        self._sender = sender
        self._chunk_events = chunk_events
        self._rejects = rejects
        self._told = told
        self._digest = ""
        self.result = Imported()
        #: set it to stop behind what is being recorded
        self.stop = sender.stop

    async def run(self, database: Database, *, restart: bool) -> Imported:
        """Import what is left of the file, or all of it again. Raises SettingsError for a file that cannot be read."""
        mapping = ColumnMap(self._file.mapping)
        file_format = format_of(self._file.path, self._file.format)
        self._digest = await asyncio.to_thread(digest_of, self._file.path)
        position = Position(database, self._position_key(file_format, mapping), self._file.path)
        rows = open_rows(self._file.path, file_format, mapping)
        try:
            if not rows.names_stream and self._file.stream is None:
                raise SettingsError(f"no column of {self._file.path} names the stream; give one with --stream or --map")
            with database_errors("import"):
                self.result.resumed_after = 0 if restart else await position.read()
                await self._import(rows, position)
        finally:
            rows.close()
            await position.close()
        return self.result

    async def _import(self, rows: RowFile, position: Position) -> None:
        self.result.rows_done = self.result.resumed_after
        self._start_rejects()
        batches = self._batches(rows)
        # The next rows are read while these are being recorded.
        reading = asyncio.create_task(asyncio.to_thread(next, batches, None))
        try:
            while (batch := await reading) is not None and not self.stop.is_set():
                reading = asyncio.create_task(asyncio.to_thread(next, batches, None))
                for chunk, verdicts in zip(batch, await self._sender.send(batch), strict=True):
                    self._count(chunk, verdicts)
                await position.move(self.result.rows_done, finished=False)
                self._told(self.result.rows_done - self.result.resumed_after, rows.fraction)
        finally:
            await asyncio.wait([reading])
        if batch is None:
            self.result.finished = True
            await position.move(self.result.rows_done, finished=True)

    def _batches(self, rows: RowFile) -> Iterator[list[Chunk]]:
        defaults = Defaults(self._digest, self._file.stream, self._file.tenant_id)
        batch: list[Chunk] = []
        try:
            for chunk in chunks(rows.rows(self.result.resumed_after), self._chunk_events, defaults):
                batch.append(chunk)
                if len(batch) == _CHUNKS_TOGETHER:
                    yield batch
                    batch = []
        except SettingsError:
            if batch:
                yield batch
            raise
        if batch:
            yield batch

    def _count(self, chunk: Chunk, verdicts: list[Verdict]) -> None:
        result = self.result
        answer = Answer.of(verdicts)
        result.accepted += answer.accepted
        result.duplicates += answer.duplicates
        result.conflicts += answer.conflicts
        result.rejected += answer.rejected
        result.skipped += chunk.skipped
        result.rows_done = chunk.last
        if answer.conflicts or answer.rejected:
            self._note(
                [
                    RowProblem(row, verdict)
                    for row, verdict in zip(chunk.rows, verdicts, strict=True)
                    if isinstance(verdict, Rejected | Conflict)
                ]
            )

    def _note(self, problems: list[RowProblem]) -> None:
        self.result.problems.extend(problems[: PROBLEMS_SHOWN - len(self.result.problems)])
        if self._rejects is not None:
            with open(self._rejects, "ab") as file:
                file.writelines(problem.encode() + b"\n" for problem in problems)

    def _start_rejects(self) -> None:
        """A run that goes on adds to what the earlier one wrote."""
        if self._rejects is None:
            return
        try:
            self._rejects.open("ab" if self.result.resumed_after else "wb").close()
        except OSError as error:
            raise SettingsError(f"{self._rejects} cannot be written: {error.strerror}") from None

    def _position_key(self, file_format: str, mapping: ColumnMap) -> str:
        """The same file, meant to be something else, is another import."""
        meant = [file_format, self._file.stream, self._file.tenant_id, mapping.canonical]
        return f"{self._digest}:{sha256(msgspec.json.encode(meant)).hexdigest()[:16]}"
