"""Comparing meters in a ledger that is served: `tidelock meters diff`, run in the background.

The process has a Spark of its own. It writes what differs to a file without a name, which goes with the server.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO

import msgspec

from tidelock.api.background import Background, Report, RunState, run_task
from tidelock.errors import AlreadyRunning, NotFound
from tidelock.fold.redefine.differences import Differing
from tidelock.http.csvpages import csv_line
from tidelock.postgres.database import Database
from tidelock.settings import Settings
from tidelock.settings.groups import SparkSettings

_CHUNK_BYTES, _CHUNK_ROWS = 2**20, 1000


class MeterComparison(RunState, frozen=True, rename="camel"):
    """A comparison of meters: `done` of `total` sequences while it is running, what differs afterwards."""

    #: those that are new, different or gone; null until it is done
    meters: Sequence[str] | None = None
    #: the sequence through which both sides were folded
    through_sequence: int | None = None
    #: counters that differ; `items` has the first of them, CSV all
    count: int | None = None
    #: counters that differ, the greatest difference of `value` first
    items: list[Differing] = msgspec.field(default_factory=list)


class DiffRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Definitions to compare with those in force."""

    #: the text of a tidelock.toml
    definitions: str
    #: only this meter; null: all that differ
    metric: str | None = None


class _CompareTask(msgspec.Struct, frozen=True):
    wanted: DiffRequest
    url: str
    data: Path
    spark: SparkSettings
    plugins: Sequence[str]
    range_events_max: int
    #: the open file for what differs
    file: int


class Comparing(Background[MeterComparison]):
    """The current comparison, or the last one."""

    def __init__(self, database: Database, settings: Settings) -> None:
        super().__init__(__name__, "comparison", MeterComparison("none"))
        self._database = database
        self._settings = settings
        self._file: IO[bytes] | None = None

    def start(self, wanted: DiffRequest) -> MeterComparison:
        """Start one. Raises AlreadyRunning."""
        if self.state.state == "running":
            raise AlreadyRunning(
                f"a comparison is running since {self.state.started_at}; wait until it finishes, or stop it with "
                "DELETE /v1/meters/diff"
            )
        return self._begin(lambda: self._prepared(wanted))

    async def close(self) -> None:
        await super().close()
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
                lines = differing_csv(_decoded(line) for line in _lines(file))
                while chunk := "".join(islice(lines, _CHUNK_ROWS)):
                    yield chunk.encode()

        return chunks()

    def _found(self) -> IO[bytes]:
        if self.state.state != "done" or self._file is None:
            known = "a comparison is running" if self.state.state == "running" else "there is no finished comparison"
            raise NotFound(f"{known}; POST /v1/meters/diff starts one, GET says when it is done")
        return self._file

    def _prepared(self, wanted: DiffRequest) -> tuple[_CompareTask, Sequence[int]]:
        self._close_file()
        own = self._settings
        self._file = tempfile.TemporaryFile(dir=own.data)  # noqa: SIM115
        file = self._file.fileno()
        task = _CompareTask(
            wanted, self._database.url, own.data.absolute(), spark=own.spark, plugins=list(own.plugins),
            range_events_max=own.fold.range_events_max, file=file,
        )  # fmt: skip
        return task, [file]

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def differing_csv(rows: Iterable[Differing]) -> Iterator[str]:
    """Lines of CSV, the first of them with names."""
    yield csv_line(field.encode_name for field in msgspec.structs.fields(Differing))
    for row in rows:
        yield csv_line(msgspec.structs.astuple(row))


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Without the file's position, which several readers would share."""
    at, rest = 0, b""
    while chunk := os.pread(file.fileno(), _CHUNK_BYTES, at):
        at += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


def _decoded(line: bytes) -> Differing:
    return msgspec.json.decode(line, type=Differing)


def _compared(task: _CompareTask, report: Report) -> RunState:
    # Only here: the server has no use for Spark.
    from tidelock.api.meters import read_definitions
    from tidelock.eventtimes import check_event_times, load_plugins
    from tidelock.fold.redefine.comparison import compared
    from tidelock.spark.java import check_java
    from tidelock.spark.runtime import Spark

    stop = threading.Event()
    load_plugins(task.plugins)
    definitions = read_definitions(task.wanted.definitions)
    check_event_times(definitions)
    check_java(task.spark.java)
    with Spark(task.spark, task.data) as spark:
        # Until now a signal simply ends this process, and the JVM with it.
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        with compared(
            spark, Database(task.url), definitions, metric=task.wanted.metric, range_events_max=task.range_events_max,
            stop=stop, progress=report,
        ) as found:  # fmt: skip
            if found is None:
                return RunState("failed", error="the comparison was stopped")
            count = 0
            with os.fdopen(task.file, "wb", buffering=_CHUNK_BYTES) as file:
                for row in found.rows():
                    file.write(msgspec.json.encode(row) + b"\n")
                    count += 1
            return MeterComparison(
                "done", meters=list(found.meters), through_sequence=found.through_sequence, count=count
            )


if __name__ == "__main__":
    run_task(_CompareTask, _compared)
