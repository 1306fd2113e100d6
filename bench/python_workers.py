"""What a trivial task costs in a Python worker, by PySpark's own daemon and by ours: `python -m bench.python_workers`.

Both in one JVM, in turn, so that what else the machine does slows down both. Medians; figures in spark.md.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench import memory
from tidelock.settings.groups import SparkSettings
from tidelock.spark.runtime import Spark
from tidelock.spark.workers import DAEMON, warm_workers

_WAYS = {"no Python": None, "PySpark's daemon": "pyspark.daemon", "ours": DAEMON}
_WARM = 20


class Jobs:
    """Trivial jobs, with the daemon that each is to use."""

    def __init__(self, spark: Spark) -> None:
        self._spark = spark
        # Spark looks the daemon up for every job, and keeps one for each that was named.
        self._conf = spark.session.sparkContext._jsc.sc().env().conf()

    def run_s(self, module: str | None, tasks: int) -> float:
        started = time.perf_counter()
        if module is None:
            nothing = self._spark.session.range(0, tasks, numPartitions=tasks)
            nothing.write.format("noop").mode("overwrite").save()
        else:
            self._conf.set("spark.python.daemon.module", module)
            warm_workers(self._spark.session, tasks)
        return time.perf_counter() - started

    def worked_s(self, module: str | None) -> float:
        """Processor time of the workers."""
        below = list(memory.descendants(self._spark.pid))
        return sum(memory.processor_s(pid) for pid, command in below if module and f"-m {module} " in command)


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as place, Spark(SparkSettings(master="local[2]"), Path(place)) as spark:
        jobs = Jobs(spark)
        for name, module in _WAYS.items():
            print(f"the first job, {name}: {jobs.run_s(module, 2):.2f} s", flush=True)
        for _ in range(_WARM):
            for module in _WAYS.values():
                jobs.run_s(module, 2)
        for tasks in (1, 2):
            before = {name: jobs.worked_s(module) for name, module in _WAYS.items()}
            found: dict[str, list[float]] = {name: [] for name in _WAYS}
            for _ in range(rounds):
                for name, module in _WAYS.items():
                    found[name].append(jobs.run_s(module, tasks) * 1000)
            for name, module in _WAYS.items():
                low, *_, high = statistics.quantiles(found[name], n=10)
                cpu = (jobs.worked_s(module) - before[name]) * 1000 / rounds / tasks
                told = f"median {statistics.median(found[name]):.0f} ms, p10 {low:.0f}, p90 {high:.0f}"
                print(f"tasks: {tasks}, {name}: {told}; processor time of a worker a task {cpu:.1f} ms", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
