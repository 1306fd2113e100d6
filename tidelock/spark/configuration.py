"""Spark's configuration: what Tidelock needs, then the settings, checked before anything starts."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

from psycopg.conninfo import conninfo_to_dict

from tidelock.errors import SettingsError
from tidelock.settings.groups import SparkSettings
from tidelock.spark.workers import DAEMON

_LOG4J = Path(__file__).with_name("log4j2.properties")
_LOCAL = re.compile(r"local(\[.*\]|-cluster\[.*\])?")
_CORES = re.compile(r"local\[(\d+)[,\]]|local-cluster\[(\d+),\s*(\d+),")
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
# Shuffle partitions where the number of cores is not known when the session starts.
_CLUSTER_PARTITIONS = 16
_MEBIBYTE = 1 << 20
# Parameters that libpq and the Java driver name alike.
_SHARED = ("sslmode", "sslrootcert", "sslcert", "sslkey", "options")

# By measurement (bench/spark.md): collectors differ little; stopping at the first compiler would start a second sooner
# and then group three times as slowly.
_JVM = f"-XX:+UseParallelGC -XX:-UsePerfData -Dlog4j2.configurationFile={_LOG4J.as_uri()}"

_ALWAYS = {
    "spark.app.name": "tidelock",
    "spark.submit.deployMode": "client",
    "spark.sql.session.timeZone": "UTC",
    # Wrong data must raise or be caught by try_*, never turn into null unseen.
    "spark.sql.ansi.enabled": "true",
    # Definitions end up in the steps' SQL, and "${env:HOME}" in one is that text and nothing else.
    "spark.sql.variable.substitute": "false",
    "spark.sql.catalogImplementation": "in-memory",
}
_USUALLY = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Batches by their rows alone: asking for a batch's bytes after every row costs as much as writing the row does.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    # A task that does nothing takes 2 ms of processor time in its workers, 120 to 160 in PySpark's: bench/spark.md.
    "spark.python.daemon.module": DAEMON,
    # Replanning between stages costs a small range more than it saves a large one.
    "spark.sql.adaptive.enabled": "false",
    # What the steps of large ranges are compiled to is kept for the next range; with many windows that is much.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # A range is kept for as long as it is folded: compressing it would cost more than the memory is worth.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # Each range makes new plans; thousands of old ones would be kept for an interface that is off.
    "spark.ui.retainedJobs": "10",
    "spark.ui.retainedStages": "10",
    "spark.ui.retainedTasks": "100",
    "spark.sql.ui.retainedExecutions": "10",
    "spark.cleaner.periodicGC.interval": "10min",
}
# The law does not hold with other values of these.
_FIXED = frozenset(
    {
        "spark.sql.session.timeZone",
        "spark.sql.ansi.enabled",
        "spark.sql.variable.substitute",
        "spark.submit.deployMode",
    }
)
_OWN_OPTION = {"spark.master": "spark.master", "spark.driver.memory": "spark.driver_memory"}


def is_local(master: str) -> bool:
    return _LOCAL.fullmatch(master) is not None


def cores(master: str) -> int | None:
    """How many tasks run at a time; None if only the cluster knows."""
    if not is_local(master):
        return None
    if found := _CORES.match(master):
        return int(found[1]) if found[1] else int(found[2]) * int(found[3])
    return 1 if master == "local" else _own_cores()


def grows_with_cluster(spark: SparkSettings) -> bool:
    """Whether a range is cut into as many parts as the cluster has cores at that time.

    Not if the settings give the number of parts, and not with dynamic allocation.
    """
    told = SHUFFLE_PARTITIONS in spark.conf or spark.conf.get("spark.dynamicAllocation.enabled") == "true"
    return not is_local(spark.master) and not told


def _own_cores() -> int:
    # Fewer than the machine has under a container's limit or taskset; macOS has no such call.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check(spark: SparkSettings, database_url: str | None) -> None:
    """Raise SettingsError for what cannot work."""
    if spark.master.startswith("sc://"):
        raise SettingsError(
            f"`spark.master` is {spark.master}, a Spark Connect server, but the fold runs Spark's driver itself. Name "
            "the cluster behind it: local[*], spark://host:7077, yarn or k8s://...",
            field="spark.master",
        )
    if not is_local(spark.master) and database_url is None:
        raise SettingsError(
            f"`spark.master` is {spark.master}, whose executors cannot reach the embedded Postgres: it listens on this "
            "machine only. Set `database_url` (DATABASE_URL) to a server they can reach, or "
            "`spark.master` to local[*].",
            field="spark.master",
        )
    for name in spark.conf:
        if name in _OWN_OPTION:
            raise SettingsError(f"`{name}` in `spark.conf` must be set as `{_OWN_OPTION[name]}`.", field="spark.conf")
        if name in _FIXED or name == "spark.remote":
            raise SettingsError(f"`{name}` in `spark.conf` cannot be changed.", field="spark.conf")


def spark_conf(spark: SparkSettings, directory: Path, jars: list[Path]) -> dict[str, str]:
    """Everything the JVM is started with; `directory` is for its files while it runs."""
    given = dict(spark.conf)
    parallel = cores(spark.master) or _CLUSTER_PARTITIONS
    made = {
        **_ALWAYS,
        **_USUALLY,
        "spark.master": spark.master,
        "spark.driver.memory": f"{spark.driver_memory // _MEBIBYTE}m",
        SHUFFLE_PARTITIONS: str(parallel),
        "spark.sql.warehouse.dir": (directory / "warehouse").as_uri(),
        **given,
    }
    if is_local(spark.master):
        made = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", **made}
    own_options = f"{_JVM} -Djava.io.tmpdir={_quoted(directory)}"
    made["spark.driver.extraJavaOptions"] = f"{own_options} {given.get('spark.driver.extraJavaOptions', '')}".strip()
    if uris := [*(jar.as_uri() for jar in jars), *filter(None, [given.get("spark.jars")])]:
        made["spark.jars"] = ",".join(uris)
    return made


def spark_environment(spark: SparkSettings, java_home: Path, directory: Path) -> Mapping[str, str]:
    """Environment of the JVM. Unless told otherwise, a local Spark binds to the first interface it finds."""
    made = {"JAVA_HOME": str(java_home), "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
    if is_local(spark.master):
        made |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(directory)}
    return made


def _quoted(path: Path) -> str:
    """Quoted the way Spark's launcher splits options."""
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


def jdbc_options(url: str) -> dict[str, str] | None:
    """How Java connects to the same database; None where it cannot (a Unix socket)."""
    parts = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    host = parts.get("host", "127.0.0.1")
    if host.startswith("/"):
        return None
    shared = {name: parts[name] for name in _SHARED if name in parts}
    address = f"jdbc:postgresql://{host}:{parts.get('port', '5432')}/{parts.get('dbname', parts.get('user', ''))}"
    options = {"url": address + (f"?{urlencode(shared)}" if shared else ""), "driver": "org.postgresql.Driver"}
    return options | {name: value for name, value in parts.items() if name in ("user", "password")}
