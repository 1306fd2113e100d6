"""Python workers start from our daemon, take no archive with them, and are gone when their JVM is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from bench import memory
from tests.budgets import HANG_S
from tests.law.test_law import ROOT
from tests.spark.test_runtime import ended
from tidelock.errors import SettingsError, Unreachable
from tidelock.spark import workers
from tidelock.spark.runtime import Spark


def looked_at(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a worker has of its own: its process, the archives that it imports from, and what it has imported."""
    import gc
    import zipimport

    for _ in batches:
        importers = sys.path_importer_cache.values()
        archives = sum(isinstance(importer, zipimport.zipimporter) for importer in importers)
        imported = {"numpy", "pandas", "pyarrow.compute"} <= set(sys.modules)
        row = {"pid": [os.getpid()], "archives": [archives], "frozen": [gc.get_freeze_count()], "imported": [imported]}
        yield pa.RecordBatch.from_pydict(row)


_LOOK = "pid bigint, archives bigint, frozen bigint, imported boolean"


def test_workers_are_forked_with_what_they_need_and_without_archives(spark: Spark) -> None:
    spark.warm_workers()
    slots = spark.session.range(0, spark.parallelism, numPartitions=spark.parallelism)
    found = slots.mapInArrow(looked_at, _LOOK).toArrow().to_pylist()
    below = {pid for pid, command in memory.descendants(spark.pid) if workers.DAEMON in command}
    assert {row["pid"] for row in found} <= below
    for row in found:
        assert (row["archives"], row["imported"]) == (0, True)
        assert row["frozen"] > 10_000


def test_what_workers_find_is_told_for_each_host(spark: Spark) -> None:
    (found,) = spark.environments(60)
    assert found.python == sys.executable
    assert set(found.packages) == set(workers.NEEDED)
    assert found.lacks() == []


def test_executors_that_do_not_answer_are_not_waited_for(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_LOOK", "import time; time.sleep(3); print('[]')")
    with pytest.raises(Unreachable, match="no executor responded within 1 s"):
        spark.environments(1)


# In a process of its own: the session that all tests share must not be hurt.
_PROGRAM = """
import json, os, signal, sys, threading, time
from pathlib import Path
from tidelock.spark.runtime import Spark
from tidelock.spark.workers import DAEMON
from bench import memory
from tidelock.settings.groups import SparkSettings as Settings

def busy(batches):
    for batch in batches:
        time.sleep(600)
        yield batch

def tell(spark):
    spark.warm_workers()
    print(json.dumps([pid for pid, command in memory.descendants(spark.pid) if DAEMON in command]), flush=True)

spark = Spark(Settings(master="local[2]", driver_memory=1 << 29), Path(sys.argv[1]))
tell(spark)
slots = spark.session.range(0, 2, numPartitions=2)
job = threading.Thread(target=lambda: slots.mapInArrow(busy, slots.schema).collect(), daemon=True)
job.start()
time.sleep(2)
os.kill(spark.pid, signal.SIGKILL)
job.join()
spark.restart()
tell(spark)
spark.stop()
print("stopped", flush=True)
"""


@pytest.mark.timeout(600)
def test_workers_end_with_a_jvm_that_is_killed_and_with_one_that_is_stopped(jars: Path, tmp_path: Path) -> None:
    (tmp_path / "jars").symlink_to(jars / "jars")
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, tmp_path],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    killed, stopped, last = ran.stdout.splitlines()
    assert last == "stopped", ran.stderr
    for pids in (json.loads(killed), json.loads(stopped)):
        assert len(pids) == 3, "a daemon and two workers"
        assert all(map(ended, pids))


@pytest.fixture
def elsewhere(spark: Spark) -> Iterator[Spark]:
    """A Spark whose executors find another daemon, if any: Spark looks its name up for every job."""
    conf = spark.session.sparkContext._jsc.sc().env().conf()
    spark._workers_warm = False
    yield spark
    conf.set("spark.python.daemon.module", workers.DAEMON)
    spark._workers_warm = False


def test_a_module_that_executors_do_not_find_is_named(elsewhere: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = "tidelock_of_another_day.workers"
    monkeypatch.setattr(workers, "DAEMON", missing)
    elsewhere.session.sparkContext._jsc.sc().env().conf().set("spark.python.daemon.module", missing)
    with pytest.raises(SettingsError, match=r"No module named 'tidelock_of_.*tidelock\[server\].*doctor"):
        elsewhere.warm_workers()


def test_a_package_that_a_daemon_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "pandas.py").write_text("raise ImportError('no pandas here')")
    ran = subprocess.run(
        [sys.executable, "-m", workers.DAEMON, "pyspark.worker"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == f"no pandas here in {sys.executable}\n"


def test_a_daemon_ends_when_nobody_holds_its_input() -> None:
    daemon = subprocess.Popen(
        [sys.executable, "-m", workers.DAEMON, "pyspark.worker"],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert daemon.stdout is not None
    assert len(daemon.stdout.read(4)) == 4, "the port that it listens on"
    daemon.communicate(timeout=HANG_S)
    assert daemon.returncode in (0, 1, -signal.SIGHUP)
