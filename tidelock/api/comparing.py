"""Comparing meters in a ledger that is served: `tidelock meters diff` in a separate process, one run at a time.

The process has a Spark of its own. `python -m tidelock.api.comparing` is that process; its task comes on standard
input, and it writes what differs to a file without a name, which goes with this process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

import msgspec

from tidelock.errors import AlreadyRunning, NotFound, TidelockError
from tidelock.fold.redefine.differences import Differing
from tidelock.http.csvpages import csv_line
from tidelock.instants import format_instant
from tidelock.postgres.database import Database
from tidelock.settings import Settings
from tidelock.settings.groups import SparkSettings

# How often progress is reported; and how long a process that is told to stop may take to drop what it has folded.
_TOLD_S, _STOP_S = 0.25, 10.0
_GENTLY = 10
_CHUNK_BYTES, _CHUNK_ROWS = 2**20, 1000

Progress = Literal["none", "running", "done", "stopped", "failed"]


class MeterComparison(msgspec.Struct, frozen=True, rename="camel"):
    """A comparison of meters: `done` of `total` sequences while it is running, what differs afterwards."""

    state: Progress
    started_at: str | None = None
    finished_at: str | None = None
    done: int = 0
    total: int = 0
    #: those that are new, different or gone; null until it is done
    meters: Sequence[str] | None = None
    #: the sequence through which both sides were folded
    through_sequence: int | None = None
    #: counters that differ; `items` has the first of them, CSV all
    count: int | None = None
    #: counters that differ, the greatest difference of `value` first
    items: list[Differing] = []
    #: why it failed
    error: str | None = None


class WantedComparison(msgspec.Struct, frozen=True):
    """What to compare with the definitions in force."""

    #: the text of a tidelock.toml
    definitions: str
    #: only this meter; null: all
    metric: str | None


class _Assignment(msgspec.Struct, frozen=True):
    wanted: WantedComparison
    url: str
    data: Path
    spark: SparkSettings
    plugins: Sequence[str]
    range_events_max: int
    #: the open file for what differs
    file: int


class _News(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the other process."""

    done: int = 0
    total: int = 0
    meters: Sequence[str] | None = None
    through_sequence: int = 0
    count: int = 0
    error: str | None = None


class Comparing:
    """The last run, and the current one."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self.state = MeterComparison("none")
        self._run: asyncio.Task[None] | None = None
        self._file: IO[bytes] | None = None

    def start(self, wanted: WantedComparison) -> MeterComparison:
        """Start one. Raises AlreadyRunning."""
        if self.state.state == "running":
            raise AlreadyRunning(
                f"a comparison is running since {self.state.started_at}; wait until it finishes, or stop it with "
                "DELETE /v1/meters/diff"
            )
        self.state = MeterComparison("running", started_at=_now())
        self._run = asyncio.create_task(self._follow(wanted, self._run), name="compare meters")
        return self.state

    async def stop(self) -> MeterComparison:
        if self.state.state == "running" and self._run is not None:
            self._end("stopped")
            # What it has folded is dropped meanwhile; the next run waits for that.
            self._run.cancel()
        return self.state

    async def close(self) -> None:
        if self._run is not None:
            self._run.cancel()
            await asyncio.gather(self._run, return_exceptions=True)
        self._close_file()

    def first(self, limit: int) -> MeterComparison:
        """With the greatest differences."""
        if self.state.state != "done":
            return self.state
        lines = islice(_lines(self._found()), limit)
        return msgspec.structs.replace(self.state, items=[_decoded(line) for line in lines])

    def csv(self) -> Iterator[bytes]:
        """All that differs, in chunks. Raises NotFound before the first if there is no result."""
        found = self._found()

        def chunks() -> Iterator[bytes]:
            # A reader of its own: the next run closes ours.
            with os.fdopen(os.dup(found.fileno()), "rb") as file:
                yield csv_line([field.encode_name for field in msgspec.structs.fields(Differing)]).encode()
                lines = (msgspec.structs.astuple(_decoded(line)) for line in _lines(file))
                while chunk := "".join(map(csv_line, islice(lines, _CHUNK_ROWS))):
                    yield chunk.encode()

        return chunks()

    def _found(self) -> IO[bytes]:
        if self.state.state != "done" or self._file is None:
            known = "a comparison is running" if self.state.state == "running" else "there is no finished comparison"
            raise NotFound(f"{known}; POST /v1/meters/diff starts one, GET says when it is done")
        return self._file

    async def _follow(self, wanted: WantedComparison, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await asyncio.gather(previous, return_exceptions=True)
        try:
            self._close_file()
            self._file = tempfile.TemporaryFile(dir=self._settings.data)  # noqa: SIM115
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", __name__, pass_fds=[self._file.fileno()], start_new_session=True,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            self._end("failed", error=f"the comparison could not be started: {error}")
            return
        try:
            await self._read(process, wanted, self._file.fileno())
        finally:
            await _ended(process)

    async def _read(self, process: asyncio.subprocess.Process, wanted: WantedComparison, file: int) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        own = self._settings
        work = _Assignment(
            wanted, self._database.url, own.data.absolute(), spark=own.spark, plugins=list(own.plugins),
            range_events_max=own.fold.range_events_max, file=file,
        )  # fmt: skip
        process.stdin.write(msgspec.json.encode(work, enc_hook=str))
        process.stdin.close()
        async for line in process.stdout:
            told = msgspec.json.decode(line, type=_News)
            if told.error is not None:
                self._end("failed", error=told.error)
                return
            if told.meters is not None:
                # It drops what it has folded before it exits.
                await process.wait()
                found = {"meters": told.meters, "through_sequence": told.through_sequence, "count": told.count}
                self._end("done", **found)
                return
            self.state = msgspec.structs.replace(self.state, done=told.done, total=told.total)
        self._end("failed", error="the process exited before it finished; see the server's log")

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _end(self, state: Progress, **found: Any) -> None:
        self.state = msgspec.structs.replace(self.state, state=state, finished_at=_now(), **found)


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            pass
        finally:
            # The next run drops what this one leaves.
            with suppress(ProcessLookupError):
                process.kill()
    await process.wait()


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Without the file's position, which several readers would share."""
    at, rest = 0, b""
    while chunk := os.pread(file.fileno(), _CHUNK_BYTES, at):
        at += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


def _decoded(line: bytes) -> Differing:
    return msgspec.json.decode(line, type=Differing)


def _now() -> str:
    return format_instant(time.time_ns() // 1_000_000 * 1_000_000)


def _compare() -> None:
    work = msgspec.json.decode(sys.stdin.buffer.read(), type=_Assignment, dec_hook=lambda type_, text: type_(text))
    told_at = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= _TOLD_S:
            told_at = time.monotonic()
            _tell(_News(done, total))

    try:
        _tell(_compared(work, progress))
    except TidelockError as error:
        _tell(_News(error=error.message))


def _compared(work: _Assignment, progress: Callable[[int, int], None]) -> _News:
    # Only here: the server has no use for Spark.
    from tidelock.api.meters import read_definitions
    from tidelock.eventtimes import check_event_times, load_plugins
    from tidelock.fold.redefine.comparison import compared
    from tidelock.spark.java import check_java
    from tidelock.spark.runtime import Spark

    stop = threading.Event()
    load_plugins(work.plugins)
    definitions = read_definitions(work.wanted.definitions)
    check_event_times(definitions)
    check_java(work.spark.java)
    with Spark(work.spark, work.data) as spark:
        # Until now a signal simply ends this process, and the JVM with it.
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        with compared(
            spark, Database(work.url), definitions, metric=work.wanted.metric, range_events_max=work.range_events_max,
            stop=stop, progress=progress,
        ) as found:  # fmt: skip
            if found is None:
                return _News(error="the comparison was stopped")
            count = 0
            with os.fdopen(work.file, "wb", buffering=_CHUNK_BYTES) as file:
                for row in found.rows():
                    file.write(msgspec.json.encode(row) + b"\n")
                    count += 1
            return _News(meters=list(found.meters), through_sequence=found.through_sequence, count=count)


def _tell(told: _News) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    # Producers and readers go first.
    os.nice(_GENTLY)
    with suppress(BrokenPipeError, KeyboardInterrupt):
        _compare()
