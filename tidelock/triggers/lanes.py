"""Lanes and endpoints: what is to be sent of one trigger next, and how much one receiver is sent at a time. No I/O.

Of a chain only the first row is in a lane; the others wait in the database. So memory holds a bounded number of rows
however much is pending, and a chain that waits for its next attempt takes no place from others. Each endpoint learns
for itself what it can take, so that one that hangs or fails holds up nobody else: it is sent more while it answers,
half as much after a failure, and nothing for a while after several in a row. Then one is sent to see.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from tidelock.triggers.signatures import Signer

# What an endpoint that nothing is known of is sent at a time.
_ALLOWANCE_START = 4.0
_PAUSE_S = 1.0
_JITTER = 0.2

# Rows in memory for each that is sent at a time: enough to go on with while the next are read.
_AHEAD = 8
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Care:
    """How endpoints are treated."""

    concurrency_max: int
    #: failures in a row after which an endpoint is left alone
    failures_max: int
    #: longest time it is left alone at a stretch
    pause_max_s: float


class Endpoint:
    """What is known of one URL. All times are of one monotonic clock, in seconds."""

    def __init__(self, url: str, care: Care, chance: random.Random) -> None:
        self.url = url
        self.in_flight = 0
        #: nothing is sent before
        self.paused_until_s = 0.0
        #: failures since it last answered
        self.failures = 0
        self._care = care
        self._chance = chance
        self._allowance = min(_ALLOWANCE_START, care.concurrency_max)
        self._pauses = 0

    @property
    def open(self) -> bool:
        """The circuit is open: it failed so often that at most one is sent, to see."""
        return self.failures >= self._care.failures_max

    @property
    def allowance(self) -> int:
        """How much it is sent at a time."""
        return 1 if self.open else int(self._allowance)

    def free(self, now_s: float) -> bool:
        """Whether one more may be sent now."""
        return now_s >= self.paused_until_s and self.in_flight < self.allowance

    def started(self) -> None:
        self.in_flight += 1

    def succeeded(self) -> None:
        self.in_flight -= 1
        self.failures = self._pauses = 0
        self._allowance = min(self._allowance + 1, self._care.concurrency_max)

    def failed(self, now_s: float, retry_after_s: float | None = None) -> None:
        """It did not answer, could not, or asked for patience."""
        self.in_flight -= 1
        self.failures += 1
        self._allowance = max(1.0, self._allowance / 2)
        pause_s = retry_after_s or 0.0
        # Those that were sent together fail together: that is one pause, not one for each.
        if self.open and now_s >= self.paused_until_s:
            doubled_s = min(_PAUSE_S * 2 ** min(self._pauses, 30), self._care.pause_max_s)
            pause_s = max(pause_s, doubled_s * self._chance.uniform(1 - _JITTER, 1 + _JITTER))
            self._pauses += 1
        self.paused_until_s = max(self.paused_until_s, now_s + pause_s)

    def left(self) -> None:
        """One was given back without anything learned of the endpoint."""
        self.in_flight -= 1


@dataclass(frozen=True, slots=True)
class Target:
    """Where a trigger's events go."""

    trigger_id: int
    name: str
    webhook: str
    secrets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OutboxRow:
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
        self.ready: deque[OutboxRow] = deque()
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

    def take(self, rows: Iterable[OutboxRow]) -> None:
        """Let rows in, each the first of its chain; those that are in already are not doubled."""
        for row in rows:
            if row.key not in self._active:
                self._active[row.key] = row.id
                self.ready.append(row)

    def release(self, row: OutboxRow) -> None:
        """A row is settled, or left to be read again."""
        if self._active.get(row.key) == row.id:
            del self._active[row.key]

    def drop(self, shards: Collection[int] | None = None) -> None:
        """Forget what is ready, of some shards or of all. What is under way stays known until it is settled."""
        kept: deque[OutboxRow] = deque()
        for row in self.ready:
            if shards is None or row.shard in shards:
                self.release(row)
            else:
                kept.append(row)
        self.ready = kept

    def expired(self, before_s: float) -> list[OutboxRow]:
        """Take out those that were queued before a moment."""
        old = [row for row in self.ready if row.queued_at_s < before_s]
        if old:
            self.ready = deque(row for row in self.ready if row.queued_at_s >= before_s)
        return old
