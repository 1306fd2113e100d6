"""The daemon of Python workers: when it leaves Spark's archives, and how its failures are told."""

from __future__ import annotations

import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tidelock import __version__
from tidelock.spark import workers

pytestmark = pytest.mark.check


def archives(place: Path, pyspark: str) -> list[str]:
    with zipfile.ZipFile(place / "pyspark.zip", "w") as made:
        made.writestr("pyspark/version.py", f'__version__: str = "{pyspark}"\n')
    others = ("py4j-0.10.9.9-src.zip", "spark-core_2.13-4.0.5.jar")
    for name in others:
        with zipfile.ZipFile(place / name, "w") as made:
            made.writestr("org/x", "")
    return [str(place / name) for name in ("pyspark.zip", *others)]


@pytest.mark.parametrize(("pyspark", "left"), [(version("pyspark"), 0), ("3.5.0", 3)])
def test_archives_are_left_where_the_installed_pyspark_is_the_same(
    pyspark: str, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = archives(tmp_path, pyspark)
    monkeypatch.setattr(sys, "path", [*made, *sys.path])
    monkeypatch.setattr(sys, "path_importer_cache", dict.fromkeys([*made, f"{made[2]}/org", "/elsewhere"]))
    workers._drop_archives()
    assert len(set(made) & set(sys.path)) == left
    assert "/elsewhere" in sys.path_importer_cache
    assert (f"{made[2]}/org" in sys.path_importer_cache) is bool(left)


def test_workers_that_do_not_start_are_told_from_other_failures() -> None:
    # As Spark 4.0.5 says it.
    said = f"""org.apache.spark.SparkException:
Error from python worker:
  No module named 'numpy' in /usr/bin/python3
PYTHONPATH was:
  /spark/pyspark.zip
org.apache.spark.SparkException: EOFException occurred while reading the port number from {workers.DAEMON}'s stdout."""
    told = workers.failure(RuntimeError(said))
    assert told is not None
    assert "(No module named 'numpy' in /usr/bin/python3)" in told
    assert workers.failure(RuntimeError("division by zero")) is None


@pytest.mark.parametrize(
    ("changed", "lacking"),
    [
        ({}, []),
        ({"pandas": "3.0.0"}, ["pandas<3"]),
        ({"tidelock": "0.0.9", "numpy": None}, [f"tidelock {__version__}", "numpy"]),
    ],
)
def test_what_executors_lack_is_reported(changed: dict[str, str | None], lacking: list[str]) -> None:
    fitting = {"tidelock": __version__, "numpy": "2.4.6", "pandas": "2.3.3", "pyarrow": "26.0.1"}
    there = {name: found for name, found in (fitting | changed).items() if found is not None}
    assert workers.Environment("host", "python", there).lacks() == lacking
