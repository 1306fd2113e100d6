"""Archives of the Java classes that Spark and Kafka load: with them a JVM starts with two thirds of the processor time.

Tests start many JVMs. The first run makes the archives beside its tests, by `python -m tests.archives DATA`, and a JVM
uses what there is when it starts. Java goes on without an archive that is missing or does not fit it, so none of this
is needed for anything but speed.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import IO
from unittest import mock

import pyspark
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.fold.folding import Folding
from tests.fold.redefine.definition_changes import BASE, ledger
from tests.ledgers import write_ledger
from tidelock.mirror import broker
from tidelock.postgres.database import Database
from tidelock.postgres.embedded import EmbeddedPostgres
from tidelock.postgres.migrate import migrate
from tidelock.settings.groups import SparkSettings
from tidelock.sinks.kafkasource import kafka_jars
from tidelock.spark import jvm
from tidelock.spark.java import java_home
from tidelock.spark.runtime import Spark

_ROOT = Path(__file__).parent.parent
_LOG = "archiving.log"
#: to write an archive takes longer than to stop
_STOP_S = 300.0
_WINDOWS = {"w": {"stream": "calls", "window": {"tumbling": "1h"}, "select": {"calls": "count(*)"}}}


@contextmanager
def using(data: Path) -> Iterator[None]:
    """JVMs that are started meanwhile use the archives in `data`; where there are none, one process makes them."""
    archives = _places(data)
    with (data / "archiving.lock").open("w") as lock:
        making = None if all(map(Path.exists, archives)) or not _alone(lock) else _make(data)
        # The options of a command line win over those of the environment, so a Spark uses its own.
        os.environ["JDK_JAVA_OPTIONS"] += f' -XX:SharedArchiveFile="{archives[1]}" -Xlog:disable'
        os.environ["SPARK_SUBMIT_OPTS"] = f'-XX:SharedArchiveFile="{archives[0]}"'
        yield
        if making is not None and making.wait() != 0:
            print(f"tests go on without archives of Java's classes: see {data / _LOG}", file=sys.stderr)


def _alone(lock: IO[str]) -> bool:
    """Whether no other worker makes them."""
    with suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _make(data: Path) -> subprocess.Popen[bytes]:
    """With what the tests leave of the processors."""
    command = ["nice", "-n", "19", sys.executable, "-m", "tests.archives", str(data)]
    with (data / _LOG).open("w") as log:
        return subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _places(data: Path) -> tuple[Path, Path]:
    # The program that Spark is started by names the Java behind it.
    java = sha256((java_home(None, data) / "bin" / "java").read_bytes()).hexdigest()[:8]
    return data / f"spark-{pyspark.__version__}-{java}.jsa", data / f"kafka-{broker.VERSION}-{java}.jsa"


def main(data: Path) -> None:
    spark, kafka = _places(data)
    with tempfile.TemporaryDirectory(prefix="tidelock-") as place:
        # The server may run as another user, who has to come through here.
        Path(place).chmod(0o755)
        with mock.patch.object(jvm, "_STOP_S", _STOP_S), mock.patch.object(broker, "_STOP_S", _STOP_S):
            # Put where they are looked for when they are whole.
            for archived, archive in ((_archive_spark, spark), (_archive_kafka, kafka)):
                part = archive.with_suffix(".part")
                archived(data, Path(place), part)
                part.replace(archive)


def _archive_spark(data: Path, place: Path, archive: Path) -> None:
    """Of one that has folded, as the driver does and as executors do."""
    conf = {"spark.driver.extraJavaOptions": f'-XX:ArchiveClassesAtExit="{archive}"'}
    wanted = SparkSettings(master="local[2]", driver_memory=1 << 30, conf=conf)
    server = EmbeddedPostgres(place / "data", None, {"fsync": "off"})
    database = Database(server.ensure())
    with database.connect_sync() as connection:
        migrate(connection)
    ends = write_ledger(database, ledger())
    with Spark(wanted, data, kafka_jars(data, wanted)) as spark:
        for small_events in (10**9, 1):
            with Folding(spark, database, BASE | {"windows": _WINDOWS}, small_events=small_events) as folding:
                folding.fold([(0, ends[1]), (ends[1], ends[-1])])
        spark.session.range(9).write.parquet(str(place / "files"))
        spark.session.read.parquet(str(place / "files")).toArrow()
    server.release()


def _archive_kafka(data: Path, place: Path, archive: Path) -> None:
    """Of one that has a message."""
    options = f'{os.environ.get("JDK_JAVA_OPTIONS", "")} -XX:ArchiveClassesAtExit="{archive}"'
    with mock.patch.dict(os.environ, {"JDK_JAVA_OPTIONS": options}), broker.Broker(place / "kafka", data) as kafka:
        brokers: dict[str, str | int | float | bool] = {"bootstrap.servers": kafka.address}
        admin, producer = AdminClient(brokers), Producer(brokers)
        for made in admin.create_topics([NewTopic("t", 1)]).values():
            made.result()
        producer.produce("t", b"m")
        producer.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
