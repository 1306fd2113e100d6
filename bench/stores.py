"""`bench load`: a backlog loaded into a lake and into chDB, beside DuckDB writing the same files, and folded from both.

On a ledger that is thrown away.
"""

from __future__ import annotations

import time
from pathlib import Path

from bench import runs
from bench.backlog import Backlog
from bench.harness import Say, peer
from bench.limits import check_duckdb
from bench.runs import Figures, Run
from tidelock.definitions import parse_definitions
from tidelock.errors import Difference
from tidelock.fold.store import Store
from tidelock.postgres.database import Database
from tidelock.settings import Settings
from tidelock.settings.groups import ClickHouseSettings, LakeSettings
from tidelock.sinks.clickhouse import ClickHouseSink
from tidelock.sinks.lake import LakeSink
from tidelock.sinks.lakeranges import LakeRanges
from tidelock.sinks.loader import Loading, Sink
from tidelock.sinks.source import LedgerSource
from tidelock.spark.runtime import Spark
from tidelock.tables import SCHEMA

_CUSTOMERS = 10_000
#: of folds from either side, the first of which only warms up
_ROUNDS = 3
#: what is folded: columns that every event has, and a member of its data
_METERS: dict[str, dict[str, str]] = {"fold": {}, "foldMembers": {"value": "data.ms"}}


def measure(settings: Settings, events: int, say: Say, *, place: Path | None) -> Figures:
    """Figures of one backlog, on a Spark and a Postgres of its own in `place`."""
    check_duckdb()
    with runs.workbench(settings, place) as bench, bench.ledger("bench_load") as database:
        say(f"filling a ledger: {events:,} events of {_CUSTOMERS:,} customers")
        backlog = Backlog(database, events, _CUSTOMERS, settings.partition_events)
        with runs.compiled(bench.spark):
            return measured(bench.spark, backlog, bench.settings, say)


def measured(spark: Spark, backlog: Backlog, settings: Settings, say: Say, rounds: int = _ROUNDS) -> Figures:
    events, data = backlog.events, settings.data
    found: Figures = {"events": events}

    def tell(name: str, what: str, seconds: float) -> None:
        found[name] = round(events / seconds)
        say(f"  {what}: {events / seconds:,.0f} ev/s")

    lakes = [LakeSettings(path=str(data / name), file_events=settings.lake.file_events) for name in ("first", "lake")]
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
    clickhouse = ClickHouseSink(ClickHouseSettings(url=f"chdb:{data / 'chdb'}"))
    tell("clickhouseEventsPerSecond", "chDB", _load_s(spark, backlog.database, clickhouse, settings))
    for name, meter in _METERS.items():
        found |= _replayed(spark, backlog, settings, lakes[-1], say, name=name, meter=meter, rounds=rounds)
    return found


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
    return float(peer("duckdb_peer", "copy", source, target, threads))


def _replayed(
    spark: Spark,
    backlog: Backlog,
    settings: Settings,
    lake: LakeSettings,
    say: Say,
    *,
    name: str,
    meter: dict[str, str],
    rounds: int,
) -> Figures:
    """The same fold from the ledger and from the lake, in turns; the same tables."""
    definitions = parse_definitions({"meters": {"api_calls": {"lateness": "1h", "live": False, **meter}}})
    ranges = LakeRanges(spark, lake, backlog.database, backlog.events)
    found: dict[str, list[Run]] = {"ledger": [], "lake": []}
    tables = set()
    for _ in range(rounds):
        for side, elsewhere in (("ledger", None), ("lake", ranges.read)):
            run = runs.fold(spark, backlog, definitions, settings.fold.range_events_max, elsewhere=elsewhere)
            found[side].append(run)
            tables.add(_digest(backlog.database))
            told = " of data's members" if meter else ""
            say(f"  folded{told} from the {side}: {backlog.events / run.seconds:,.0f} ev/s")
    if len(tables) > 1:
        raise Difference("a fold from the lake made other tables than one from the ledger")
    # The first ones warm up.
    from_ledger, from_lake = (
        min(found[side][1:] or found[side], key=lambda run: run.seconds) for side in ("ledger", "lake")
    )
    return {
        f"{name}EventsPerSecond": round(backlog.events / from_ledger.seconds),
        f"{name}ReadSeconds": _read_s(from_ledger),
        f"{name}FromLakeEventsPerSecond": round(backlog.events / from_lake.seconds),
        f"{name}FromLakeReadSeconds": _read_s(from_lake),
        f"{name}FromLakeRatio": round(from_ledger.seconds / from_lake.seconds, 3),
    }


def _read_s(run: Run) -> float:
    """Until the events are in Spark, prepared; what the driver reads is read before the first step."""
    return round(sum(run.steps.get(step, 0.0) for step in ("read", "rest")), 2)


def _digest(database: Database) -> str:
    with database.connect_sync(name="tidelock bench") as connection:
        row = connection.execute(
            f"SELECT md5(string_agg(t::text, chr(10) ORDER BY t::text)) FROM {SCHEMA}.counters AS t".encode()
        ).fetchone()
    assert row is not None
    return str(row[0])


def _ratio(found: Figures, one: str, other: str) -> float:
    return float(found[one] or 0) / float(found[other] or 1)
