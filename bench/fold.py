"""`bench fold`: the fold of a backlog beside plain sums over the same events, on a ledger that is thrown away."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench import runs
from bench.backlog import Backlog, Folded
from bench.harness import Rounds, Say
from bench.limits import Limits, check_duckdb
from bench.runs import Figures, Run
from tidelock.definitions import Definitions, parse_definitions
from tidelock.postgres.database import Database
from tidelock.settings import Settings
from tidelock.spark.runtime import Spark

#: what is timed of a fold, in its order, and what the figures call it; what Spark and its workers do is one step
STEPS = {
    "executors": "shareExecutors",
    "write": "shareWrite",
    "record": "shareRecord",
    "rest": "shareRest",
}
# Folds with changes after the first one, of which the median counts.
_FOLDS = 3
# The limits, as they are told.
_JDBC, _PARQUET, _DUCKDB = "Spark from Postgres", "from Parquet", "DuckDB"


def measure(settings: Settings, sizes: Sequence[int], events: int, say: Say, *, place: Path | None) -> list[Figures]:
    """Figures for each number of customers, on a Spark and a Postgres of its own in `place`."""
    check_duckdb()
    with runs.workbench(settings, place) as bench:
        found = []
        for customers in sizes:
            with bench.ledger(f"bench_{customers}") as database:
                own = bench.settings
                found.append(
                    measure_ledger(
                        bench.spark, database, own, customers=customers, events=events, say=say, directory=own.data
                    )
                )
        return found


def measure_ledger(
    spark: Spark,
    database: Database,
    settings: Settings,
    customers: int,
    events: int,
    say: Say,
    directory: Path,
    *,
    again: bool = True,
) -> Figures:
    """Figures for so many customers, in an empty ledger. Without `again` all is timed once, else medians count."""
    say(f"filling a ledger: {events:,} events of {customers:,} customers")
    backlog = Backlog(database, events, customers, settings.partition_events)
    range_events = settings.fold.range_events_max
    with runs.compiled(spark):
        limits = Limits(spark, database, events, directory / f"events-{customers}")
        ways = {_JDBC: limits.jdbc_s, _PARQUET: limits.parquet_s, _DUCKDB: limits.duckdb_s}
        rounds = Rounds("plain sums", ways, say)
        limits.jdbc_s()
        limits.parquet_s()
        # Java compiles what runs often: it takes about so long until nothing gets faster any more.
        first = runs.fold(spark, backlog, definitions(live=True), range_events)
        say(f"  fold, for the first time in its JVM: {events / first.seconds:,.0f} ev/s")
        rounds.run()
        folds = []
        for _ in range(_FOLDS if again else 1):
            folds.append(runs.fold(spark, backlog, definitions(live=True), range_events))
            folded = backlog.folded()
            say(f"  fold: {events / folds[-1].seconds:,.0f} ev/s")
            if again:
                rounds.run()
        changes = sorted(folds, key=lambda run: run.seconds)[len(folds) // 2]
        alone = runs.fold(spark, backlog, definitions(live=False), range_events)
        backlog.folded()
        say(f"  fold, live = false: {events / alone.seconds:,.0f} ev/s")
        if again:
            rounds.run()
    return _figures(customers, events, rounds, first, changes=changes, folded=folded, alone=alone)


def definitions(*, live: bool) -> Definitions:
    return parse_definitions({"meters": {"api_calls": {"lateness": "1h", "live": live}}})


def _figures(
    customers: int, events: int, rounds: Rounds, first: Run, changes: Run, folded: Folded, alone: Run
) -> Figures:
    jdbc, parquet, duckdb = map(rounds.median_s, (_JDBC, _PARQUET, _DUCKDB))
    found: Figures = {
        "customers": customers,
        "events": events,
        "counters": folded.counters,
        "adjustments": folded.adjustments,
        "sparkSumsEventsPerSecond": round(events / jdbc),
        "sparkParquetSumsEventsPerSecond": round(events / parquet),
        "duckdbSumsEventsPerSecond": round(events / duckdb),
        "foldFirstEventsPerSecond": round(events / first.seconds),
        "foldEventsPerSecond": round(events / changes.seconds),
        "foldRatioToSparkSums": round(jdbc / changes.seconds, 3),
        "foldRatioToDuckdbSums": round(duckdb / changes.seconds, 3),
        "changes": folded.changes,
        "bytesPerChange": round(folded.change_bytes / max(folded.changes, 1), 1),
    }
    return {
        **found,
        **changes.shares(STEPS),
        "driverPeakMb": changes.driver_mb,
        "jvmPeakMb": changes.jvm_mb,
        "workerPeakMb": changes.worker_mb,
        **_microseconds(changes, events),
        "foldAloneEventsPerSecond": round(events / alone.seconds),
        "foldAloneRatioToSparkSums": round(jdbc / alone.seconds, 3),
        "foldAloneRatioToDuckdbSums": round(duckdb / alone.seconds, 3),
    }


def _microseconds(run: Run, events: int) -> Figures:
    """Processor time of an event. The JVM of a local Spark is its executor too, so there are no others."""
    found = run.microseconds(events)
    del found["executorsMicrosecondsPerEvent"]
    return {**found, "processorMicrosecondsPerEvent": round(sum(run.processor_s.values()) * 1e6 / events, 2)}
