"""Locks on files, which the kernel frees when their holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from tidelock.errors import SettingsError, Unreachable
from tidelock.postgres.account import belong_to_parent, make_directory

_POLL_S = 0.02


class FileLock:
    """One `flock`. Two of these on one path exclude each other, in one process as in two."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    @property
    def held(self) -> bool:
        return self._file is not None

    def take(self, *, shared: bool = False, wait_s: float = 0) -> bool:
        """Take the lock, or change its kind; after a False it is not held at all."""
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            belong_to_parent(self.path)
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(self._file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    self.release()
                    return False
                time.sleep(_POLL_S)
            else:
                return True

    def release(self) -> None:
        if self._file is not None:
            # Closing alone would leave the lock with a forked child that still has the file open.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self.bequeath()

    def bequeath(self) -> None:
        """Leave the lock to the processes that inherited the file: it is free when the last of them is gone."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def fileno(self) -> int:
        assert self._file is not None, f"{self.path} is not locked"
        return self._file

    @contextmanager
    def alone(self, wait_s: float, what: str) -> Iterator[None]:
        if not self.take(wait_s=wait_s):
            raise Unreachable(
                f"Another process has been busy {what} for {wait_s:.0f} s. Wait for it or stop it "
                f"(its lock: {self.path})."
            )
        try:
            yield
        finally:
            self.release()


class DirectoryLock:
    """One `tidelock up` per data directory."""

    def __init__(self, data: Path) -> None:
        self._data = data.absolute()
        self._lock = FileLock(self._data / "up.lock")

    def acquire(self) -> None:
        try:
            make_directory(self._data)
            taken = self._lock.take()
        except OSError as error:
            raise SettingsError(
                f"Cannot use the data directory {self._data}: {error.strerror}.", field="data"
            ) from error
        if not taken:
            raise SettingsError(self._who(), field="data")
        os.truncate(self._lock.fileno(), 0)
        os.pwrite(self._lock.fileno(), f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._lock.held:
            os.truncate(self._lock.fileno(), 0)
            self._lock.release()

    def _who(self) -> str:
        pid = ""
        with suppress(OSError):
            pid = self._lock.path.read_text().strip()
        process = f"process {pid}" if pid else "another process"
        stop = f"kill {pid}" if pid else "stop it"
        return (
            f"Tidelock is already running on {self._data}: {process} has locked it. Stop that process first "
            f"({stop}), or choose another directory with --data."
        )

    def __enter__(self) -> DirectoryLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
