"""`bench fold`: the fold of a backlog beside plain sums over the same events, on a ledger that is thrown away."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg

from tidelock.definitions import Definitions, parse_definitions
from tidelock.fold import folder as folding
from tidelock.fold.folder import Folder
from tidelock.fold.ranges import next_range
from tidelock.fold.session import Spark
from tidelock.fold.store import Store
from tidelock.fold.tables import SCHEMA
from tidelock.ledger.database import Database
from tidelock.ops.bench import memory, scratch
from tidelock.ops.bench.backlog import Backlog, Folded
from tidelock.ops.bench.limits import Limits, check_duckdb
from tidelock.ops.bench.stopwatch import Stopwatch
from tidelock.ops.place import migrate_ledger, open_database
from tidelock.settings import Settings

Say = Callable[[str], None]
#: names and values of one column of the result
Figures = dict[str, float | int | None]

#: what is timed of a fold, in its order, and what the figures call it
STEPS = {
    "read": "shareRead",
    "stored": "shareStored",
    "counters": "shareCounters",
    "versions": "shareVersions",
    "write": "shareWrite",
    "record": "shareRecord",
    "rest": "shareRest",
}
_COMPILED = "spark.sql.codegen.wholeStage"


@dataclass(frozen=True, slots=True)
class Run:
    """One fold of the whole backlog."""

    seconds: float
    #: by step
    steps: dict[str, float]
    folded: Folded
    driver_mb: int | None
    jvm_mb: int | None


@dataclass(slots=True)
class _Seconds:
    """Of each round, in seconds."""

    jdbc: list[float] = field(default_factory=list)
    parquet: list[float] = field(default_factory=list)
    duckdb: list[float] = field(default_factory=list)


def measure(settings: Settings, sizes: Sequence[int], events: int, say: Say, *, place: Path | None) -> list[Figures]:
    """Figures for each number of customers, on a Spark and a Postgres of its own in `place`."""
    check_duckdb()
    with scratch.directory(place) as data:
        scratch.take_jars(settings.data, data)
        own = replace(settings, data=data, database_url=None)
        with open_database(own) as server, Spark(own.spark, data) as spark:
            found = []
            for customers in sizes:
                with _database(server, f"bench_{customers}") as database:
                    migrate_ledger(database)
                    found.append(measure_ledger(spark, database, own, customers, events, say, data))
            return found


def measure_ledger(
    spark: Spark, database: Database, settings: Settings, customers: int, events: int, say: Say, directory: Path
) -> Figures:
    """Figures for so many customers, in an empty ledger. Limits before, between and after: the machine may change."""
    say(f"filling a ledger: {events:,} events of {customers:,} customers")
    backlog = Backlog(database, events, customers, settings.partition_events)
    with _compiled(spark):
        limits = Limits(spark, database, events, directory / f"events-{customers}")
        _warm(spark, backlog, limits, settings)
        seconds = _Seconds()
        _limits(limits, seconds, say)
        changes = _fold(spark, backlog, settings, _definitions(live=True))
        say(f"  fold: {events / changes.seconds:,.0f} ev/s")
        _limits(limits, seconds, say)
        alone = _fold(spark, backlog, settings, _definitions(live=False))
        say(f"  fold, live = false: {events / alone.seconds:,.0f} ev/s")
        _limits(limits, seconds, say)
    return _figures(customers, events, seconds, changes, alone)


def _definitions(*, live: bool) -> Definitions:
    return parse_definitions({"meters": {"api_calls": {"lateness": "1h", "live": live}}})


def _warm(spark: Spark, backlog: Backlog, limits: Limits, settings: Settings) -> None:
    """Every step once, over a range that is large enough to be read as the large ones are."""
    limits.jdbc_s()
    limits.parquet_s()
    _fold(spark, backlog, settings, _definitions(live=True), events_max=min(100_000, backlog.events), ranges_max=1)


def _limits(limits: Limits, seconds: _Seconds, say: Say) -> None:
    seconds.jdbc.append(limits.jdbc_s())
    seconds.parquet.append(limits.parquet_s())
    seconds.duckdb.append(limits.duckdb_s())
    say(
        f"  plain sums: Spark from Postgres {seconds.jdbc[-1]:.2f} s, from Parquet {seconds.parquet[-1]:.2f} s, "
        f"DuckDB {seconds.duckdb[-1]:.2f} s"
    )


def _fold(
    spark: Spark,
    backlog: Backlog,
    settings: Settings,
    definitions: Definitions,
    *,
    events_max: int | None = None,
    ranges_max: int | None = None,
) -> Run:
    """Fold from the first event, in the ranges that the runner would take."""
    backlog.forget()
    store = Store(backlog.database, SCHEMA, "fold")
    limit = events_max or settings.fold.range_events_max
    watch = Stopwatch()
    try:
        folder = Folder(spark, store, backlog.database, definitions)
        for pid in (os.getpid(), spark.pid):
            memory.forget_peak(pid)
        position, ranges = store.position(), 0
        started = time.perf_counter()
        with watch.running("rest"):
            while (found := next_range(store, position, limit)) and ranges != ranges_max:
                with _watched(watch, folder, store):
                    folder.fold(found.lo, found.hi)
                position, ranges = found.hi, ranges + 1
        seconds = time.perf_counter() - started
    finally:
        store.rollback()
        store.close()
    folded = backlog.folded() if ranges_max is None else Folded(0, 0, 0, 0)
    return Run(seconds, watch.seconds, folded, memory.peak_mb(os.getpid()), memory.peak_mb(spark.pid))


@contextmanager
def _watched(watch: Stopwatch, folder: Folder, store: Store) -> Iterator[None]:
    """The first step that runs reads the range and prepares it: Spark does nothing before it must."""
    ran = iter(["read"])
    with ExitStack() as stack:
        watched = watch.watching
        stack.enter_context(watched(folder, {"_run": lambda: next(ran, "counters"), "_named": "versions"}))
        stack.enter_context(watched(folding, {"chained": "versions", "appended": "versions"}))
        stack.enter_context(watched(folder, {"_adjusted": "versions", "_watched": "versions"}))
        stack.enter_context(watched(folder, {"_awaited": "stored", "_show": "stored"}))
        stack.enter_context(watched(store, {"apply": "write", "_record": "record"}))
        yield


def _figures(customers: int, events: int, seconds: _Seconds, changes: Run, alone: Run) -> Figures:
    jdbc, parquet, duckdb = map(statistics.median, (seconds.jdbc, seconds.parquet, seconds.duckdb))
    found: Figures = {
        "customers": customers,
        "events": events,
        "counters": changes.folded.counters,
        "adjustments": changes.folded.adjustments,
        "sparkSumsEventsPerSecond": round(events / jdbc),
        "sparkParquetSumsEventsPerSecond": round(events / parquet),
        "duckdbSumsEventsPerSecond": round(events / duckdb),
        "foldEventsPerSecond": round(events / changes.seconds),
        "foldRatioToSparkSums": round(jdbc / changes.seconds, 3),
        "foldRatioToDuckdbSums": round(duckdb / changes.seconds, 3),
        "changes": changes.folded.changes,
        "bytesPerChange": round(changes.folded.change_bytes / max(changes.folded.changes, 1), 1),
    }
    found |= {name: round(changes.steps.get(step, 0.0) / changes.seconds, 3) for step, name in STEPS.items()}
    return found | {
        "driverPeakMb": changes.driver_mb,
        "jvmPeakMb": changes.jvm_mb,
        "foldAloneEventsPerSecond": round(events / alone.seconds),
        "foldAloneRatioToSparkSums": round(jdbc / alone.seconds, 3),
        "foldAloneRatioToDuckdbSums": round(duckdb / alone.seconds, 3),
    }


@contextmanager
def _database(server: Database, name: str) -> Iterator[Database]:
    """A database of its own, gone afterwards."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        try:
            yield Database(server.url.rpartition("/")[0] + f"/{name}")
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@contextmanager
def _compiled(spark: Spark) -> Iterator[None]:
    """Steps compiled, as Spark does by itself and the fold does for large ranges."""
    conf = spark.session.conf
    before = conf.get(_COMPILED)
    conf.set(_COMPILED, "true")
    try:
        yield
    finally:
        if before is not None:
            conf.set(_COMPILED, before)
