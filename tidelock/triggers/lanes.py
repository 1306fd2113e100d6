"""Lanes: what is to be sent of one trigger next. Of a chain only its first is in it: the others wait in the database.

So memory holds a bounded number of rows however much is pending, and a chain that waits for its next attempt, or an
endpoint that hangs, takes no place from others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from tidelock.triggers.endpoints import Endpoint
from tidelock.triggers.signatures import Signer

# Rows in memory for each that is sent at a time: enough to go on with while the next are read.
_AHEAD = 8
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a trigger's events go."""

    trigger_id: int
    name: str
    webhook: str
    secrets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A transition to be sent."""

    trigger_id: int
    id: int
    position: int
    key: str
    shard: int
    event_id: str
    event_type: str
    source_timestamp: int
    #: attempts that failed since it was queued
    failures: int
    #: when it was queued, by the monotonic clock
    queued_at_s: float
    #: None: too large to wait in memory
    data: bytes | None


class Lane:
    """The rows of one trigger that are in memory, and how far the others have been read."""

    def __init__(self, target: Target, endpoint: Endpoint) -> None:
        self.target = target
        self.signer = Signer(target.secrets)
        self.endpoint = endpoint
        self.ready: deque[Row] = deque()
        #: ids by key of what is ready, under way, or not settled yet
        self._active: dict[str, int] = {}
        #: how often it was rewound: what was being read meanwhile says nothing about what to read next
        self.rewinds = 0
        self.rewind()

    def rewind(self) -> None:
        """Read everything again: what was passed over may have become the first of its chain unseen."""
        self.rewinds += 1
        #: position through which new ones have been read
        self.after = 0
        #: time and id through which those to be tried again have been read
        self.due_after = (_BEGINNING, 0)
        #: there may be more to read
        self.more = True
        self.more_due = True

    def change(self, target: Target, endpoint: Endpoint) -> None:
        self.target = target
        self.signer = Signer(target.secrets)
        self.endpoint = endpoint

    def room(self, rows_max: int) -> int:
        """How many more rows to read: some times what the endpoint takes at once, for one that fails few."""
        return max(0, min(rows_max, _AHEAD * self.endpoint.allowance) - len(self._active))

    def wanting(self, rows_max: int) -> bool:
        """Whether it is worth reading: not for the sake of a few."""
        return 2 * self.room(rows_max) > min(rows_max, _AHEAD * self.endpoint.allowance)

    def take(self, rows: Iterable[Row]) -> None:
        """Let rows in, each the first of its chain; those that are in already are not doubled."""
        for row in rows:
            if row.key not in self._active:
                self._active[row.key] = row.id
                self.ready.append(row)

    def release(self, row: Row) -> None:
        """A row is settled, or left to be read again."""
        if self._active.get(row.key) == row.id:
            del self._active[row.key]

    def drop(self, shards: Collection[int] | None = None) -> None:
        """Forget what is ready, of some shards or of all. What is under way stays known until it is settled."""
        kept: deque[Row] = deque()
        for row in self.ready:
            if shards is None or row.shard in shards:
                self.release(row)
            else:
                kept.append(row)
        self.ready = kept

    def expired(self, before_s: float) -> list[Row]:
        """Take out those that were queued before a moment."""
        old = [row for row in self.ready if row.queued_at_s < before_s]
        if old:
            self.ready = deque(row for row in self.ready if row.queued_at_s >= before_s)
        return old
