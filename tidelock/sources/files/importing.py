"""Importing: a file's rows into the ledger, in order of time, each once, however often it is stopped and run again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any, Protocol

import msgspec
import psycopg

from tidelock.decimals import has_long_number
from tidelock.errors import SettingsError
from tidelock.model import Answer, Conflict, Rejected, Verdict
from tidelock.postgres.database import Database
from tidelock.postgres.queries import load
from tidelock.postgres.reconnect import Steady, database_errors
from tidelock.sources.fields import ColumnMap
from tidelock.sources.files.chunks import Defaults, FileChunk, chunks
from tidelock.sources.files.order import InOrder, SortRoom
from tidelock.sources.files.plainfile import open_file
from tidelock.sources.files.rows import FileRow, RowFile, format_of, open_rows
from tidelock.sources.sender import Sender

QUERIES = load("tidelock.sources", "sql/imports.sql")

PROBLEMS_SHOWN = 10
# Sent together: one is admitted while the one ahead of it is recorded.
_CHUNKS_TOGETHER = 4
# A batchId has up to 255 characters.
_BATCH_NAME_CHARACTERS, _BATCH_DIGITS = 200, 12


@dataclass(frozen=True, slots=True)
class ImportFile:
    """What to import, and the mapping of its rows."""

    path: Path
    format: str | None = None
    stream: str | None = None
    tenant_id: str | None = None
    #: `column=field`, as on the command line
    mapping: tuple[str, ...] = ()
    #: in the order of the file instead of that of time
    as_is: bool = False
    #: of rows that name none; None: named after the file
    batch_id: str | None = None

    def open(self) -> RowFile:
        """Its rows. Raises SettingsError if it cannot be read or does not name a stream."""
        rows = open_rows(self.path, format_of(self.path, self.format), ColumnMap(self.mapping))
        if not rows.names_stream and self.stream is None:
            rows.close()
            raise SettingsError(f"no column of {self.path} names the stream; name it with --stream or --map")
        return rows


class ImportProgress(Protocol):
    """Receives the progress of an import."""

    def begin(self, what: str) -> None:
        """What is done from now on: sorting, or importing."""

    def told(self, done: int, fraction: float) -> None:
        """Rows that are done of it, and how much of it that is."""


class FileRows:
    """A file's rows as an import takes them, each with its place: the number of the row, or its place by time."""

    def __init__(self, file: ImportFile, room: SortRoom) -> None:
        self._file = file
        self._as_is = file.open() if file.as_is else None
        self.order = None if file.as_is else InOrder(file.open, room)

    def sort(self, progress: ImportProgress, stopped: Callable[[], bool]) -> bool:
        """Find the order, where there is one to find; False: it was stopped."""
        if self.order is None:
            return True
        progress.begin("sorting")
        return self.order.read(progress.told, stopped)

    def behind(self, place: int) -> Iterator[tuple[int, FileRow]]:
        if self.order is not None:
            yield from self.order.rows(place)
        elif self._as_is is not None:
            for row in self._as_is.rows(place):
                yield row.number, row

    def fraction(self, place: int) -> float:
        """How much of the file lies before it."""
        if self._as_is is not None:
            return self._as_is.fraction
        return place / self.order.count if self.order is not None and self.order.count else 1.0

    def close(self) -> None:
        if self._as_is is not None:
            self._as_is.close()
        if self.order is not None:
            self.order.close()


@dataclass(frozen=True, slots=True)
class RowProblem:
    """A row that is not in the ledger as in the file."""

    row: FileRow
    verdict: Rejected | Conflict

    def encode(self) -> bytes:
        """As JSON: its number, the verdict, and the row itself, as text where readers cannot parse it."""
        told: dict[str, object] = {"row": self.row.number, **msgspec.to_builtins(self.verdict)}
        if isinstance(self.row.text, bytes):
            told["event"] = _as_json(self.row.text)
        return msgspec.json.encode(told)


@dataclass(slots=True)
class Imported:
    """Counts of rows by outcome."""

    accepted: int = 0
    duplicates: int = 0
    conflicts: int = 0
    rejected: int = 0
    #: control events of an export
    skipped: int = 0
    #: the position of an earlier run
    resumed_after: int = 0
    rows_done: int = 0
    finished: bool = False
    #: of rows that name none
    batch_id: str = ""
    #: the first of them
    problems: list[RowProblem] = field(default_factory=list)


class Importing:
    """One run. `room` is what sorting may take."""

    def __init__(
        self, file: ImportFile, sender: Sender, chunk_events: int, room: SortRoom, *, rejects: Path | None = None
    ) -> None:
        self._file = file
        self._sender = sender
        self._chunk_events = chunk_events
        self._room = room
        self._rejects = rejects
        self._digest = ""
        self.result = Imported()
        #: set it to stop after what is being recorded
        self.stop = sender.stop

    async def run(self, database: Database, progress: ImportProgress, *, restart: bool) -> Imported:
        """Import the rest of the file, or all of it again. Raises SettingsError for a file that cannot be read."""
        self._digest = await asyncio.to_thread(digest_of, self._file.path)
        self.result.batch_id = self._file.batch_id or batch_of(self._file.path, self._digest)
        position = ImportPosition(database, self._position_key(), self._file.path)
        rows = FileRows(self._file, self._room)
        try:
            with database_errors("import"):
                done = 0 if restart else await position.read()
                self.result.resumed_after = self.result.rows_done = done
                self._start_rejects()
                if await asyncio.to_thread(rows.sort, progress, self.stop.is_set):
                    progress.begin("importing")
                    await self._import(rows, position, progress)
        finally:
            rows.close()
            await position.close()
        return self.result

    async def _import(self, rows: FileRows, position: ImportPosition, progress: ImportProgress) -> None:
        batches = self._batches(rows)
        # The next rows are read while these are being recorded.
        reading = asyncio.create_task(asyncio.to_thread(next, batches, None))
        try:
            while (batch := await reading) is not None and not self.stop.is_set():
                reading = asyncio.create_task(asyncio.to_thread(next, batches, None))
                for chunk, verdicts in zip(batch, await self._sender.send(batch), strict=True):
                    self._count(chunk, verdicts)
                done = self.result.rows_done
                await position.move(done, finished=False)
                progress.told(done - self.result.resumed_after, rows.fraction(done))
        finally:
            await asyncio.wait([reading])
        if batch is None:
            self.result.finished = True
            await position.move(self.result.rows_done, finished=True)

    def _batches(self, rows: FileRows) -> Iterator[list[FileChunk]]:
        defaults = Defaults(self._digest, self._file.stream, self._file.tenant_id, self.result.batch_id)
        batch: list[FileChunk] = []
        try:
            for chunk in chunks(rows.behind(self.result.resumed_after), self._chunk_events, defaults):
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

    def _count(self, chunk: FileChunk, verdicts: list[Verdict]) -> None:
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
        """A resumed run appends to what the earlier one wrote."""
        if self._rejects is None:
            return
        try:
            self._rejects.open("ab" if self.result.resumed_after else "wb").close()
        except OSError as error:
            raise SettingsError(f"{self._rejects} cannot be written: {error.strerror}") from None

    def _position_key(self) -> str:
        """The same file, meant to be something else or taken in another order, is another import."""
        file_format = format_of(self._file.path, self._file.format)
        meant: list[object] = [file_format, self._file.stream, self._file.tenant_id]
        meant.append(ColumnMap(self._file.mapping).canonical)
        if not self._file.as_is:
            meant.append("by time")
        return f"{self._digest}:{sha256(msgspec.json.encode(meant)).hexdigest()[:16]}"


class ImportPosition:
    """The position of one import. It survives a restart of the database, as the import does."""

    def __init__(self, database: Database, key: str, path: Path) -> None:
        self._database = database
        self._key = key
        self._name = path.name
        # A lost position only costs repeats.
        session = "SET synchronous_commit = off"
        self._steady = Steady(database, "tidelock import", session=session, patience=database.patience)

    async def read(self) -> int:
        """0 also if the file was fully imported: then all of it is read again."""

        async def step(connection: psycopg.AsyncConnection[Any]) -> Any:
            return await (await connection.execute(QUERIES["read_position"], [self._key])).fetchone()

        row = await self._steady.run(step)
        return 0 if row is None or row[1] else int(row[0])

    async def move(self, rows: int, *, finished: bool) -> None:
        values = {"file": self._key, "name": self._name, "rows": rows, "finished": finished}
        await self._steady.run(lambda connection: connection.execute(QUERIES["move_position"], values))

    async def close(self) -> None:
        await self._steady.close()


def batch_of(path: Path, digest: str) -> str:
    """The batch of a file's rows: the same however often the file is imported."""
    return f"{path.name[:_BATCH_NAME_CHARACTERS]}:{digest[:_BATCH_DIGITS]}"


def digest_of(path: Path) -> str:
    """The identity of a file, whatever its name."""
    with open_file(path) as file:
        try:
            return file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise SettingsError(f"{path} cannot be read: {error.strerror}") from None


def _as_json(text: bytes) -> msgspec.Raw | str:
    try:
        plain = text.decode()
        if has_long_number(text):
            # Readers of the report would lose all of it.
            return plain.rstrip("\r\n")
        return msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text.decode(errors="replace").rstrip("\r\n")
