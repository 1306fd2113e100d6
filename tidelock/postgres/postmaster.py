"""The main process of a running Postgres, according to `postmaster.pid` in its data directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.01
_NUMBER_MAX = 2**31 - 1
# Fast shutdown writes a checkpoint first, which can take its time; Postgres 18 loses the request while it recovers from
# the crash of a backend. Immediate shutdown is as safe as a crash: the next start recovers.
_SHUTDOWNS = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 10.0))


@dataclass(frozen=True, slots=True)
class Postmaster:
    #: its process
    pid: int
    #: the TCP port, 0 while it has not written it yet
    port: int
    #: starting, ready, stopping; empty while it has not written it yet
    status: str

    def stop(self, cluster: Path) -> bool:
        """End it, gently first. False when it is still there."""
        for number, wait_s in _SHUTDOWNS:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
            if self.wait_gone(cluster, wait_s):
                return True
        return False

    def wait_gone(self, cluster: Path, wait_s: float) -> bool:
        deadline = time.monotonic() + wait_s
        while serves(self.pid, cluster):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True


def find(cluster: Path) -> Postmaster | None:
    """The postmaster that serves `cluster` now. A file left by a dead one counts for nothing."""
    recorded = read(cluster)
    return recorded if recorded is not None and serves(recorded.pid, cluster) else None


def read(cluster: Path) -> Postmaster | None:
    """The content of `postmaster.pid`, true or not; None if missing or unreadable."""
    try:
        lines = (cluster / "postmaster.pid").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return None
    lines += [""] * (8 - len(lines))
    # A standalone backend (single-user mode) writes its pid as a negative number.
    pid = abs(_number(lines[0]))
    return Postmaster(pid, _number(lines[3]), lines[7].strip()) if pid else None


def serves(pid: int, cluster: Path) -> bool:
    """Whether `pid` is a postmaster of `cluster`: after a reboot the number may be anybody's.

    Only the postmaster keeps its command line; its children put a title in its place.
    """
    arguments = _arguments(pid)
    if len(arguments) < 3 or "postgres" not in Path(arguments[0]).name or "-D" not in arguments[:-1]:
        return False
    directory = Path(arguments[arguments.index("-D") + 1])
    try:
        return directory == cluster or directory.samefile(cluster)
    except OSError:
        return False


def living(cluster: Path) -> int | None:
    """A process of any Postgres that works in `cluster`, whatever its file says; None: none is visible."""
    if not sys.platform.startswith("linux"):
        listed = subprocess.run(["ps", "-ax", "-o", "pid="], capture_output=True, text=True).stdout.split()
    else:
        listed = [name for name in os.listdir("/proc") if name.isdecimal()]
    return next((int(pid) for pid in listed if serves(int(pid), cluster) or _works_in(int(pid), cluster)), None)


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _works_in(pid: int, cluster: Path) -> bool:
    """Backends that outlive their postmaster have a title in place of a command line, but still their directory."""
    try:
        return Path(f"/proc/{pid}/cwd").samefile(cluster) and "postgres" in _arguments(pid)[0]
    except (OSError, IndexError):
        return False


def _arguments(pid: int) -> list[str]:
    if not sys.platform.startswith("linux"):
        shown = subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True)
        return shown.stdout.split()
    # For a zombie, which still has its number, this file is empty. /proc/PID/exe and cwd would show the same, but root
    # in a container may not read those of another account.
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _number(text: str) -> int:
    """0 where it is none that a process or a port can have."""
    try:
        number = int(text)
    except ValueError:
        return 0
    return number if abs(number) <= _NUMBER_MAX else 0
