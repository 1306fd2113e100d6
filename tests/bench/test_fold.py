"""`bench fold` and `bench latency`, with numbers so small that their figures mean nothing: everything is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench import commands as bench
from bench import latency
from bench.backlog import Backlog
from bench.fold import STEPS, measure_ledger
from bench.harness import Stopwatch
from tests.conftest import Databases
from tidelock.errors import Difference
from tidelock.postgres.database import Database
from tidelock.settings import Settings
from tidelock.spark.runtime import Spark

#: more than the driver reads by itself: the steps are those of a backlog
EVENTS = 12_000
_TOUCHED = b"SELECT count(*) FROM (SELECT DISTINCT customer_ref, source_timestamp FROM events) AS touched"


def test_the_fold_is_measured_beside_its_limits(spark: Spark, databases: Databases, tmp_path: Path) -> None:
    said: list[str] = []
    with databases() as database:
        figures = measure_ledger(
            spark, database, Settings(), customers=100, events=EVENTS, say=said.append, directory=tmp_path, again=False
        )
        with database.connect_sync() as connection:
            touched = connection.execute(_TOUCHED).fetchall()[0][0]
    assert set(bench._FOLD_ROWS) < set(figures), "every row of the table has its figure"
    assert (figures["customers"], figures["counters"], figures["events"]) == (100, 100, EVENTS)
    late = int(str(figures["adjustments"]))
    assert 200 < late <= EVENTS // 50, "every fiftieth event is a day behind"
    assert figures["changes"] == touched + late, "of counters and of adjustments"
    for name in ("sparkSums", "sparkParquetSums", "duckdbSums", "fold", "foldAlone"):
        assert figures[f"{name}EventsPerSecond"], name
    assert sum(float(str(figures[name])) for name in STEPS.values()) == pytest.approx(1.0, abs=0.01)
    assert figures["shareExecutors"]
    assert figures["bytesPerChange"]
    parts = [float(str(figures[f"{who}MicrosecondsPerEvent"])) for who in ("jvm", "python", "workers", "postgres")]
    assert all(parts[:2])
    assert sum(parts) == pytest.approx(float(str(figures["processorMicrosecondsPerEvent"])), abs=0.03)
    assert any("live = false" in line for line in said)


def test_a_fold_that_counts_wrong_is_not_measured(database: Database) -> None:
    backlog = Backlog(database, 1_000, 10, 1_000_000)
    with pytest.raises(Difference, match="the fold counted 0 events"):
        backlog.folded()


def test_the_time_of_a_step_is_not_that_of_the_steps_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("bench.harness.time.perf_counter", lambda: now[-1])

    watch = Stopwatch()
    with watch.running("outer"):
        now.append(now[-1] + 2)
        with watch.running("inner"):
            now.append(now[-1] + 6)
    assert watch.seconds == {"outer": 2, "inner": 6}


def test_an_event_is_visible_when_as_many_are_counted_as_come_before_it() -> None:
    acknowledged = {4: 10.0, 5: 10.1, 7: 10.2}
    seen = [(9.0, 0), (10.5, 2), (11.0, 3)]
    assert latency._delays(acknowledged, seen) == pytest.approx([0.5, 0.4, 0.8])
    with pytest.raises(Difference, match="only 2 of 3 events"):
        latency._delays(acknowledged, seen[:2])


def test_memory_is_that_of_the_beginning_and_of_the_end_after_the_warm_up() -> None:
    figures = latency._memory_figures("jvm", [999] * latency.WARM_UP_S + [100] * 60 + [120] * 60)
    assert figures == {"jvmMb": 100, "jvmLastMb": 120, "jvmPeakMb": 120, "jvmMinutesMb": [100, 120]}
    assert latency._memory_figures("jvm", [])["jvmMb"] is None


@pytest.mark.soak
def test_latency_is_measured_through_a_server_and_its_fold(jars: Path, tmp_path: Path) -> None:
    figures = latency.measure(Settings(data=jars), 5, 20, print, idle=5, place=tmp_path)
    assert set(bench._LATENCY_ROWS) < set(figures)
    assert figures["events"] == 100
    assert 0 < float(str(figures["visibleP50Ms"])) <= float(str(figures["visibleP99Ms"]))
    assert 0 < float(str(figures["firstP50Ms"])) <= float(str(figures["firstP99Ms"]))
    assert 0 < float(str(figures["idlePercent"])) < 100
    assert figures["driverMb"]
    assert figures["jvmMb"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["fold", "windows", "latency"])
def test_only_a_scratch_ledger_is_measured(command: str, tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text('database_url = "postgresql://db.example/real"\n')
    refused = CliRunner().invoke(bench.app, [command, "--config", str(config)])
    assert refused.exit_code != 0
    assert "scratch ledger only" in f"{refused.stderr}{refused.exception}"


@pytest.mark.parametrize("counters", ["0", "", "many", "-1", "1,,2", "99999999999"])
def test_numbers_of_customers_that_mean_nothing_are_refused(counters: str) -> None:
    refused = CliRunner().invoke(bench.app, ["fold", f"--counters={counters}"])
    assert refused.exit_code != 0
    assert "is not a list of numbers" in f"{refused.stderr}{refused.exception}"
