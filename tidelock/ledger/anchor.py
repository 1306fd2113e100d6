"""The anchor: writes the head of the ledger to a file outside the database, regularly.

The chain proves that no commit was changed or left out, but not that the last ones were not cut off: a ledger with a
shorter tail is a consistent one. The file remembers how far it went.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import psycopg

from tidelock.errors import TidelockError
from tidelock.instants import SECOND
from tidelock.ledger.anchorfile import LINES_MAX, AnchorLine, BadAnchor, append_anchor, read_anchors, shorten_anchors
from tidelock.ledger.reader import read_head
from tidelock.model import Head
from tidelock.postgres.database import Database
from tidelock.postgres.reconnect import Patience, Steady

_log = logging.getLogger(__name__)

# Enough for a dropped connection. An outage is made good by the next turn, and must not hold up the end of a server.
_PATIENCE_S = 0.5


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
        """Write the head if it moved. What goes wrong is logged, once until it goes well again."""
        try:
            head = await self._steady.run(read_head)
            await asyncio.to_thread(self._write, head)
        except (psycopg.Error, TidelockError) as error:
            self._complain("the head of the ledger cannot be read: %s", error)
        except (OSError, BadAnchor) as error:
            self._complain("the anchor file cannot be written: %s; a cut tail would go unnoticed", error)
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
            _log.error(
                "%s knows commit %d, but the ledger ends at commit %d: its tail was cut off, or it is another ledger",
                self._path, farthest, head.commit_id,
            )  # fmt: skip

    def _complain(self, message: str, error: Exception) -> None:
        if not self._failing:
            _log.warning(message, error)
        self._failing = True
