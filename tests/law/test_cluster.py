"""The law on a real cluster, a standalone master with two workers: the tables of the model, and the whole lake.

`SOAK_PACKS` says how many packs of twenty ledgers, `LAW_SEED` repeats a run. None of it is in CI: a cluster takes half
a minute of both cores to start, and a pack, whose every range is the executors', minutes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from bench import memory
from bench.standalone import Cluster
from tests.conftest import Databases
from tests.fold.folding import differences, expected, pictured
from tests.law.ledgers import COMPUTED
from tests.law.packs import drawn
from tests.law.test_law import EXECUTORS, ROOT, Way, packed_for, tables_in
from tests.law.timelines import timed_definitions, timed_ledgers
from tests.ledgers import write_ledger
from tests.model import fold
from tests.sinks.stores import TestLake

pytestmark = pytest.mark.soak

WORKERS = 2
#: of a pack
LEDGERS = 20
#: more than a driver reads by itself
EVENTS = 12_000
#: how long the cluster has been whole before a kill, at random
WHOLE_S = (1.0, 10.0)
#: processor time of an executor that has not only started
WORKED_S = 7.0
#: of a pack; at the last one a worker is lost with its executor, as a machine is: alone it would leave it running
KILLS = 4


class Clustered:
    """A driver in a process of its own: one process has one Spark."""

    def __init__(self, cluster: Cluster, jars: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.law.clustered", cluster.master, str(jars)],
            cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def fold(self, **wanted: object) -> int:
        """How many executors there are, the driver counted."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        assert self._process.wait(60) == 0
        self._process.stdout.close()


@dataclass
class Killer:
    """Kills what a cluster consists of, whenever it is whole."""

    cluster: Cluster
    chance: Random
    executors: int = 0
    workers: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def killing(self) -> Iterator[None]:
        self._stop.clear()
        thread = threading.Thread(target=self._kill, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _kill(self) -> None:
        for number in range(KILLS):
            while not self._whole():
                if self._stop.wait(0.2):
                    return
            if self._stop.wait(self.chance.uniform(*WHOLE_S)):
                return
            if number + 1 < KILLS:
                self._lose(self.chance.choice(self.cluster.executors))
                self.executors += 1
            else:
                worker = self.chance.choice(self.cluster.workers)
                self._lose(worker, *(pid for pid, _ in memory.descendants(worker)))
                self.cluster.start_worker()
                self.workers += 1

    def _whole(self) -> bool:
        """Whether every worker has an executor that works: who cannot start cannot work either."""
        worked = []
        for pid in self.cluster.executors:
            with suppress(OSError):
                worked.append(memory.processor_s(pid))
        return len(worked) == WORKERS and min(worked) > WORKED_S

    def _lose(self, *processes: int) -> None:
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), WORKERS) as started:
        yield started


@pytest.fixture(scope="module")
def driver(cluster: Cluster, jars: Path) -> Iterator[Clustered]:
    driver = Clustered(cluster, jars)
    yield driver
    driver.close()


def prove(
    driver: Clustered,
    databases: Databases,
    number: int,
    packs: int,
    cut: str,
    lake: Path,
    meanwhile: Callable[[], AbstractContextManager[None]] | None = None,
) -> None:
    """Fold packs and load them; tables and changes must be the model's, and the lake the ledger's."""
    for place, toml in enumerate(drawn(timed_definitions(), 10 * packs, number)[9::10]):
        packed = packed_for(toml, drawn(timed_ledgers(), LEDGERS, number + place), Random(number + place))
        wanted = expected(fold(packed.events, toml, COMPUTED), toml)
        ranges = Way(cut, ((EXECUTORS, 2),)).ranges(packed, Random(number + place))
        started = time.monotonic()
        with databases() as database:
            write_ledger(database, packed.events, packed.ends)
            store = TestLake(lake / str(place))
            with nullcontext() if meanwhile is None else meanwhile():
                executors = driver.fold(url=database.url, toml=toml, ranges=ranges, lake=str(store.path))
            assert meanwhile is not None or executors == 1 + WORKERS
            assert differences(pictured(database, tables_in(toml)), wanted) == {}
            assert store.prove(database).ok, store.prove(database).detail
            assert len(store.read()) == len(packed.events)
        told = f"{len(packed.events)} events in {len(ranges)} ranges, {time.monotonic() - started:.0f} s"
        print(f"{place + 1} of {packs} packs of {LEDGERS} ledgers: {told}", flush=True)


@pytest.mark.timeout(900)
def test_the_commands_of_the_page_run_on_it(cluster: Cluster, databases: Databases, jars: Path, tmp_path: Path) -> None:
    """docs/spark.md: the settings are in the environment, the ledger is what DATABASE_URL names.

    First of all, because the driver of the others takes every core for as long as it lives.
    """
    (tmp_path / "tidelock.toml").write_text("[meters.api_calls]\n")
    event = {"stream": "api_calls", "customerRef": "c", "ts": "2026-01-31T10:00:00Z", "quantity": "1.5"}
    lines = [json.dumps(event | {"idempotencyKey": str(number)}) for number in range(EVENTS)]
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    lake = TestLake(tmp_path / "lake")
    with databases() as database:
        env = {
            "DATABASE_URL": database.url,
            "TIDELOCK_SPARK_MASTER": cluster.master,
            "TIDELOCK_SPARK_CONF": json.dumps({"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}),
            "TIDELOCK_LAKE_PATH": str(lake.path),
        }

        def tidelock(*command: str) -> str:
            words = [sys.executable, "-m", "tidelock", *command, "--data", str(jars)]
            ran = subprocess.run(words, cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True)
            assert ran.returncode == 0, ran.stderr
            return ran.stdout

        tidelock("import", "events.jsonl")
        tidelock("fold", "--once")
        tidelock("load", "--once")
        assert f'"total": "{EVENTS * 3 // 2}"' in tidelock("usage", "api_calls", "c", "--json").replace('":"', '": "')
        tidelock("replay", "api_calls", "--from", "lake")
        assert all(check["ok"] for check in json.loads(tidelock("verify", "--json"))["checks"])
        assert lake.prove(database).ok
        assert len(lake.read()) == EVENTS


@pytest.mark.timeout(7200)
def test_the_law_holds_on_two_workers(driver: Clustered, databases: Databases, number: int, tmp_path: Path) -> None:
    prove(driver, databases, number, int(os.environ.get("SOAK_PACKS", "5")), cut="random", lake=tmp_path)


@pytest.mark.timeout(3600)
def test_executors_and_workers_may_be_killed_while_it_folds(
    cluster: Cluster, driver: Clustered, databases: Databases, number: int, tmp_path: Path
) -> None:
    killer = Killer(cluster, Random(number))
    prove(
        driver,
        databases,
        number,
        int(os.environ.get("SOAK_PACKS", "3")),
        cut="random",
        lake=tmp_path,
        meanwhile=killer.killing,
    )
    print(f"killed: {killer.executors} executors, {killer.workers} workers")
    assert killer.executors
    assert killer.workers
