"""Python workers that start quickly: the module that Spark starts as their daemon, `spark.python.daemon.module`.

PySpark's own daemon leaves three costs to every task, also in a worker that is reused. Three archives are on its path
(`pyspark.zip`, Py4J, the jar of Spark's core), and each task drops Python's import caches, so their directories are
read again every time. Each task ends with a full garbage collection over everything that was ever imported. And a new
worker imports what it computes with after it was forked. Here the archives are off the path, the libraries are imported
before the fork, and the collector skips what exists by then. Figures: bench/spark.md.

This runs on executors too: it imports nothing of ours but what the kernel is.
"""

from __future__ import annotations

import gc
import importlib
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tidelock import __version__

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

#: for `spark.python.daemon.module`
DAEMON = "tidelock.spark.workers"
#: what a worker computes with, imported once and shared by all that are forked
_PRELOADED = (
    "numpy",
    "pandas",
    "pyarrow",
    "pyarrow.compute",
    "tidelock.fold.executors",
    "tidelock.fold.windows.slices",
)
#: packages that workers need, and how one that is missing is told
NEEDED = {
    "tidelock": f"tidelock {__version__}",
    "numpy": "numpy",
    "pandas": "pandas<3",
    "pyarrow": "pyarrow",
}
#: tells host, Python and versions of the packages that are named to it; a package that is broken is as good as none
_LOOK = """
import importlib, json, platform, sys
packages = {}
for name in sys.argv[1:]:
    try:
        packages[name] = str(importlib.import_module(name).__version__)
    except Exception:
        pass
print(json.dumps([platform.node(), sys.executable, packages]))
"""
#: how Spark quotes a daemon that ended before it listened
_SAID = re.compile(r"Error from python worker:\n(.*?)\nPYTHONPATH was:", re.DOTALL)
#: what the JVM puts on a worker's path: PySpark, Py4J, and the jar with thousands of classes beside them
_ARCHIVE = re.compile(r"pyspark\.zip|py4j-.*\.zip|spark-core_.*\.jar")
_VERSION = re.compile(r"""__version__: str = ['"]([^'"]+)""")


def warm_workers(session: SparkSession, parallelism: int) -> None:
    """Have a worker for every task that runs at a time, before there is something to do."""
    slots = session.range(0, parallelism, numPartitions=parallelism)
    slots.mapInArrow(_unchanged, slots.schema).write.format("noop").mode("overwrite").save()


def _unchanged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def failure(error: BaseException) -> str | None:
    """What to do about workers that could not be started, by what Spark says of it; None where that is not it."""
    text = str(error)
    if f"{DAEMON}'s stdout" not in text and f"{DAEMON}'s standard output" not in text:
        return None
    found = _SAID.search(text)
    said = " ".join(found[1].split()) if found else "it printed nothing"
    return (
        f"the executors' Python could not start {DAEMON} ({said}). Install this version there: pip install "
        "'tidelock[server]'. PYSPARK_PYTHON sets which Python is used; `tidelock doctor` shows what is missing where."
    )


class Environment(NamedTuple):
    """The Python of workers on one host."""

    host: str
    python: str
    #: of what can be imported there, the version
    packages: dict[str, str]

    def lacks(self) -> list[str]:
        """What the fold needs and is not there, or not in a version that fits."""
        return [needed for name, needed in NEEDED.items() if not _fits(name, self.packages.get(name))]


def environment(python: str) -> Environment:
    """Of a Python on this machine. Raises OSError and ValueError where it does not run."""
    ran = subprocess.run([python, "-c", _LOOK, *NEEDED], capture_output=True, text=True)
    return Environment(*json.loads(ran.stdout))


def environments(session: SparkSession, parallelism: int) -> list[Environment]:
    """Of every host that tasks run on. Needs nothing of ours there, if PySpark's own daemon is the session's."""
    arguments = ["-c", _LOOK, *NEEDED]

    # Within, so that it is sent as code: an executor that lacks us could not import it.
    def look(_: Iterable[int]) -> Iterator[str]:
        import subprocess
        import sys

        # A process of its own takes long enough for the tasks to reach every executor.
        yield subprocess.run([sys.executable, *arguments], capture_output=True, text=True).stdout

    tasks = 4 * parallelism
    said = session.sparkContext.parallelize(range(tasks), tasks).mapPartitions(look).collect()
    found = (Environment(*json.loads(text)) for text in said)
    return [each for _, each in sorted({(each.host, each.python): each for each in found}.items())]


def _fits(name: str, found: str | None) -> bool:
    """Whether a package is there in a version that the fold can use."""
    if found is None:
        return False
    if name == "tidelock":
        return found == __version__
    return name != "pandas" or int(found.split(".")[0]) < 3


def main() -> None:
    """Fork workers for as long as the JVM wants some; ends with it."""
    _drop_archives()
    try:
        for name in _PRELOADED:
            importlib.import_module(name)
        daemon = importlib.import_module("pyspark.daemon")
    except ImportError as missing:
        raise SystemExit(f"{missing} in {sys.executable}") from None
    gc.collect()
    gc.freeze()
    daemon.manager()


def _drop_archives() -> None:
    """Take Spark's archives off the path, where the installed PySpark is the same: it must fit the JVM, as they do."""
    archives = {entry for entry in sys.path if _ARCHIVE.fullmatch(Path(entry).name)}
    try:
        installed = version("pyspark")
    except PackageNotFoundError:
        return
    if any(_archived(Path(entry)) not in (None, installed) for entry in archives):
        return
    sys.path[:] = [entry for entry in sys.path if entry not in archives]
    # Importers that were made for them would still be told to read their directories again.
    for entry in list(sys.path_importer_cache):
        if entry.startswith(tuple(archives)):
            del sys.path_importer_cache[entry]
    # Python's `copy` and `pickle` look for Jython's `org.python`; the `org` that `copy` found is the jar's.
    sys.modules.pop("org", None)


def _archived(archive: Path) -> str | None:
    """The version of PySpark in an archive; None where there is none in it."""
    try:
        with zipfile.ZipFile(archive) as opened:
            found = _VERSION.search(opened.read("pyspark/version.py").decode())
    except (OSError, KeyError, zipfile.BadZipFile):
        return None
    return found[1] if found else None


if __name__ == "__main__":
    main()
