"""A `tidelock mirror` in a process of its own, to be killed and started again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidelock.postgres.database import Database
from tidelock.settings import Settings

ROOT = Path(__file__).parent.parent.parent


class MirrorProcess:
    def __init__(self, database: Database, settings: Settings, directory: Path) -> None:
        kafka = settings.kafka
        self._environ = os.environ | {
            "TIDELOCK_DATABASE_URL": database.url,
            "TIDELOCK_DATA": str(directory),
            "TIDELOCK_KAFKA_BROKERS": ",".join(kafka.brokers),
            "TIDELOCK_KAFKA_TOPIC_PREFIX": kafka.topic_prefix,
            "TIDELOCK_KAFKA_PARTITIONS": str(kafka.partitions),
            "TIDELOCK_KAFKA_BATCH_EVENTS_MAX": str(kafka.batch_events_max),
            "TIDELOCK_KAFKA_QUEUE_BYTES_MAX": str(kafka.queue_bytes_max),
            "TIDELOCK_KAFKA_PAUSE_MAX": "500ms",
        }
        self._log = directory / "mirror.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tidelock", "mirror"],
                cwd=ROOT, env=self._environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(timeout=60)

    def log(self) -> str:
        return self._log.read_text()

    def memory_mib(self) -> float:
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024


@contextmanager
def mirror_process(database: Database, settings: Settings, directory: Path) -> Iterator[MirrorProcess]:
    process = MirrorProcess(database, settings, directory)
    process.start()
    try:
        yield process
    finally:
        process.stop()
