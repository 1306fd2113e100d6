"""`bench load`, with numbers so small that its figures mean nothing: everything is there."""

from dataclasses import replace
from pathlib import Path

from bench import commands as bench
from bench.backlog import Backlog
from bench.stores import measured
from tests.conftest import Databases
from tidelock.settings import Settings
from tidelock.spark.runtime import Spark

#: more than the driver reads by itself
EVENTS = 12_000


def test_loading_is_measured_beside_duckdb(spark: Spark, databases: Databases, tmp_path: Path) -> None:
    said: list[str] = []
    with databases() as database:
        backlog = Backlog(database, EVENTS, 100, 1_000_000)
        figures = measured(spark, backlog, replace(Settings(), data=tmp_path), said.append, rounds=1)
    assert set(bench._LOAD_ROWS) < set(figures), "every row of the table has its figure"
    # A step may take no processor time that one can see.
    assert None not in figures.values()
    assert all(value for name, value in figures.items() if name.endswith("PerSecond"))
    assert figures["events"] == EVENTS
    assert any("folded from the lake" in line for line in said)
