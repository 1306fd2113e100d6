"""The log of the embedded Postgres: kept small, and quoted with advice when the server does not start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidelock.errors import SettingsError, TidelockError, Unreachable
from tidelock.ledger.account import belong_to_parent

_SIZE_MAX = 8 << 20
_TAIL = 64 << 10
_LINES = 12

_FULL = "The disk is full: free some space, or choose another directory with --data."
_ADVICE = {
    "No space left on device": _FULL,
    "Check free disk space": _FULL,
    "Disk quota exceeded": "The disk quota is used up: free some space, or choose another directory with --data.",
    "Read-only file system": "The file system is read-only: choose another directory with --data.",
    "has wrong ownership": "Give the directory to the account that runs the server (chown -R), or run as its owner.",
    "has invalid permissions": "Only the account that runs the server may enter its directory: chmod 700 it.",
    "Permission denied": "The account that runs the server may not read or write there: look at the owner and mode.",
    "user does not exist": (
        "Postgres makes a new directory only for a user with a name: add this one to /etc/passwd, run as another "
        "user, or name a server of your own with DATABASE_URL."
    ),
    "could not map anonymous shared memory": "There is too little memory: set a smaller shared_buffers.",
    "could not create semaphores": "The system allows too few semaphores: set a smaller max_connections.",
}
# The user's own configuration is wrong: another attempt would not help.
_CONFIGURATION = ("unrecognized configuration parameter", "invalid value for parameter", "is outside the valid range")


class ServerLog:
    """Everything the server prints, appended to one file of bounded size."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Where the output of the present start begins.
        self._start = 0

    @contextmanager
    def opened(self) -> Iterator[int]:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            belong_to_parent(self._path)
            self._start = os.fstat(file).st_size
            yield file
        finally:
            os.close(file)

    def trim(self) -> None:
        """Keep the tail of a log that has grown. The server appends, so the file may shrink under it."""
        if not self._path.exists() or self._path.stat().st_size <= _SIZE_MAX:
            return
        with self._path.open("r+b") as file:
            file.seek(-_TAIL, os.SEEK_END)
            tail = file.read()
            file.truncate(0)
            file.seek(0)
            file.write(tail[tail.find(b"\n") + 1 :])

    def says(self, text: str) -> bool:
        return text in self._since_start()

    def failure(self, headline: str, where: str) -> TidelockError:
        return explain(headline, where, self._since_start())

    def _since_start(self) -> str:
        try:
            with self._path.open("rb") as file:
                file.seek(self._start)
                return file.read(_TAIL).decode(errors="replace")
        except FileNotFoundError:
            return ""


def explain(headline: str, where: str, output: str) -> TidelockError:
    """An error that says what happened and what to do if that is known. Its detail says where, with the last lines the
    server printed: they name files, and the time, so that no two are the same."""
    advice = next((text for sign, text in _ADVICE.items() if sign in output), None)
    lines = "\n".join(f"  {line}" for line in output.strip().splitlines()[-_LINES:])
    message = " ".join(filter(None, [f"{headline}.", advice]))
    detail = f"{where} says:\n{lines}" if lines else f"{where} says nothing."
    if any(sign in output for sign in _CONFIGURATION):
        return SettingsError(message, field="postgres.config", detail=detail)
    return Unreachable(message, detail=detail)
