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
#: libraries of a worker, imported once and shared by all forks
_PRELOADED = (
    "numpy",
    "pandas",
    "pyarrow",
    "pyarrow.compute",
    "tidelock.fold.executors",
    "tidelock.fold.windows.slices",
)
#: packages that workers need, and what to say if one is missing
NEEDED = {
    "tidelock": f"tidelock {__version__}",
    "numpy": "numpy",
    "pandas": "pandas<3",
    "pyarrow": "pyarrow",
}
#: prints host, Python and versions of the packages given to it; a broken package counts as missing
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
#: how Spark reports a daemon that exited before it listened
_SAID = re.compile(r"Error from python worker:\n(.*?)\nPYTHONPATH was:", re.DOTALL)
#: what the JVM puts on a worker's path: PySpark, Py4J, and a jar with thousands of classes
_ARCHIVE = re.compile(r"pyspark\.zip|py4j-.*\.zip|spark-core_.*\.jar")
_VERSION = re.compile(r"""__version__: str = ['"]([^'"]+)""")


def warm_workers(session: SparkSession, parallelism: int) -> None:
    """Start a worker for every task slot before there is work."""
    slots = session.range(0, parallelism, numPartitions=parallelism)
    slots.mapInArrow(_unchanged, slots.schema).write.format("noop").mode("overwrite").save()


def _unchanged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def failure(error: BaseException) -> str | None:
    """What to do about workers that could not be started, by Spark's message; None if the cause is another."""
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
    """The Python environment of workers on one host."""

    host: str
    python: str
    #: versions of the packages that can be imported
    packages: dict[str, str]

    def lacks(self) -> list[str]:
        """Packages the fold needs that are missing or of an unsuitable version."""
        return [needed for name, needed in NEEDED.items() if not _fits(name, self.packages.get(name))]


def environment(python: str) -> Environment:
    """The environment of a Python on this machine. Raises OSError and ValueError if it does not run."""
    ran = subprocess.run([python, "-c", _LOOK, *NEEDED], capture_output=True, text=True)
    return Environment(*json.loads(ran.stdout))


def environments(session: SparkSession, parallelism: int) -> list[Environment]:
    """The environments of every host that runs tasks. With PySpark's own daemon it needs nothing of ours there."""
    arguments = ["-c", _LOOK, *NEEDED]

    # Nested, so that it is pickled by value: an executor without Tidelock could not import it.
    def look(_: Iterable[int]) -> Iterator[str]:
        import subprocess
        import sys

        # Starting a process takes long enough for tasks to reach every executor.
        yield subprocess.run([sys.executable, *arguments], capture_output=True, text=True).stdout

    tasks = 4 * parallelism
    said = session.sparkContext.parallelize(range(tasks), tasks).mapPartitions(look).collect()
    found = (Environment(*json.loads(text)) for text in said)
    return [each for _, each in sorted({(each.host, each.python): each for each in found}.items())]


def _fits(name: str, found: str | None) -> bool:
    """Whether a package is installed in a version that the fold can use."""
    if found is None:
        return False
    if name == "tidelock":
        return found == __version__
    return name != "pandas" or int(found.split(".")[0]) < 3


def main() -> None:
    """Fork workers on the JVM's request; exits with it."""
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
    """Remove Spark's archives from the path if the installed PySpark has the same version: it must match the JVM."""
    archives = {entry for entry in sys.path if _ARCHIVE.fullmatch(Path(entry).name)}
    try:
        installed = version("pyspark")
    except PackageNotFoundError:
        return
    if any(_archived(Path(entry)) not in (None, installed) for entry in archives):
        return
    sys.path[:] = [entry for entry in sys.path if entry not in archives]
    # Their cached importers would still be invalidated, which reads their directories again.
    for entry in list(sys.path_importer_cache):
        if entry.startswith(tuple(archives)):
            del sys.path_importer_cache[entry]
    # Python's `copy` and `pickle` look for Jython's `org.python`; the `org` that `copy` found is the jar's.
    sys.modules.pop("org", None)


def _archived(archive: Path) -> str | None:
    """The version of PySpark in an archive; None if it has none."""
    try:
        with zipfile.ZipFile(archive) as opened:
            found = _VERSION.search(opened.read("pyspark/version.py").decode())
    except (OSError, KeyError, zipfile.BadZipFile):
        return None
    return found[1] if found else None


if __name__ == "__main__":
    main()
