"""Processes by what they are: fold, loader and mirror of a server, the JVM of the first two."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def fold_of(server: int) -> int | None:
    return _child(server, b"fold")


def load_of(server: int) -> int | None:
    return _child(server, b"load")


def mirror_of(server: int) -> int | None:
    return _child(server, b"mirror")


def jvm_of(fold: int | None) -> int | None:
    return None if fold is None else _child(fold, b"pyspark-shell")


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def found(process: Callable[[], int | None], what: str, seconds: float = 120) -> int:
    """A process that runs, or will soon."""
    return until(process, f"{what} runs", seconds)


def gone(pid: int) -> bool:
    """Ended; one that its parent did not wait for yet is."""
    return _state(pid) in (None, "Z")


def until(true: Callable[[], T | None], what: str, seconds: float = 60) -> T:
    """Wait until something is there, and give it."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.02)
    return found


def _child(parent: int, word: bytes) -> int | None:
    """The child of a process that has this word among its arguments."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            after_name = (path / "stat").read_text().rsplit(")", 1)[1].split()
            if int(after_name[1]) == parent and after_name[0] != "Z" and word in _words(path):
                return int(path.name)
    return None


def _words(process: Path) -> list[bytes]:
    return (process / "cmdline").read_bytes().split(b"\0")


def _state(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None
