"""The law on a real cluster, a standalone master with two workers: the tables of the model, and the whole lake."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.conftest import Databases
from tests.ledgers import write_ledger
from tests.model import fold
from tests.sinks.stores import TestLake
from tests.spark.cluster import Cluster
from tests.spark.folding import differences, expected, pictured
from tests.spark.ledgers import COMPUTED
from tests.spark.packs import drawn
from tests.spark.test_law import EXECUTORS, ROOT, Way, packed_for, tables_in
from tests.spark.timelines import timed_definitions, timed_ledgers

#: starting a cluster takes half a minute of both cores; `make soak` has the time
pytestmark = pytest.mark.soak

WORKERS = 2


class Clustered:
    """A driver in a process of its own: one process has one Spark."""

    def __init__(self, cluster: Cluster, jars: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.clustered", cluster.master, str(jars)],
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


@pytest.fixture(scope="module")
def driver(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clustered]:
    with Cluster(tmp_path_factory.mktemp("cluster"), WORKERS) as cluster:
        driver = Clustered(cluster, jars)
        yield driver
        driver.close()


def prove(driver: Clustered, databases: Databases, ledgers: int, cut: str, lake: Path) -> None:
    number = int(os.environ.get("LAW_SEED", random.randrange(10**6)))
    print(f"LAW_SEED={number}")
    tomls = drawn(timed_definitions(), 10 * ledgers, number)[9::10]
    for place, toml in enumerate(tomls):
        packed = packed_for(toml, drawn(timed_ledgers(), 20, number + place), Random(number + place))
        wanted = expected(fold(packed.events, toml, COMPUTED), toml)
        ranges = Way(cut, EXECUTORS, 2).ranges(packed, Random(number + place))
        with databases() as database:
            write_ledger(database, packed.events, packed.ends)
            store = TestLake(lake / str(place))
            executors = driver.fold(url=database.url, toml=toml, ranges=ranges, lake=str(store.path))
            assert executors == 1 + WORKERS
            assert differences(pictured(database, tables_in(toml)), wanted) == {}
            assert store.prove(database).ok, store.prove(database).detail
            assert len(store.read()) == len(packed.events)
        print(f"{place + 1} of {ledgers} packs, {len(packed.events)} events in {len(ranges)} ranges", flush=True)


@pytest.mark.timeout(900)
def test_the_law_holds_on_two_workers(driver: Clustered, databases: Databases, tmp_path: Path) -> None:
    prove(driver, databases, 1, "everything", tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_the_law_holds_on_two_workers_for_many_ledgers(driver: Clustered, databases: Databases, tmp_path: Path) -> None:
    prove(driver, databases, 20, "random", tmp_path)
