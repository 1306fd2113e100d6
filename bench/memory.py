"""Memory and processor time of processes, as Linux counts them; nothing elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
#: which of its clocks: the scheduler's, to the nanosecond
_SCHEDULED = 2
#: where /proc has the time of a process, in user and system mode, and of its children that ended
_TICKS = slice(11, 15)


#: processor time in seconds, by who worked and by process
Worked = Mapping[str, Mapping[int, float]]


@dataclass(frozen=True, slots=True)
class Processors:
    """Who takes part in a fold. A local Spark has no executors: its JVM is the driver and the executor."""

    #: the driver's
    jvm: int
    #: the process that all others of Postgres are children of
    postmaster: int
    #: JVMs of executors on this machine
    executors: Callable[[], Iterable[int]] = tuple

    def worked(self) -> Worked:
        """What every process has worked so far."""
        executors = list(self.executors())
        return {
            "executors": {pid: processor_s(pid) for pid in executors},
            "jvm": {self.jvm: processor_s(self.jvm)},
            "python": {os.getpid(): processor_s(os.getpid())},
            "workers": dict(_python_workers([self.jvm, *executors])),
            "postgres": {self.postmaster: tree_processor_s(self.postmaster)},
        }

    def since(self, before: Worked) -> dict[str, float]:
        """What everyone has worked since. Spark ends idle workers; what those did is not known any more."""
        return {
            who: sum(seconds - before[who].get(pid, 0.0) for pid, seconds in processes.items())
            for who, processes in self.worked().items()
        }


def worker_peak_mb(jvm: int) -> int | None:
    """The most that one Python worker of a JVM had resident; None: there is none."""
    return max((peak for pid in _worker_pids([jvm]) if (peak := peak_mb(pid)) is not None), default=None)


def _python_workers(jvms: Iterable[int]) -> Iterator[tuple[int, float]]:
    for pid in _worker_pids(jvms):
        with suppress(OSError):
            yield pid, processor_s(pid)


def _worker_pids(jvms: Iterable[int]) -> Iterator[int]:
    """Of their daemons too, which fork them."""
    return (pid for jvm in jvms for pid, command in descendants(jvm) if "pyspark.worker" in command)


def peak_mb(pid: int) -> int | None:
    """The most that was resident since `forget_peak`."""
    return _status_mb(pid, "VmHWM:")


def resident_mb(pid: int) -> int | None:
    return _status_mb(pid, "VmRSS:")


def forget_peak(pid: int) -> None:
    with suppress(OSError):
        (_PROC / str(pid) / "clear_refs").write_text("5")


def processor_s(pid: int) -> float:
    """What the process has worked, its threads together."""
    # The process's own clock (clock_getcpuclockid): /proc counts in hundredths, in which little work is none.
    return time.clock_gettime((~pid << 3) | _SCHEDULED)


def tree_processor_s(pid: int) -> float:
    """What a process, all below it, and those below it that have ended have worked; 0 where Linux does not tell."""
    ticks = 0
    for each in (pid, *(child for child, _ in descendants(pid))):
        with suppress(OSError):
            ticks += sum(map(int, (_PROC / str(each) / "stat").read_text().rpartition(")")[2].split()[_TICKS]))
    return ticks / os.sysconf("SC_CLK_TCK")


def parent(pid: int) -> int:
    return int((_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """Children, theirs and so on, with their command lines."""
    parents: dict[int, list[int]] = {}
    for status in _PROC.glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name before it may have spaces and parentheses.
            parents.setdefault(int(status.read_text().rpartition(")")[2].split()[1]), []).append(
                int(status.parent.name)
            )
    found = list(parents.get(pid, []))
    for child in found:
        found += parents.get(child, [])
        with suppress(OSError):
            yield child, (_PROC / str(child) / "cmdline").read_text().replace("\0", " ")


def _status_mb(pid: int, name: str) -> int | None:
    with suppress(OSError):
        for line in (_PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) // 1024
    return None
