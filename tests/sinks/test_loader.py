"""The loader that runs: stores are brought on, one that fails holds up no other, one loader at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest
from pyarrow.parquet import ParquetFile

from tests.cli.commandline import run
from tests.dropping import dropping
from tests.recording import record, sequencing
from tests.sinks.stores import TestClickHouse, TestLake, fill
from tidelock.errors import SettingsError, Unreachable
from tidelock.fold.store import Store
from tidelock.postgres import leases
from tidelock.postgres.database import Database
from tidelock.settings.groups import ClickHouseSettings, LoadSettings
from tidelock.sinks.clickhouse import ClickHouseSink, connection_of
from tidelock.sinks.clickhouse import _StagedRows as ClickHouseStaged
from tidelock.sinks.loader import Loader, Loading, Sink, StepSize
from tidelock.sinks.source import LedgerSource
from tidelock.spark.runtime import Spark
from tidelock.tables import SCHEMA

QUICK = replace(LoadSettings(), interval=10_000_000, pause_max=200_000_000)


def loader(spark: Spark, database: Database, *sinks: Sink, told: list[str]) -> Loader:
    loadings = []
    for sink in sinks:
        store = Store(database, SCHEMA, sink.name)
        loadings.append(Loading(sink, store, LedgerSource(spark, store, database)))
    return Loader(spark, database, loadings, QUICK, told.append, poll_s=0.05)


@contextmanager
def running(made: Loader) -> Iterator[None]:
    stop, failed = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            made.run(stop)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not failed, failed


def count(lake: TestLake) -> int:
    # Opened once each: DuckDB opens a file twice, and it may have been replaced in between.
    return sum(ParquetFile(file).metadata.num_rows for file in lake.path.glob("events/*.parquet"))


def holds(lake: TestLake, events: int) -> bool:
    return count(lake) == events


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 90
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


async def test_what_comes_is_loaded_while_another_store_is_away(
    spark: Spark, database: Database, tmp_path: Path
) -> None:
    await fill(database)
    lake, told = TestLake(tmp_path), list[str]()
    away = ClickHouseSink(ClickHouseSettings(url="clickhouse://127.0.0.1:1", timeout_s=0.1))
    with running(loader(spark, database, away, lake.sink(spark), told=told)):
        until(lambda: count(lake) == 15, f"loaded; {told}")
        async with sequencing(database) as sequencer:
            await record(sequencer, {"customerRef": "later"})
        until(lambda: count(lake) == 16, f"what came later is loaded; {told}")
    waiting = [text for text in told if "waiting" in text]
    assert len(waiting) == 1, "it is told once"
    assert waiting[0].startswith("clickhouse: waiting: ClickHouse at 127.0.0.1 does not respond")


@pytest.mark.parametrize("steps", [3, pytest.param(60, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
async def test_connections_to_postgres_that_drop_at_any_moment_leave_nothing_out(
    spark: Spark, database: Database, tmp_path: Path, steps: int
) -> None:
    chance, lake, told = Random(20261118), TestLake(tmp_path), list[str]()
    with dropping(database, None) as made:
        async with sequencing(database) as sequencer:
            with running(loader(spark, made.database, lake.sink(spark), told=told)):
                for number in range(1, steps + 1):
                    made.arm(chance, 25)
                    await record(sequencer, {"customerRef": str(number)})
                    until(partial(holds, lake, number), f"loaded; {told}")
        print(f"{made.drops} drops in {steps} steps, {made.moments} moments")
        assert made.drops
    assert lake.prove(database).ok


async def test_a_second_loader_is_on_standby_until_the_first_has_ended_or_it_repairs(
    spark: Spark, database: Database, tmp_path: Path
) -> None:
    await fill(database)
    lake, told, other = TestLake(tmp_path), list[str](), list[str]()
    with running(loader(spark, database, lake.sink(spark), told=told)):
        until(lambda: "lake: loading from sequence 0" in told, "it loads")
        second = loader(spark, database, lake.sink(spark), told=other)
        second.run(threading.Event(), through=15)
        assert other == ["lake: another loader is loading it; standing by"]
        lake.alter(3)
        second.run(threading.Event(), through=15, since=3)
        assert lake.prove(database).ok, "a repair is let in, and does not wait for ever"
        async with sequencing(database) as sequencer:
            await record(sequencer, {"customerRef": "later"})
        until(lambda: count(lake) == 16, f"the first goes on; {told}")
    assert told[1:] == ["lake: a repair is waiting for it; standing by", "lake: loading from sequence 15"]


def test_two_repairs_are_not_at_a_store_at_once(spark: Spark, database: Database, tmp_path: Path) -> None:
    with database.connect_sync() as connection:
        assert leases.hold(connection, leases.REPAIRS["lake"])
        with pytest.raises(Unreachable, match="another repair is running"):
            loader(spark, database, TestLake(tmp_path).sink(spark), told=[]).run(threading.Event(), through=0, since=1)


async def test_a_repair_replaces_what_was_loaded_and_continues(
    spark: Spark, database: Database, tmp_path: Path
) -> None:
    await fill(database)
    lake, told = TestLake(tmp_path, file_events=5), list[str]()
    loader(spark, database, lake.sink(spark), told=told).run(threading.Event(), through=11)
    lake.alter(3)
    lake.alter(9)
    loader(spark, database, lake.sink(spark), told=told).run(threading.Event(), through=15, since=3)
    assert lake.prove(database).ok
    assert len(lake.read()) == 15
    assert "lake: what was loaded through sequence 11 is the ledger's again" in told


async def test_a_repair_that_fails_amid_is_done_to_its_end(
    spark: Spark, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(database)
    store, told, publish = TestClickHouse(tmp_path / "clickhouse"), list[str](), ClickHouseStaged.publish
    loader(spark, database, store.sink(spark), told=told).run(threading.Event(), through=15)
    store.alter(3)
    store.alter(9)

    def fails_once(staged: ClickHouseStaged) -> None:
        monkeypatch.setattr(ClickHouseStaged, "publish", publish)
        store.remove(9)
        raise RuntimeError("it happens")

    monkeypatch.setattr(ClickHouseStaged, "publish", fails_once)
    loader(spark, database, store.sink(spark), told=told).run(threading.Event(), through=15, since=3)
    assert store.prove(database).ok
    assert told[-1] == "clickhouse: what was loaded through sequence 15 is the ledger's again"


def test_a_run_with_once_reports_at_once_a_store_that_is_away(spark: Spark, database: Database) -> None:
    away = ClickHouseSink(ClickHouseSettings(url="clickhouse://127.0.0.1:1", timeout_s=0.1))
    with pytest.raises(Unreachable, match="does not respond"):
        loader(spark, database, away, told=[]).run(threading.Event(), through=5)


def test_steps_that_fail_become_small_and_the_size_that_works_is_kept_for_a_while() -> None:
    size = StepSize(250_000)
    sizes = [size.events_max]
    while size.shrink():
        sizes.append(size.events_max)
    assert (sizes[:2], sizes[-1]) == ([250_000, 62_500], 100)
    sizes = []
    while size.events_max < 250_000:
        sizes.append(size.events_max)
        size.grow()
    assert sizes[:17] == [100] * 16 + [400]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no store is set"),
        (("clickhouse",), "no ClickHouse is configured"),
        (("lake", "--clickhouse-url", "chdb:/x"), "no lake is configured"),
        (("--clickhouse-url", "http://somewhere"), "must be clickhouse://"),
        (("--clickhouse-url", "chdb:"), "has no path"),
        (("--lake-path", "/tmp/x", "--from", "7"), "the sequences that were loaded into lake are none yet"),
    ],
)
def test_wrong_use_is_reported(database: Database, arguments: tuple[str, ...], said: str) -> None:
    result = run(database, "load", *arguments)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.output.split())


def test_a_url_of_clickhouse_says_everything() -> None:
    url = "clickhouses://me:p%40ss@house.example/db?compress=lz4"
    assert connection_of(url) == {
        "host": "house.example", "port": 8443, "username": "me", "password": "p@ss", "database": "db", "secure": True,
        "compress": "lz4",
    }  # fmt: skip
    with pytest.raises(SettingsError):
        connection_of("clickhouse://host:none")
