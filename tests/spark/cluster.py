"""A standalone cluster of Spark's own: a master and workers of one core each, on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from urllib.request import urlopen

from tidelock.fold.java import java_home
from tidelock.fold.jvm import SPARK_HOME

_START_S = 120


class Cluster:
    """`spark-class` is all that the package has of a cluster's scripts, and all it takes."""

    def __init__(self, place: Path, workers: int) -> None:
        self._place = place
        self._port, self._page = _free_port(), _free_port()
        self.master = f"spark://127.0.0.1:{self._port}"
        deploy = "org.apache.spark.deploy"
        self._processes = [
            self._run(
                f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", self._port, "--webui-port", self._page
            )
        ]
        for number in range(workers):
            worker = ("--host", "127.0.0.1", "--webui-port", 0, "-c", 1, "-m", "1g", "-d", place / f"work-{number}")
            self._processes.append(self._run(f"{deploy}.worker.Worker", *worker, self.master))
        self._wait(workers)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(30)

    def _run(self, *arguments: object) -> subprocess.Popen[bytes]:
        with (self._place / "cluster.log").open("ab") as log:
            return subprocess.Popen(
                [SPARK_HOME / "bin" / "spark-class", *map(str, arguments)],
                env=os.environ
                | {
                    "SPARK_HOME": str(SPARK_HOME), "JAVA_HOME": str(java_home(None, self._place)),
                    "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m",
                },
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def _wait(self, workers: int) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            try:
                with urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=5) as answer:
                    if answer.read().count(b'"ALIVE"') > workers:
                        return
            except OSError:
                pass
            time.sleep(0.2)
        raise AssertionError(f"no cluster after {_START_S} s:\n{(self._place / 'cluster.log').read_text()[-3000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
