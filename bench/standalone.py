"""A standalone cluster of Spark's own on this machine: a master, and workers of one core each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from urllib.request import urlopen

import tidelock
from bench.memory import descendants
from bench.quotas import Quota
from tidelock.errors import Unreachable
from tidelock.postgres.ports import free_ports
from tidelock.spark.java import java_home
from tidelock.spark.jvm import SPARK_HOME

_HOST = "127.0.0.1"
_SOURCE = Path(tidelock.__file__).parent.parent
_DEPLOY = "org.apache.spark.deploy"
_START_S = 120.0
_STOP_S = 30.0
_PAUSE_S = 0.2
#: of one executor on each worker; the rest of the worker's gigabyte is for what Java needs beside its heap
EXECUTOR_MEMORY = "768m"

#: what a driver on this machine adds to its settings
CONF = {
    "spark.driver.host": _HOST,
    "spark.driver.bindAddress": _HOST,
    "spark.executor.memory": EXECUTOR_MEMORY,
}


class Cluster:
    """`spark-class` is all that the package has of a cluster's scripts, and all it takes."""

    def __init__(self, place: Path, workers: int, java: Path | None = None, *, limited: bool = False) -> None:
        """What it says goes to `cluster.log` in `place`; `limited`: workers can have quotas. Raises Unreachable if it
        does not start."""
        self._place = place
        self._limited = limited
        self._quotas: list[Quota] = []
        self._java = java_home(java, place)
        port, self._page = free_ports(2)
        self.master = f"spark://{_HOST}:{port}"
        address = ("--host", _HOST, "--port", port, "--webui-port", self._page)
        self._processes = [self._run(f"{_DEPLOY}.master.Master", *address)]
        try:
            for _ in range(workers):
                self.start_worker()
            self.wait(workers)
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> list[int]:
        """The processes of the workers that run."""
        return [process.pid for process in self._processes[1:] if process.poll() is None]

    @property
    def executors(self) -> list[int]:
        """The processes that work for drivers: a worker starts them, and starts others when they die."""
        return [
            pid
            for worker in self.workers
            for pid, command in descendants(worker)
            if "CoarseGrainedExecutorBackend" in command
        ]

    def start_worker(self) -> None:
        place = self._place / f"work-{len(self._processes)}"
        address = ("--host", _HOST, "--webui-port", 0, "-c", 1, "-m", "1g", "-d", place)
        quota = Quota(f"worker-{len(self._processes)}") if self._limited else None
        self._quotas += [quota] if quota is not None else []
        self._processes.append(self._run(f"{_DEPLOY}.worker.Worker", *address, self.master))
        if quota is not None:
            quota.add(self._processes[-1].pid)

    def limit(self, cores: float | None) -> None:
        """Let each worker with its executor have so much of a processor."""
        for quota in self._quotas:
            quota.limit(cores)

    def wait(self, workers: int) -> None:
        """Until the master knows so many workers."""
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            try:
                with urlopen(f"http://{_HOST}:{self._page}/json/", timeout=5) as answer:
                    if json.load(answer)["aliveworkers"] >= workers:
                        return
            except OSError:
                pass
            time.sleep(_PAUSE_S)
        said = (self._place / "cluster.log").read_text(errors="replace")[-2000:]
        raise Unreachable(f"a cluster with {workers} workers did not start within {_START_S:.0f} s: {said}")

    def close(self) -> None:
        # Otherwise their end would take as much longer.
        self.limit(None)
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for quota in self._quotas:
            quota.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, *arguments: object) -> subprocess.Popen[bytes]:
        own = {
            "SPARK_HOME": str(SPARK_HOME),
            "JAVA_HOME": str(self._java),
            "PYSPARK_PYTHON": sys.executable,
            # Executors import the code that is measured, wherever the installed one is.
            "PYTHONPATH": os.pathsep.join(filter(None, [str(_SOURCE), os.environ.get("PYTHONPATH")])),
            "SPARK_LOCAL_IP": _HOST,
            "SPARK_DAEMON_MEMORY": "256m",
        }
        with (self._place / "cluster.log").open("ab") as log:
            return subprocess.Popen(
                [SPARK_HOME / "bin" / "spark-class", *map(str, arguments)],
                env=os.environ | own,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                # Ctrl-C is for the driver, which has the cluster end in order.
                start_new_session=True,
            )
