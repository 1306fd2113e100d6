"""`bench load`: a backlog loaded into a lake and into chDB, beside DuckDB writing the same files, and folded from both.

On a ledger that is thrown away.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidelock.definitions import Definitions, parse_definitions
from tidelock.errors import Difference, Unreachable
from tidelock.fold.folder import Folder
from tidelock.fold.session import Spark
from tidelock.fold.store import Store
from tidelock.fold.tables import SCHEMA
from tidelock.ledger.database import Database
from tidelock.ops.bench import runs
from tidelock.ops.bench.backlog import Backlog
from tidelock.ops.bench.limits import check_duckdb
from tidelock.ops.bench.rounds import Say
from tidelock.ops.bench.runs import Figures
from tidelock.ops.bench.stopwatch import Stopwatch
from tidelock.settings import Settings
from tidelock.settings.stores import ClickHouse, Lake
from tidelock.sinks.clickhouse import ClickHouseSink
from tidelock.sinks.lake import LakeSink
from tidelock.sinks.lakeranges import LakeRanges
from tidelock.sinks.loading import Loading, Sink
from tidelock.sinks.source import LedgerSource

_CUSTOMERS = 10_000


def measure(settings: Settings, events: int, say: Say, *, place: Path | None) -> Figures:
    """Figures of one backlog, on a Spark and a Postgres of its own in `place`."""
    check_duckdb()
    with runs.workbench(settings, place) as bench, bench.ledger("bench_load") as database:
        say(f"filling a ledger: {events:,} events of {_CUSTOMERS:,} customers")
        backlog = Backlog(database, events, _CUSTOMERS, settings.partition_events)
        with runs.compiled(bench.spark):
            return measured(bench.spark, backlog, bench.settings, say)


def measured(spark: Spark, backlog: Backlog, settings: Settings, say: Say) -> Figures:
    events, data = backlog.events, settings.data
    found: Figures = {"events": events}

    def tell(name: str, what: str, seconds: float) -> None:
        found[name] = round(events / seconds)
        say(f"  {what}: {events / seconds:,.0f} ev/s")

    lakes = [Lake(path=str(data / name), file_events=settings.lake.file_events) for name in ("first", "lake")]
    for lake, name in zip(lakes, ("lakeFirstEventsPerSecond", "lakeEventsPerSecond"), strict=True):
        sink = LakeSink(spark, lake)
        tell(
            name,
            "lake" if lake is lakes[-1] else "lake, for the first time in its JVM",
            _load_s(spark, backlog.database, sink, settings),
        )
    files = data / "lake" / "events"
    found["bytesPerEvent"] = round(sum(file.stat().st_size for file in files.iterdir()) / events, 1)
    for threads, name in ((1, "duckdbOneEventsPerSecond"), (spark.cores or 1, "duckdbEventsPerSecond")):
        tell(
            name,
            f"DuckDB writing the same files, threads: {threads}",
            _duckdb_s(files, data / f"copy-{threads}", threads),
        )
    found["lakeRatioToDuckdb"] = round(_ratio(found, "lakeEventsPerSecond", "duckdbEventsPerSecond"), 3)
    clickhouse = ClickHouseSink(ClickHouse(url=f"chdb:{data / 'chdb'}"))
    tell("clickhouseEventsPerSecond", "chDB", _load_s(spark, backlog.database, clickhouse, settings))
    return found | _replayed(spark, backlog, settings, lakes[-1], say)


def _load_s(spark: Spark, database: Database, sink: Sink, settings: Settings) -> float:
    store = Store(database, SCHEMA, sink.name)
    loading = Loading(sink, store, LedgerSource(spark, store, database))
    try:
        loading.open()
        started = time.perf_counter()
        while loading.step(settings.load.batch_events_max):
            pass
        return time.perf_counter() - started
    finally:
        loading.close()


def _duckdb_s(source: Path, target: Path, threads: int) -> float:
    command = [sys.executable, "-m", "tidelock.ops.bench.duckdb_copy", str(source), str(target), str(threads)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise Unreachable(f"DuckDB could not write the files: {ran.stderr.strip()[-500:]}")
    return float(json.loads(ran.stdout))


def _replayed(spark: Spark, backlog: Backlog, settings: Settings, lake: Lake, say: Say) -> Figures:
    """The same fold from the ledger and from the lake, each after a run that warms it up; the same tables."""
    ranges = LakeRanges(spark, lake, backlog.events)
    seconds: dict[str, list[float]] = {"ledger": [], "lake": []}
    tables = set()
    for _ in range(3):
        for name, elsewhere in (("ledger", None), ("lake", ranges)):
            run = runs.fold(spark, backlog, _definitions(), settings.fold.range_events_max, _unwatched, elsewhere)
            seconds[name].append(run.seconds)
            tables.add(_digest(backlog.database))
            say(f"  folded from the {name}: {backlog.events / run.seconds:,.0f} ev/s")
    if len(tables) > 1:
        raise Difference("a fold from the lake made other tables than one from the ledger")
    from_ledger, from_lake = (min(seconds[name][1:]) for name in ("ledger", "lake"))
    return {
        "foldEventsPerSecond": round(backlog.events / from_ledger),
        "foldFromLakeEventsPerSecond": round(backlog.events / from_lake),
        "foldFromLakeRatio": round(from_ledger / from_lake, 3),
    }


def _definitions() -> Definitions:
    return parse_definitions({"meters": {"api_calls": {"lateness": "1h", "live": False}}})


@contextmanager
def _unwatched(_: Stopwatch, __: Folder, ___: Store) -> Iterator[None]:
    yield


def _digest(database: Database) -> str:
    with database.connect_sync(name="tidelock bench") as connection:
        row = connection.execute(
            f"SELECT md5(string_agg(t::text, chr(10) ORDER BY t::text)) FROM {SCHEMA}.counters AS t".encode()
        ).fetchone()
    assert row is not None
    return str(row[0])


def _ratio(found: Figures, one: str, other: str) -> float:
    return float(found[one] or 0) / float(found[other] or 1)
