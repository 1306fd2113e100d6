"""The running fold: it goes on by itself after whatever was lost, says what it waits for, and rests when it may."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import PySparkException

from tests.conftest import Databases
from tests.dropping import Drop, Dropping, dropping, sweep
from tests.fold.folding import differences, expected, pictured
from tests.ledgers import write_ledger
from tests.losttails import anchored
from tests.model import Event, fold
from tests.running import POLL_S, RunningFold, folding
from tidelock import app
from tidelock.definitions import parse_definitions
from tidelock.errors import SettingsError, Unreachable
from tidelock.fold import runner
from tidelock.fold.rangefold import RangeFold
from tidelock.fold.runner import Runner
from tidelock.postgres import leases
from tidelock.postgres.database import Database
from tidelock.postgres.reconnect import Away
from tidelock.settings import Settings
from tidelock.spark.runtime import Spark
from tidelock.tables import tables_of

TOML: dict[str, Any] = {"meters": {"calls": {"aggregation": "count"}}}
DEFINITIONS = parse_definitions(TOML)


class Recording:
    """A ledger that grows without announcing it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.events: list[Event] = []

    def record(self, count: int = 1) -> int:
        """A commit; gives its last sequence."""
        first, at = len(self.events) + 1, 10**18 + len(self.events)
        more = [Event(first + n, at, "calls", at, customer_ref=f"c{n % 3}") for n in range(count)]
        write_ledger(self.database, more, commit_id=len({event.source_timestamp for event in self.events}) + 1)
        self.events += more
        return self.events[-1].ingress_sequence

    def check(self) -> None:
        """Tables and changes are the model's: nothing was left out or folded twice."""
        found = pictured(self.database, tables_of(DEFINITIONS))
        assert differences(found, expected(fold(self.events, TOML))) == {}


@pytest.fixture
def ledger(database: Database) -> Recording:
    return Recording(database)


def terminate(database: Database, condition: str) -> int:
    """End connections to this database, as an administrator would; gives how many."""
    query = f"""SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND {condition}"""
    with database.connect_sync() as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


def test_commits_that_nobody_announced_are_found(spark: Spark, ledger: Recording) -> None:
    with folding(spark, ledger.database, DEFINITIONS) as running:
        running.wait(ledger.record(), 30)
        running.wait(ledger.record(5), 30)
    ledger.check()


def test_a_fold_on_a_cluster_has_python_workers_before_its_lease(
    spark: Spark, ledger: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any) -> Any:
            order.append(name)
            return function(*given)

        return noted

    monkeypatch.setattr(spark, "cores", None)
    monkeypatch.setattr(spark, "warm_workers", noting("workers", spark.warm_workers))
    monkeypatch.setattr(leases, "hold", noting("lease", leases.hold))
    last = ledger.record(3)
    with folding(spark, ledger.database, DEFINITIONS) as running:
        running.wait(last, 60)
    assert order[:2] == ["workers", "lease"]
    ledger.check()


def test_executors_that_cannot_start_workers_end_the_fold(
    spark: Spark, ledger: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        raise SettingsError("the executors' Python could not start", field="spark.master")

    monkeypatch.setattr(spark, "cores", None)
    monkeypatch.setattr(spark, "warm_workers", refused)
    ledger.record()
    running = RunningFold(spark, ledger.database, DEFINITIONS)
    running.start()
    running.until_ended()
    assert isinstance(running.error, SettingsError)


@pytest.mark.parametrize("ranges", [5, pytest.param(150, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_a_connection_that_drops_amid_a_range_costs_nothing(spark: Spark, ledger: Recording, ranges: int) -> None:
    chance = Random(20261118)
    with dropping(ledger.database, None) as made:
        with folding(spark, made.database, DEFINITIONS) as running:
            for _ in range(ranges):
                made.arm(chance, 40)
                running.wait(ledger.record(2), 60)
        print(f"{made.drops} drops in {ranges} ranges, {made.moments} moments")
        assert made.drops
    ledger.check()


@pytest.mark.parametrize(
    "sample", [4, pytest.param(None, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])], ids=["some", "all"]
)
def test_a_fold_through_the_end_outlives_a_connection_dropped_at_any_moment(
    spark: Spark, databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample: int | None
) -> None:
    # The command would start a Spark of its own for every drop.
    monkeypatch.setattr("tidelock.spark.runtime.Spark", lambda *_: nullcontext(spark))
    anchors = (tmp_path / f"anchor{number}.jsonl" for number in itertools.count())

    def folded(drop: Drop | None) -> Dropping:
        with databases() as database:
            ledger, anchor = Recording(database), next(anchors)
            ledger.record(3)
            asyncio.run(anchored(database, anchor))
            with dropping(database, drop) as made:
                settings = Settings(data=tmp_path, database_url=made.url, anchor=anchor, definitions=DEFINITIONS)
                app.fold(settings, stop=threading.Event(), rebuild=False, once=True, tell=lambda _: None)
            ledger.check()
        return made

    sweep(folded, sample=sample, seed=20261118).check()


def test_the_fold_says_once_that_it_waits_for_postgres_and_continues_when_it_is_back(
    spark: Spark, ledger: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, attempts = Database.connect_sync, itertools.count(1)

    def away(database: Database, **options: Any) -> Any:
        if options.get("name") == "tidelock fold" and next(attempts) <= 3:
            raise Away("Postgres does not answer")
        return connect(database, **options)

    with folding(spark, ledger.database, DEFINITIONS) as running:
        running.wait(ledger.record(3))
        before = len(running.told)
        monkeypatch.setattr(Database, "connect_sync", away)
        # The one that listens and holds the lease, and the one that writes.
        assert terminate(ledger.database, "TRUE") >= 1
        running.wait(ledger.record(3))
        assert next(attempts) > 3
        waiting, again = running.told[before:]
        assert waiting.startswith("waiting for Postgres: ")
        assert again.startswith("folding from sequence 3")
    ledger.check()


class Failing:
    """Makes ranges fail, inside a job of Spark's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, spark: Spark, times: int) -> None:
        self.attempts = 0
        whole = RangeFold.apply

        def fold(range_fold: RangeFold, lo: int, hi: int) -> int:
            self.attempts += 1
            if self.attempts <= times:
                spark.session.sql("SELECT raise_error('a task failed') FROM range(2)").collect()
            return whole(range_fold, lo, hi)

        monkeypatch.setattr(RangeFold, "apply", fold)


def test_a_range_whose_job_failed_is_tried_again(
    spark: Spark, ledger: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing(monkeypatch, spark, times=2)
    last = ledger.record(4)
    with folding(spark, ledger.database, DEFINITIONS) as running:
        running.wait(last)
    assert failing.attempts == 3
    ledger.check()


class Sizes:
    """How many events each range had that was folded. The fold is cut off before the range of a number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails_at: int = 0) -> None:
        self.found: list[int] = []
        whole = RangeFold.apply

        def fold(range_fold: RangeFold, lo: int, hi: int) -> int:
            self.found.append(hi - lo)
            if len(self.found) == fails_at:
                raise Unreachable("Postgres is killed")
            return whole(range_fold, lo, hi)

        monkeypatch.setattr(RangeFold, "apply", fold)


def test_ranges_begin_small_after_a_start_and_after_a_failure_and_double(
    spark: Spark, ledger: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(12):
        last = ledger.record()
    sizes = Sizes(monkeypatch, fails_at=3)
    with folding(spark, ledger.database, DEFINITIONS, range_events_start=2, range_events_max=4) as running:
        running.wait(last)
    assert sizes.found == [2, 4, 4, 2, 4]
    ledger.check()


def test_a_fold_folds_what_waits_before_it_warms_up(
    spark: Spark, ledger: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    warmed: list[int] = []
    monkeypatch.setattr(RangeFold, "warm_up", lambda range_fold: warmed.append(1))
    last = ledger.record(3)
    with folding(spark, ledger.database, DEFINITIONS) as running:
        running.wait(last)
    assert warmed == []
    with folding(spark, ledger.database, DEFINITIONS):
        assert warmed == [1], "with nothing to fold there is time for it"


def test_a_range_that_always_fails_ends_the_fold_with_its_error(
    spark: Spark, ledger: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runner, "pause_max_s", 0.01)
    failing = Failing(monkeypatch, spark, times=10**6)
    ledger.record()
    running = RunningFold(spark, ledger.database, DEFINITIONS)
    running.start()
    running.until_ended()
    assert isinstance(running.error, PySparkException)
    assert "a task failed" in str(running.error)
    assert failing.attempts == runner._ATTEMPTS_MAX
    assert running.runner.position == 0


def test_without_events_nothing_is_done(spark: Spark, ledger: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Counting(monkeypatch, runner, "next_range")
    with folding(spark, ledger.database, DEFINITIONS) as running:
        running.wait(ledger.record())
        running.until(lambda: looks.count >= 3, "it has found nothing more to do")
        jobs, before, began = jobs_of(spark), looks.count, time.monotonic()
        running.until(lambda: looks.count >= before + 3, "a look now and then, in case an announcement was lost")
        assert time.monotonic() - began >= 2 * POLL_S, "now and then only"
        assert jobs_of(spark) == jobs


class Counting:
    """Counts the calls of something that the runner does or uses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self.count = 0
        counted: Callable[..., Any] = getattr(owner, name)

        def call(*given: Any) -> Any:
            self.count += 1
            return counted(*given)

        monkeypatch.setattr(owner, name, call)


def jobs_of(spark: Spark) -> int:
    """Jobs that were ever started."""
    context: Any = spark.session.sparkContext
    return int(context._jsc.sc().dagScheduler().numTotalJobs())


def test_one_fold_is_on_standby_while_another_folds(
    spark: Spark, ledger: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.record()
    looks = Counting(monkeypatch, Runner, "open")
    with ledger.database.connect_sync() as other:
        assert leases.hold(other, leases.FOLD)
        second = RunningFold(spark, ledger.database, DEFINITIONS)
        second.start()
        second.until(lambda: second.told, "it says that it stands by")
        before = looks.count
        second.until(lambda: looks.count >= before + 2, "it has asked for the lease again")
        assert second.told == ["another fold is running on this ledger; standing by"]
        assert second.runner.position == 0
    second.wait(1)
    second.stop()
    assert second.error is None
    ledger.check()


def test_definitions_that_cannot_work_are_no_reason_to_try_again(spark: Spark, ledger: Recording) -> None:
    streams = {"s": {"columns": {"a": "string"}, "key": "a", "calculated": {"b": "nosuch(a)"}}}
    running = RunningFold(spark, ledger.database, parse_definitions({"streams": streams}))
    running.start()
    running.until_ended()
    assert isinstance(running.error, SettingsError)
    assert "streams.s.calculated.b" in str(running.error)
