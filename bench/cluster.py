"""`bench cluster`: one backlog folded by one worker and by more, on a cluster and in one JVM, and who worked how long.

On a ledger that is thrown away. A worker has one core, or less: with a quota workers are what is scarce, as on a real
cluster, and not the cores that they share with the driver and Postgres. Where the time goes is told twice: by the step
that the driver was in, and by the processor time of every process that took part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench import runs, scratch
from bench.backlog import Backlog
from bench.fold import definitions
from bench.harness import Say
from bench.runs import Figures, Run
from bench.standalone import CONF, Cluster
from tidelock.ledger.opening import migrate_ledger, open_database
from tidelock.postgres.database import Database
from tidelock.settings import Settings
from tidelock.spark.runtime import Spark

_CUSTOMERS = 10_000
#: what is folded before, in every JVM: Java compiles what runs often
_WARM_EVENTS = 500_000
#: steps in which the driver waits for executors, is busy itself, and waits for Postgres
_PHASES = {
    "spark": ("executors",),
    "driver": ("record", "rest"),
    "postgres": ("write",),
}
#: who works for a cluster's executors, and is none of them
_OUTSIDE = ("jvm", "python", "postgres")
#: jobs begin when all executors are there, or the first would be done by one
_ALL_THERE = {"spark.scheduler.minRegisteredResourcesRatio": "1.0"}


@dataclass(frozen=True, slots=True)
class Folded:
    """One fold, and what the processes that took part have worked."""

    master: str
    workers: int
    run: Run

    @property
    def outside_s(self) -> float | None:
        """Processor time outside the executors, which more workers cannot share; not known where the JVM is one."""
        worked = self.run.processor_s
        return sum(worked[who] for who in _OUTSIDE) if self.master == "cluster" else None

    def figures(self, events: int) -> Figures:
        phases = {
            f"{name}Seconds": round(sum(self.run.steps.get(step, 0.0) for step in steps), 2)
            for name, steps in _PHASES.items()
        }
        outside = self.outside_s
        return {
            "workers": self.workers,
            "events": events,
            "eventsPerSecond": round(events / self.run.seconds),
            "seconds": round(self.run.seconds, 2),
            **phases,
            **{f"{name}ProcessorSeconds": round(worked, 2) for name, worked in self.run.processor_s.items()},
            **self.run.microseconds(events),
            "outsideMicrosecondsPerEvent": None if outside is None else round(outside * 1e6 / events, 2),
            "coresBusy": round(sum(self.run.processor_s.values()) / self.run.seconds, 2),
        }


class _Machine:
    """What is measured on: a backlog, and who works on it."""

    def __init__(self, settings: Settings, backlog: Backlog, say: Say, quota: float | None) -> None:
        """`quota`: what each worker of a cluster may have of a processor while the fold is timed."""
        self._settings = settings
        self._backlog = backlog
        self._say = say
        self._quota = quota

    def fold(self, master: str, workers: int, cluster: Cluster | None = None) -> Folded:
        """Fold everything by a Spark of its own that has folded some of it before."""
        conf = {**self._settings.spark.conf, **(_ALL_THERE | CONF if cluster else {})}
        wanted = replace(self._settings.spark, master=master, conf=conf)
        with Spark(wanted, self._settings.data) as spark, runs.compiled(spark):
            given = (spark, self._backlog, definitions(live=True))
            runs.warm(*given, _WARM_EVENTS)
            executors = (lambda: cluster.executors) if cluster else tuple
            if cluster is not None:
                cluster.limit(self._quota)
            run = runs.fold(*given, self._settings.fold.range_events_max, executors=executors)
            if cluster is not None:
                cluster.limit(None)
        self._backlog.folded()
        name = "a cluster" if cluster else master
        self._say(f"  {name}, workers: {workers}: {self._backlog.events / run.seconds:,.0f} ev/s")
        return Folded(master if cluster is None else "cluster", workers, run)


def measure(
    settings: Settings,
    workers: Sequence[int],
    events: int,
    say: Say,
    *,
    place: Path | None,
    quota: float | None = None,
) -> list[Figures]:
    """Figures for each number of workers, in one JVM and on a cluster; all on a Postgres of their own in `place`.

    With a quota, only on a cluster: a single JVM is the driver too.
    """
    with _scratch_ledger(settings, place) as (own, database):
        say(f"filling a ledger: {events:,} events of {_CUSTOMERS:,} customers")
        machine = _Machine(own, Backlog(database, events, _CUSTOMERS, own.partition_events), say, quota)
        alone = [machine.fold(f"local[{count}]", count) for count in workers] if quota is None else []
        together = []
        with Cluster(own.data, 0, own.spark.java, limited=quota is not None) as cluster:
            for count in workers:
                while len(cluster.workers) < count:
                    cluster.start_worker()
                cluster.wait(count)
                together.append(machine.fold(cluster.master, count, cluster))
        return [
            folded.figures(events) | scaling(some[0], folded, quota or 1.0)
            for some in (alone, together)
            for folded in some
        ]


def scaling(first: Folded, folded: Folded, quota: float = 1.0) -> Figures:
    """How much sooner than the first, and how much sooner it could be: only what executors do can be shared out.

    `quota`: of a processor, what each had for it.
    """
    worked = first.run.processor_s
    shared = ((worked["executors"] or worked["jvm"]) + worked["workers"]) / quota
    rest = max(first.run.seconds - shared, 0.0)
    least = rest + shared * first.workers / folded.workers
    return {
        "speedup": round(first.run.seconds / folded.run.seconds, 2),
        "speedupMost": round(first.run.seconds / least, 2),
    }


@contextmanager
def _scratch_ledger(settings: Settings, place: Path | None) -> Iterator[tuple[Settings, Database]]:
    with scratch.directory(place) as data:
        scratch.take_jars(settings.data, data)
        own = replace(settings, data=data, database_url=None)
        with open_database(own) as server, scratch.database(server, "bench_cluster") as database:
            migrate_ledger(database)
            yield own, database
