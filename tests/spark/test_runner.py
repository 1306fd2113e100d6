"""The running fold: it goes on by itself after whatever was lost, says what it waits for, and rests when it may."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from tests.conftest import url_of
from tests.ledgers import write_ledger
from tests.model import Event, fold
from tests.running import RunningFold, folding
from tests.spark.folding import differences, expected, pictured
from tidelock.definitions import parse_definitions
from tidelock.errors import SettingsError
from tidelock.fold import runner
from tidelock.fold.folder import Folder
from tidelock.fold.session import Spark
from tidelock.fold.tables import tables_of
from tidelock.ledger.database import Database
from tidelock.ledger.migrate import migrate
from tidelock.ledger.postgres import EmbeddedPostgres

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


def test_connections_that_are_ended_are_made_again(spark: Spark, ledger: Recording) -> None:
    with folding(spark, ledger.database, DEFINITIONS) as running:
        for _ in range(3):
            # The one that listens and holds the lease, and the one that writes.
            assert terminate(ledger.database, "TRUE") >= 1
            running.wait(ledger.record(2), 30)
        ended = time.monotonic() + 2
        while time.monotonic() < ended:
            terminate(ledger.database, "TRUE")
            last = ledger.record(3)
            time.sleep(0.05)
        running.wait(last, 30)
    ledger.check()


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A server of this test's own, to be taken away."""
    server = EmbeddedPostgres(tmp_path, None, {"fsync": "off"})
    server.ensure()
    yield server
    server.release()


def test_the_fold_says_once_that_it_waits_for_postgres_and_goes_on_when_it_is_back(
    spark: Spark, own_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    # By its URL, as in production: nobody but this test brings it back.
    ledger = Recording(Database(url_of(own_postgres, "postgres"), connect_timeout_s=2))
    with ledger.database.connect_sync() as connection:
        migrate(connection)
    with folding(spark, ledger.database, DEFINITIONS) as running:
        running.wait(ledger.record(3))
        before = len(running.told)
        os.kill(int((tmp_path / "postgres" / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
        running.until(lambda: len(running.told) > before, "it says what it waits for")
        time.sleep(2)
        own_postgres.ensure()
        running.wait(ledger.record(3))
        waiting, again = running.told[before:]
        assert waiting.startswith("waiting for Postgres: ")
        assert again.startswith("folding from sequence 3")
    ledger.check()


class Failing:
    """Makes ranges fail, inside a job of Spark's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, spark: Spark, times: int) -> None:
        self.attempts = 0
        whole = Folder.fold

        def fold(folder: Folder, lo: int, hi: int) -> int:
            self.attempts += 1
            if self.attempts <= times:
                spark.session.sql("SELECT raise_error('a task failed') FROM range(2)").collect()
            return whole(folder, lo, hi)

        monkeypatch.setattr(Folder, "fold", fold)


def test_a_range_whose_job_failed_is_tried_again(
    spark: Spark, ledger: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing(monkeypatch, spark, times=2)
    last = ledger.record(4)
    with folding(spark, ledger.database, DEFINITIONS) as running:
        running.wait(last)
    assert failing.attempts == 3
    ledger.check()


def test_a_range_that_always_fails_ends_the_fold_with_its_error(
    spark: Spark, ledger: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_PAUSES_S", (0.01,))
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
    looks = Counting(monkeypatch, "next_range")
    with folding(spark, ledger.database, DEFINITIONS) as running:
        running.wait(ledger.record())
        running.until(lambda: looks.count >= 3, "it has found nothing more to do")
        jobs, before = jobs_of(spark), looks.count
        time.sleep(2 * runner._POLL_S + 1)
        assert looks.count - before <= 3, "a look now and then, in case an announcement was lost"
        assert jobs_of(spark) == jobs


def test_a_commit_that_nobody_announced_ends_the_rehearsals(
    spark: Spark, ledger: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark, "rehearsals", 0)
    monkeypatch.setattr(spark, "settings", replace(spark.settings, rehearsals=100))
    with folding(spark, ledger.database, DEFINITIONS) as running:
        running.wait(ledger.record(3))
        running.until(lambda: spark.rehearsals >= 1, "it rehearses")
        running.wait(ledger.record(2))
        assert spark.rehearsals < 100
    ledger.check()


def test_while_there_is_nothing_to_do_the_steps_are_rehearsed_and_nothing_comes_of_it(
    spark: Spark, ledger: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark, "rehearsals", 0)
    monkeypatch.setattr(spark, "settings", replace(spark.settings, rehearsals=3))
    monkeypatch.setattr(runner, "_POLL_S", 0.5)
    with folding(spark, ledger.database, DEFINITIONS) as running:
        running.wait(ledger.record(5))
        running.until(lambda: spark.rehearsals == 3, "it was rehearsed as often as it should be")
        running.wait(ledger.record(5))
    ledger.check()


class Counting:
    """Counts the calls of something that the runner uses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.count = 0
        counted: Callable[..., Any] = getattr(runner, name)

        def call(*given: Any) -> Any:
            self.count += 1
            return counted(*given)

        monkeypatch.setattr(runner, name, call)


def jobs_of(spark: Spark) -> int:
    """Jobs that were ever started."""
    context: Any = spark.session.sparkContext
    return int(context._jsc.sc().dagScheduler().numTotalJobs())


def test_one_fold_stands_by_while_another_folds(spark: Spark, ledger: Recording) -> None:
    ledger.record()
    with ledger.database.connect_sync() as other:
        assert runner.lease.hold(other)
        second = RunningFold(spark, ledger.database, DEFINITIONS)
        second.start()
        second.until(lambda: second.told, "it says that it stands by")
        time.sleep(runner._POLL_S + 0.5)
        assert second.told == ["another fold runs on this ledger; standing by"]
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
