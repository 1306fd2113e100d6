"""The anchor: the head of the ledger, written regularly to a file out of reach of those who can write to the database.

The chain proves that no commit was changed or removed, but not that the last ones were not cut off: a ledger with a
shorter tail is consistent too. The file records how far it went.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psycopg

from tidelock.errors import TidelockError
from tidelock.instants import SECOND, format_instant
from tidelock.ledger.reader import read_head
from tidelock.model import Head
from tidelock.postgres.database import Database
from tidelock.postgres.reconnect import Patience, Steady

LINES_MAX = 10_000
_LINES_KEPT = 1_000
_DAY_LETTERS = len("2026-01-31")

log = logging.getLogger(__name__)

# Enough for a dropped connection. After an outage the next turn catches up; shutdown must not wait for it.
_PATIENCE_S = 0.5


class AnchorLine(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The head of the ledger at a moment."""

    commit_id: int
    ingress_sequence: int
    #: of the commit, in hex
    digest: str
    #: when it was written
    at: str
    #: in nanoseconds; None: the line was written before lines had it
    source_timestamp: str | None = None

    @classmethod
    def of(cls, head: Head, now: int) -> AnchorLine:
        return cls(
            head.commit_id, head.ingress_sequence, head.digest.hex(), format_instant(now), str(head.source_timestamp)
        )


class BadAnchor(ValueError):
    """A line of the file is unreadable; the message names it."""


_line = msgspec.json.Decoder(AnchorLine)


def read_anchors(path: Path) -> list[AnchorLine]:
    """Every line, oldest first; none if there is no file. A last line truncated by a crash is ignored."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    complete = text[: text.rfind(b"\n") + 1]
    return [_decoded(line, number, path) for number, line in enumerate(complete.splitlines(), 1) if line.strip()]


def encode_anchor(line: AnchorLine) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def append_anchor(path: Path, line: AnchorLine) -> None:
    """Add a line; it is on disk when this returns. Several processes may do so at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as file:
        _drop_cut_off(file.fileno())
        # One write per line keeps the lines of other processes whole.
        os.write(file.fileno(), encode_anchor(line))
        os.fsync(file.fileno())


def shorten_anchors(path: Path) -> int:
    """Rewrite a file that has grown: the latest lines and the first of every day stay. Returns how many."""
    kept = list(_kept(read_anchors(path)))
    beside = path.with_name(path.name + ".new")
    with open(beside, "wb") as file:
        file.writelines(encode_anchor(line) for line in kept)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    return len(kept)


def _kept(lines: list[AnchorLine]) -> Iterator[AnchorLine]:
    day = ""
    for number, line in enumerate(lines):
        if line.at[:_DAY_LETTERS] != day or number >= len(lines) - _LINES_KEPT:
            yield line
        day = line.at[:_DAY_LETTERS]


def _drop_cut_off(file: int) -> None:
    """Remove a last line truncated by a crash: it is useless and would corrupt the next one."""
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        text = os.pread(file, size, 0)
        os.ftruncate(file, text.rfind(b"\n") + 1)


def _decoded(line: bytes, number: int, path: Path) -> AnchorLine:
    try:
        return _line.decode(line)
    except msgspec.DecodeError:
        raise BadAnchor(f"line {number} of {path} cannot be read") from None


class Anchor:
    """`run()` writes whenever the head has moved; `close()` writes once more. Its failures never reach ingest."""

    def __init__(self, database: Database, path: Path, interval_ns: int) -> None:
        self._path = path
        self._interval_s = interval_ns / SECOND
        # A connection of its own: the head may be moved by other processes.
        self._steady = Steady(database, "tidelock anchor", patience=Patience(_PATIENCE_S))
        self._last: AnchorLine | None = None
        self._lines: int | None = None
        self._failing = False

    async def run(self) -> None:
        while True:
            await self.write()
            await asyncio.sleep(self._interval_s)

    async def close(self) -> None:
        await self.write()
        await self._steady.close()

    async def write(self) -> None:
        """Write the head if it moved. A failure is logged once, until it works again."""
        try:
            head = await self._steady.run(read_head)
            await asyncio.to_thread(self._write, head)
        except (psycopg.Error, TidelockError) as error:
            self._complain("cannot read the ledger's head: %s", error)
        except (OSError, BadAnchor) as error:
            self._complain(
                "cannot write the anchor file: %s; until it can be written, a lost tail may go unnoticed", error
            )
        else:
            self._failing = False

    def _write(self, head: Head) -> None:
        if self._lines is None:
            self._open(head)
        if head.commit_id == 0 or (self._last is not None and head.commit_id == self._last.commit_id):
            return
        line = AnchorLine.of(head, time.time_ns())
        append_anchor(self._path, line)
        self._last, self._lines = line, (self._lines or 0) + 1
        if self._lines > LINES_MAX:
            self._lines = shorten_anchors(self._path)

    def _open(self, head: Head) -> None:
        known = read_anchors(self._path)
        self._last, self._lines = (known[-1] if known else None), len(known)
        farthest = max((line.commit_id for line in known), default=0)
        if farthest > head.commit_id:
            log.error(
                "%s has commit %d, but the ledger ends at commit %d: its tail was cut off, or the file belongs to "
                "another ledger",
                self._path, farthest, head.commit_id,
            )  # fmt: skip

    def _complain(self, message: str, error: Exception) -> None:
        if not self._failing:
            log.warning(message, error)
        self._failing = True
