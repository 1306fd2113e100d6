"""Runs: a whole backlog folded from its first event, timed by step and by range."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench import memory, scratch
from bench.backlog import Backlog, only_row
from bench.harness import Stopwatch
from tidelock.definitions import Definitions
from tidelock.fold.rangefold import RangeFold
from tidelock.fold.ranges import Pace, next_range
from tidelock.fold.source import RangeReader
from tidelock.fold.store import Store
from tidelock.ledger.opening import migrate_ledger, open_database
from tidelock.postgres.database import Database
from tidelock.settings import Settings
from tidelock.spark.runtime import Spark
from tidelock.tables import SCHEMA

#: names and values of one column of the result
Figures = dict[str, float | int | None]

#: of a fold that warms up
_WARM_EVENTS = 100_000
_COMPILED = "spark.sql.codegen.wholeStage"


@dataclass(frozen=True, slots=True)
class Run:
    """One fold of a backlog."""

    seconds: float
    #: by step
    steps: Mapping[str, float]
    #: cost of an event, by range
    event_s: tuple[float, ...]
    driver_mb: int | None
    jvm_mb: int | None
    #: of the Python worker that had most
    worker_mb: int | None
    #: what the processes that took part have worked, by who it was
    processor_s: Mapping[str, float] = field(default_factory=dict)
    #: of the range that took longest
    longest_s: float = 0.0

    def microseconds(self, events: int) -> Figures:
        """Processor time of an event, by who worked."""
        return {
            f"{who}MicrosecondsPerEvent": round(worked * 1e6 / events, 2) for who, worked in self.processor_s.items()
        }

    def shares(self, names: Mapping[str, str]) -> Figures:
        """Of the whole time, by step; `names` says what the figures call it."""
        return {name: round(self.steps.get(step, 0.0) / self.seconds, 3) for step, name in names.items()}


@dataclass(frozen=True, slots=True)
class Workbench:
    """A Spark and a Postgres of its own."""

    spark: Spark
    server: Database
    #: that lead to nothing else
    settings: Settings

    @contextmanager
    def ledger(self, name: str) -> Iterator[Database]:
        """An empty ledger, gone afterwards."""
        with scratch.database(self.server, name) as database:
            migrate_ledger(database)
            yield database


@contextmanager
def workbench(settings: Settings, place: Path | None) -> Iterator[Workbench]:
    """In a directory of `place` that is thrown away."""
    with scratch.directory(place) as data:
        scratch.take_jars(settings.data, data)
        own = replace(settings, data=data, database_url=None)
        with open_database(own) as server, Spark(own.spark, data) as spark:
            yield Workbench(spark, server, own)


def fold(
    spark: Spark,
    backlog: Backlog,
    definitions: Definitions,
    events_max: int,
    *,
    elsewhere: RangeReader | None = None,
    executors: Callable[[], Iterable[int]] = tuple,
) -> Run:
    """Fold everything, in the ranges that the runner would take; `executors` are those of a cluster's."""
    processors = memory.Processors(spark.pid, _postmaster(backlog.database), executors)
    before = processors.worked()
    run = _fold(spark, backlog, definitions, Pace(events_max, events_max), elsewhere=elsewhere)
    return replace(run, processor_s=processors.since(before))


def first_range(
    spark: Spark,
    backlog: Backlog,
    definitions: Definitions,
    events_max: int,
    waiting: Callable[[Database], None],
) -> Run:
    """The first range only, in tables that something waits in already."""
    return _fold(spark, backlog, definitions, Pace(events_max, events_max), ranges_max=1, waiting=waiting)


def burst(spark: Spark, backlog: Backlog, definitions: Definitions, pace: Pace) -> Run:
    """Everything, at the pace at which a runner takes it: that of a backlog that came all at once, with one event more
    that was recorded right after it."""
    backlog.record_another()
    return _fold(spark, backlog, definitions, pace)


def warm(spark: Spark, backlog: Backlog, definitions: Definitions, events: int = _WARM_EVENTS) -> None:
    """Every step once, over a range that is large enough to be read as the large ones are."""
    most = min(events, backlog.events)
    _fold(spark, backlog, definitions, Pace(most, most), ranges_max=1)


def _fold(
    spark: Spark,
    backlog: Backlog,
    definitions: Definitions,
    pace: Pace,
    *,
    ranges_max: int | None = None,
    elsewhere: RangeReader | None = None,
    waiting: Callable[[Database], None] = lambda _: None,
) -> Run:
    watch, event_s, range_s = Stopwatch(), list[float](), list[float]()
    store = Store(backlog.database, SCHEMA, "fold", observe=watch.running)
    range_fold = RangeFold(spark, store, backlog.database, definitions, elsewhere=elsewhere)
    try:
        backlog.forget(range_fold.tables)
        waiting(backlog.database)
        for pid in (os.getpid(), spark.pid):
            memory.forget_peak(pid)
        position = store.position()
        started = before = time.perf_counter()
        with watch.running("rest"):
            while (found := next_range(store, position, pace.events)) and len(event_s) != ranges_max:
                range_fold.apply(found.lo, found.hi)
                now = time.perf_counter()
                range_s.append(now - before)
                event_s.append(range_s[-1] / (found.hi - found.lo))
                pace.succeeded(found.hi - found.lo, range_s[-1])
                position, before = found.hi, now
        seconds = time.perf_counter() - started
    finally:
        range_fold.close()
        store.rollback()
        store.close()
    peaks = memory.peak_mb(os.getpid()), memory.peak_mb(spark.pid), memory.worker_peak_mb(spark.pid)
    return Run(seconds, watch.seconds, tuple(event_s), *peaks, longest_s=max(range_s, default=0.0))


def _postmaster(database: Database) -> int:
    """The process that all others of Postgres are children of, dead ones too."""
    with database.connect_sync(name="tidelock bench") as connection:
        (backend,) = only_row(connection.execute("SELECT pg_backend_pid()").fetchone())
        return memory.parent(backend)


@contextmanager
def compiled(spark: Spark) -> Iterator[None]:
    """Steps compiled, as Spark does by itself and the fold does for large ranges."""
    conf = spark.session.conf
    before = conf.get(_COMPILED)
    conf.set(_COMPILED, "true")
    try:
        yield
    finally:
        if before is not None:
            conf.set(_COMPILED, before)
