"""Quotas: how much of a processor a process, and all that it starts, may have; by Linux's control groups."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from tidelock.errors import Unreachable

_MOUNTS, _OWN = Path("/proc/self/mounts"), Path("/proc/self/cgroup")
# Short, so that those who wait for their next turn do not wait long.
_PERIOD_US = 20_000
_TRIES, _PAUSE_S = 50, 0.1


class Quota:
    """A control group of its own, which limits nothing until it is told to."""

    def __init__(self, name: str) -> None:
        """Raises Unreachable where no such group can be made: not on Linux, not as root, or in a closed container."""
        try:
            parent, self._second = _parent()
            self._place = parent / f"tidelock-{os.getpid()}-{name}"
            self._place.mkdir()
        except OSError as error:
            raise Unreachable(
                f"processors cannot be limited here ({error}): run it as root on Linux, or without --quota"
            ) from None

    def add(self, pid: int) -> None:
        """A process, with all that it starts from now on."""
        (self._place / "cgroup.procs").write_text(str(pid))

    def limit(self, cores: float | None) -> None:
        """None: as much as there is."""
        share = None if cores is None else round(cores * _PERIOD_US)
        if self._second:
            (self._place / "cpu.max").write_text(f"{'max' if share is None else share} {_PERIOD_US}")
        else:
            (self._place / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (self._place / "cpu.cfs_quota_us").write_text(str(-1 if share is None else share))

    def close(self) -> None:
        """Its processes must have ended; the last ones may still be ending."""
        for _ in range(_TRIES):
            with suppress(OSError):
                self._place.rmdir()
                return
            time.sleep(_PAUSE_S)


def _parent() -> tuple[Path, bool]:
    """The group that this process is in, and whether groups are of the second version."""
    own = dict(line.split(":", 2)[1:] for line in _OWN.read_text().splitlines())
    for line in _MOUNTS.read_text().splitlines():
        _, place, kind, options = line.split()[:4]
        if kind == "cgroup" and "cpu" in options.split(","):
            name = next((path for names, path in own.items() if "cpu" in names.split(",")), "/")
            return Path(place) / name.lstrip("/"), False
    for line in _MOUNTS.read_text().splitlines():
        _, place, kind = line.split()[:3]
        parent = Path(place) / own.get("", "/").lstrip("/")
        if kind == "cgroup2" and "cpu" in (parent / "cgroup.subtree_control").read_text().split():
            return parent, True
    raise OSError("no control groups for processors")
