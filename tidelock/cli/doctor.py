"""A doctor: checks what Tidelock needs on a machine, and says what to do about what is missing.

Nothing is started or changed, with two exceptions. A Postgres that the settings name is asked for its version, and on a
cluster that they name a Spark is started, which asks the executors what they can import.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psycopg

from tidelock.errors import TidelockError
from tidelock.postgres.embedded import find_binaries
from tidelock.settings import Settings
from tidelock.spark import packages
from tidelock.spark.configuration import check, is_local
from tidelock.spark.java import ask, find_java
from tidelock.spark.runtime import Spark
from tidelock.spark.workers import NEEDED, Environment, environment

#: warn if less space than this is free
_DISK_BYTES = 2 * 1024**3
_MEMORY_BYTES = 2 * 1024**3
_POSTGRES_MIN = 150000
_CONNECT_S = 5
#: how long a cluster may take to run a task: others may use all its cores
_EXECUTORS_S = 60.0
#: extras, what each brings, and what it is for
_EXTRAS = {
    "kafka": ("confluent-kafka", "the mirror to Kafka"),
    "clickhouse": ("clickhouse-connect", "loading ClickHouse"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    ok: bool
    detail: str
    #: what to do, if anything
    advice: str | None = None

    def form(self) -> dict[str, object]:
        return asdict(self)


def examine(settings: Settings) -> Iterator[Finding]:
    """All checks, one after the other; a check that fails to run is a finding too."""
    local = is_local(settings.spark.master)
    workers = (_workers,) if local else ()
    for look in (_python, _java, _spark, _driver, *workers, _postgres, _port, _disk, _memory):
        try:
            yield look(settings)
        except TidelockError as error:
            yield Finding(look.__name__.strip("_"), False, str(error))
    if not local:
        yield from _executors(settings)
    yield from _extras()


def _python(_: Settings) -> Finding:
    found = platform.python_version()
    ok = sys.version_info >= (3, 11)
    return Finding("python", ok, f"{found}, tidelock {version('tidelock')}", None if ok else "use Python 3.11 or newer")


def _java(settings: Settings) -> Finding:
    named = settings.spark.java
    found = ask(named / "bin" / "java") if named is not None else find_java(os.environ)
    if found is None or not found.fits:
        return Finding(
            "java", False, f"{named} is not Java 17 or 21", "name another Java with `spark.java` or JAVA_HOME"
        )
    return Finding("java", True, f"{found.version} in {found.home}")


def _spark(settings: Settings) -> Finding:
    return Finding("spark", True, f"PySpark {version('pyspark')}, on {settings.spark.master}")


def _driver(settings: Settings) -> Finding:
    for directory in filter(None, (settings.spark.jars, settings.data / "jars")):
        if zipfile.is_zipfile(directory / packages.NAME):
            return Finding("jdbc driver", True, str(directory / packages.NAME))
    return Finding("jdbc driver", True, "not there yet; the first start of the fold downloads it")


def _workers(_: Settings) -> Finding:
    """The Python that a local Spark starts for its workers."""
    python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    try:
        found = environment(python)
    except (OSError, ValueError) as error:
        return Finding("workers", False, f"{python} cannot be run: {error}", "set PYSPARK_PYTHON to the Python to use")
    return _finding("workers", found)


def _executors(settings: Settings) -> Iterator[Finding]:
    """One finding for each host of a cluster."""
    # PySpark's own daemon, because ours may be what is missing. A few tasks would not reach every host.
    conf = dict(settings.spark.conf) | {"spark.python.daemon.module": "pyspark.daemon"}
    conf = {"spark.scheduler.minRegisteredResourcesRatio": "1.0", **conf}
    try:
        check(settings.spark, settings.database_url)
        with Spark(replace(settings.spark, conf=conf), settings.data) as spark:
            found = spark.environments(_EXECUTORS_S)
    except TidelockError as error:
        advice = "start the cluster or free a core; PYSPARK_PYTHON must name a Python that every executor has"
        yield Finding("executors", False, str(error), advice)
        return
    for place in found:
        yield _finding(f"executors on {place.host}", place)


def _finding(name: str, found: Environment) -> Finding:
    if lacking := found.lacks():
        advice = f"install this version there: {found.python} -m pip install 'tidelock[server]=={version('tidelock')}'"
        return Finding(name, False, f"{found.python} lacks {', '.join(lacking)}", advice)
    told = ", ".join(f"{package} {found.packages[package]}" for package in NEEDED)
    return Finding(name, True, f"{found.python}: {told}")


def _postgres(settings: Settings) -> Finding:
    if settings.database_url is None:
        return Finding("postgres", True, f"embedded, with the programs in {find_binaries(settings.postgres.binaries)}")
    try:
        with psycopg.connect(settings.database_url, connect_timeout=_CONNECT_S) as connection:
            found = connection.info.server_version
    except psycopg.Error as error:
        said = str(error).strip().splitlines()[0]
        return Finding("postgres", False, said, "start it, or correct DATABASE_URL")
    ok = found >= _POSTGRES_MIN
    return Finding("postgres", ok, f"version {found // 10_000}", None if ok else "Tidelock needs Postgres 15 or newer")


def _port(settings: Settings) -> Finding:
    place = f"{settings.host}:{settings.port}"
    with socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            return Finding(
                "port",
                False,
                f"{place}: {error.strerror}",
                "stop the program that listens there, or choose another with --port",
            )
    return Finding("port", True, f"{place} is free")


def _disk(settings: Settings) -> Finding:
    place = next(parent for parent in (settings.data.absolute(), *settings.data.absolute().parents) if parent.exists())
    free = shutil.disk_usage(place).free
    ok = free >= _DISK_BYTES and os.access(place, os.W_OK)
    advice = None if ok else "free some space, or choose another directory with --data"
    return Finding("disk", ok, f"{free / 1024**3:.1f} GiB free for {settings.data}", advice)


def _memory(_: Settings) -> Finding:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return Finding("memory", True, "unknown on this system")
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    ok = available >= _MEMORY_BYTES
    advice = None if ok else "Spark and Postgres need 2 GiB; if there is less, lower `spark.driver_memory`"
    return Finding("memory", ok, f"{available / 1024**3:.1f} GiB available", advice)


def _extras() -> Iterator[Finding]:
    for extra, (package, purpose) in _EXTRAS.items():
        try:
            yield Finding(extra, True, f"{package} {version(package)}")
        except PackageNotFoundError:
            yield Finding(extra, True, f"not installed; {purpose} needs: pip install 'tidelock[{extra}]'")
