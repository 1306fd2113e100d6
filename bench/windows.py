"""`bench windows`: windows of a backlog beside Spark's own streaming and DuckDB, on a ledger that is thrown away.

Then again with a tolerance so long that most windows stay open, and as ordered output with rows held back.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench import runs
from bench.backlog import Backlog, Pace
from bench.harness import Rounds, Say
from bench.judgement import QUERIES, Judgement, Made, judged
from bench.limits import Limits, check_duckdb
from bench.others import EXPORT, Others
from bench.runs import Figures, Run
from bench.streaming import Streaming
from tidelock.definitions import Definitions, parse_definitions
from tidelock.durations import format_duration
from tidelock.fold.ranges import Pace as RangePace
from tidelock.instants import SECOND
from tidelock.postgres.database import Database
from tidelock.settings import Settings
from tidelock.settings.groups import FoldSettings
from tidelock.spark.runtime import Spark

#: what is timed of a fold, in its order, and what the figures call it; what is left is the driver's, in Arrow
STEPS = {
    "read": "shareRead",
    "gather": "shareGather",
    "stored": "shareStored",
    "write": "shareWrite",
    "record": "shareRecord",
    "rest": "shareRest",
}
_SIZE_S = 10
_TOLERANCE_S = 5
_DISORDER_S = 2
_FAR_EVERY = 1_000
_FAR_BEHIND_S = 60
#: a quarter of a backlog at a time, so that there is something stored to go on from; but no range that the driver reads
_LEAST_RANGE_EVENTS = 20_000
#: rows that wait already, and how often each is folded
_FEW, _OPEN_SOME, _OPEN_MANY, _HELD_MANY = 10, 1_000, 100_000, 1_500_000
_FLAT_RUNS = 3
_QUARTERS = 4
# The limits, as they are told.
_JDBC, _EXPORT, _STREAMING, _DUCKDB = "Spark from Postgres", "export to Parquet", "Spark's streaming", "DuckDB"


class _Case(NamedTuple):
    """A fold of the backlog, whose result was compared."""

    run: Run
    made: Made

    @property
    def growth(self) -> float:
        """How much more an event of the last range costs than one of the first."""
        return round(self.run.event_s[-1] / self.run.event_s[0], 3)


def measure(
    settings: Settings, keys: int, events: int, say: Say, *, place: Path | None, peers: Path | None = None
) -> Figures:
    """Figures for so many keys, on a Spark and a Postgres of its own in `place`; `peers` has others' environments."""
    check_duckdb()
    with runs.workbench(settings, place) as bench, bench.ledger("bench_windows") as database:
        data = bench.settings.data
        return measure_ledger(
            bench.spark, database, bench.settings, keys=keys, events=events, say=say, directory=data, peers=peers
        )


def measure_ledger(
    spark: Spark,
    database: Database,
    settings: Settings,
    keys: int,
    events: int,
    say: Say,
    directory: Path,
    *,
    again: bool = True,
    peers: Path | None = None,
) -> Figures:
    """Figures for so many keys, in an empty ledger. Without `again` everything is timed once."""
    say(f"filling a ledger: {events:,} events of {keys:,} keys")
    # Each key has an event a second.
    pace = Pace(SECOND // keys, _DISORDER_S * SECOND, _FAR_EVERY, _FAR_BEHIND_S * SECOND)
    backlog = Backlog(database, events, keys, settings.partition_events, pace)
    long = events * pace.step * (_QUARTERS - 1) // _QUARTERS
    ledger = _Ledger(spark, backlog, settings, say)
    with runs.compiled(spark):
        limits, streaming = _limits(spark, backlog, ledger.range_events, directory)
        ways = {_JDBC: limits.jdbc_s, _EXPORT: limits.export_s, _STREAMING: streaming.seconds, _DUCKDB: limits.duckdb_s}
        rounds = Rounds("the same windows", ways, say)
        ledger.warm(limits, streaming)
        rounds.run()
        ledger.check(streaming)
        # Twice, with the others between: a Spark that has run for a while is faster.
        bases = [ledger.windows("windows", _TOLERANCE_S * SECOND)]
        if again:
            rounds.run()
        cases = {
            "open": ledger.windows("windows that stay open", long),
            "ordered": ledger.ordered("ordered output", _TOLERANCE_S * SECOND),
            "held": ledger.ordered("ordered output that is held back", long),
        }
        if again:
            bases.append(ledger.windows("windows again", _TOLERANCE_S * SECOND))
            rounds.run()
        seconds = statistics.mean(base.run.seconds for base in bases)
        flat = ledger.flat() | ledger.burst(settings.fold, seconds)
    others = Others(peers, directory, _SIZE_S, _TOLERANCE_S, spark.cores or 1).figures(events, seconds, say)
    found: Figures = {"keys": keys, "events": events, **_base_figures(events, seconds, rounds, bases[-1])}
    return found | _growth(events, seconds, cases) | flat | others


class _Ledger:
    """Folds a backlog in several ways."""

    def __init__(self, spark: Spark, backlog: Backlog, settings: Settings, say: Say) -> None:
        self._spark = spark
        self._backlog = backlog
        self._say = say
        quarter = max(backlog.events // _QUARTERS, _LEAST_RANGE_EVENTS)
        self.range_events = min(settings.fold.range_events_max, quarter)

    def warm(self, limits: Limits, streaming: Streaming) -> None:
        limits.jdbc_s()
        streaming.warm()
        for definitions in (_windows(_TOLERANCE_S * SECOND), _ordered(_TOLERANCE_S * SECOND)):
            runs.warm(self._spark, self._backlog, definitions)

    def check(self, streaming: Streaming) -> None:
        """Whether Spark's streaming has done what is to be compared."""
        with self._judged(_TOLERANCE_S * SECOND) as judgement:
            judgement.check_streamed(streaming.events())

    def windows(self, name: str, tolerance_ns: int) -> _Case:
        run = self._run(name, _windows(tolerance_ns))
        with self._judged(tolerance_ns) as judgement:
            return _Case(run, judgement.windows())

    def ordered(self, name: str, tolerance_ns: int) -> _Case:
        run = self._run(name, _ordered(tolerance_ns))
        with self._judged(tolerance_ns) as judgement:
            return _Case(run, judgement.ordered())

    def flat(self) -> Figures:
        """What an event of the first range costs with this much waiting already, against with next to nothing."""
        found: Figures = {}
        tolerance = _TOLERANCE_S * SECOND
        for name, kind, definitions, rows in (
            ("openSome", "open", _windows(tolerance), _OPEN_SOME),
            ("openMany", "open", _windows(tolerance), _OPEN_MANY),
            ("heldMany", "held", _ordered(tolerance), _HELD_MANY),
        ):
            # Fewer where the backlog is small, too.
            many = min(rows, self._backlog.events)
            ratio = round(self._cost(kind, definitions, many) / self._cost(kind, definitions, _FEW), 3)
            found |= {name: many, f"{name}CostRatio": ratio}
            self._say(f"  with {many:,} {kind} an event costs {ratio} of what it costs with {_FEW}")
        return found

    def burst(self, fold: FoldSettings, backlog_s: float) -> Figures:
        """How long a reader waits for the cursor to move, and for an event that was recorded right after the burst,
        while the fold takes it at its own pace. `backlog_s`: what it takes in large ranges."""
        pace = RangePace(fold.range_events_start, fold.range_events_max)
        run = runs.burst(self._spark, self._backlog, _windows(_TOLERANCE_S * SECOND), pace)
        allowed = backlog_s + run.longest_s
        self._say(
            f"  the cursor moved every {run.longest_s:.1f} s at least; an event after the burst was visible after "
            f"{run.seconds:.1f} s, where backlog / throughput and a range are {allowed:.1f} s"
        )
        return {
            "burstLongestSeconds": round(run.longest_s, 2),
            "burstRanges": len(run.event_s),
            "burstVisibleSeconds": round(run.seconds, 2),
            "burstVisibleRatio": round(run.seconds / allowed, 3),
        }

    def _cost(self, kind: str, definitions: Definitions, rows: int) -> float:
        def wait(database: Database) -> None:
            with database.connect_sync() as connection:
                connection.execute(QUERIES[f"wait_{kind}"], {"rows": rows})
                connection.execute(QUERIES[f"analyze_{kind}"])

        costs = [
            runs.first_range(self._spark, self._backlog, definitions, self.range_events, wait).event_s[0]
            for _ in range(_FLAT_RUNS)
        ]
        return statistics.median(costs)

    def _run(self, name: str, definitions: Definitions) -> Run:
        run = runs.fold(self._spark, self._backlog, definitions, self.range_events)
        self._say(f"  {name}: {self._backlog.events / run.seconds:,.0f} ev/s")
        return run

    @contextmanager
    def _judged(self, tolerance_ns: int) -> Iterator[Judgement]:
        with judged(self._backlog, tolerance_ns, _SIZE_S * SECOND) as judgement:
            yield judgement


def _windows(tolerance_ns: int) -> Definitions:
    window = {
        "stream": "api_calls",
        "window": {"tumbling": f"{_SIZE_S}s"},
        "eventtime": {"enabled": True, "late_tolerance": format_duration(tolerance_ns)},
        "group_by": ["customer_ref"],
        "select": {"events": "count(*)", "quantity": "sum(quantity)"},
    }
    stream = {"eventtime": {"column": "occurred_at"}}
    return parse_definitions({"streams": {"api_calls": stream}, "windows": {"per_customer": window}})


def _ordered(tolerance_ns: int) -> Definitions:
    eventtime = {"column": "occurred_at", "late_tolerance": format_duration(tolerance_ns)}
    return parse_definitions({"streams": {"api_calls": {"eventtime": eventtime, "ordered": True}}})


def _limits(spark: Spark, backlog: Backlog, range_events: int, directory: Path) -> tuple[Limits, Streaming]:
    """Spark's streaming gets as many events at a time as the fold, and a file for each core."""
    cores = spark.cores or spark.session.sparkContext.defaultParallelism
    export = directory / EXPORT
    files = cores * -(-backlog.events // range_events)
    limits = Limits(spark, backlog.database, backlog.events, export, sums="windows", files=files)
    sizes = {"files_at_a_time": cores, "size_s": _SIZE_S, "tolerance_s": _TOLERANCE_S}
    return limits, Streaming(spark, export, directory / "streaming", **sizes)


def _base_figures(events: int, seconds: float, rounds: Rounds, base: _Case) -> Figures:
    jdbc, export, streaming, duckdb = map(rounds.median_s, (_JDBC, _EXPORT, _STREAMING, _DUCKDB))
    run, made = base.run, base.made
    return {
        "sparkSumsEventsPerSecond": round(events / jdbc),
        "sparkExportEventsPerSecond": round(events / export),
        "sparkStreamingEventsPerSecond": round(events / streaming),
        "duckdbEventsPerSecond": round(events / duckdb),
        "foldEventsPerSecond": round(events / seconds),
        "foldRatioToSparkStreaming": round(streaming / seconds, 3),
        "foldRatioToSparkExportAndStreaming": round((export + streaming) / seconds, 3),
        "foldRatioToDuckdb": round(duckdb / seconds, 3),
        "foldRatioToSparkSums": round(jdbc / seconds, 3),
        **run.shares(STEPS),
        "windows": made.done,
        "foldWaiting": made.waiting,
        "lateRows": made.late,
        "changes": made.changes,
        "bytesPerChange": round(made.change_bytes / max(made.changes, 1), 1),
        "driverPeakMb": run.driver_mb,
        "jvmPeakMb": run.jvm_mb,
        "foldGrowth": base.growth,
    }


def _growth(events: int, base_s: float, cases: dict[str, _Case]) -> Figures:
    found: Figures = {}
    for name, case in cases.items():
        found |= {
            f"{name}EventsPerSecond": round(events / case.run.seconds),
            f"{name}CostRatio": round(case.run.seconds / base_s, 3),
            f"{name}Waiting": case.made.waiting,
            f"{name}Growth": case.growth,
            f"{name}DriverPeakMb": case.run.driver_mb,
            f"{name}JvmPeakMb": case.run.jvm_mb,
        }
    held, ordered = cases["held"].run, cases["ordered"].run
    return found | {"heldCostRatioToOrdered": round(held.seconds / ordered.seconds, 3)}
