"""Lanes and endpoints: what to send next for a trigger, and how much one receiver gets at a time. No I/O.

Only the first row of a chain is in a lane; the others wait in the database. So memory holds a bounded number of rows
however much is pending, and a chain waiting for its next attempt takes no room from others. The rate of each endpoint
adapts, so that one that hangs or fails delays nobody else: it gets more while it responds, half as much after a
failure, and nothing for a while after several consecutive failures. Then one event is sent as a probe.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from tidelock.triggers.signatures import Signer

# Initial concurrency of an endpoint.
_ALLOWANCE_START = 4.0
_PAUSE_S = 1.0
_JITTER = 0.2

# Rows in memory per concurrent request: enough to continue while the next are read.
_AHEAD = 8
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Care:
    """Limits of endpoints."""

    concurrency_max: int
    #: consecutive failures after which an endpoint is paused
    failures_max: int
    #: longest pause
    pause_max_s: float


class Endpoint:
    """The state of one URL. All times are of one monotonic clock, in seconds."""

    def __init__(self, url: str, care: Care, chance: random.Random) -> None:
        self.url = url
        self.in_flight = 0
        #: nothing is sent before
        self.paused_until_s = 0.0
        #: failures since its last response
        self.failures = 0
        self._care = care
        self._chance = chance
        self._allowance = min(_ALLOWANCE_START, care.concurrency_max)
        self._pauses = 0

    @property
    def open(self) -> bool:
        """The circuit is open: it failed so often that at most one event is sent, as a probe."""
        return self.failures >= self._care.failures_max

    @property
    def allowance(self) -> int:
        """Its current concurrency."""
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
        """It did not respond, failed, or asked for a pause."""
        self.in_flight -= 1
        self.failures += 1
        self._allowance = max(1.0, self._allowance / 2)
        pause_s = retry_after_s or 0.0
        # Concurrent requests fail together: one pause, not one for each.
        if self.open and now_s >= self.paused_until_s:
            doubled_s = min(_PAUSE_S * 2 ** min(self._pauses, 30), self._care.pause_max_s)
            pause_s = max(pause_s, doubled_s * self._chance.uniform(1 - _JITTER, 1 + _JITTER))
            self._pauses += 1
        self.paused_until_s = max(self.paused_until_s, now_s + pause_s)

    def left(self) -> None:
        """A row was returned without learning anything about the endpoint."""
        self.in_flight -= 1


@dataclass(frozen=True, slots=True)
class Target:
    """The destination of a trigger's events."""

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
    #: None: too large to keep in memory
    data: bytes | None


class Lane:
    """The rows of one trigger in memory, and how far the others have been read."""

    def __init__(self, target: Target, endpoint: Endpoint) -> None:
        self.target = target
        self.signer = Signer(target.secrets)
        self.endpoint = endpoint
        self.ready: deque[OutboxRow] = deque()
        #: IDs by key of rows that are ready, in flight, or not settled yet
        self._active: dict[str, int] = {}
        #: how often it was rewound: a read that started before does not determine what to read next
        self.rewinds = 0
        self.rewind()

    def rewind(self) -> None:
        """Read everything again: a skipped row may have become the first of its chain unnoticed."""
        self.rewinds += 1
        #: position through which new ones have been read
        self.after = 0
        #: time and ID through which retries have been read
        self.due_after = (_BEGINNING, 0)
        #: there may be more to read
        self.more = True
        self.more_due = True

    def change(self, target: Target, endpoint: Endpoint) -> None:
        self.target = target
        self.signer = Signer(target.secrets)
        self.endpoint = endpoint

    def room(self, rows_max: int) -> int:
        """How many more rows to read: a multiple of the endpoint's concurrency; for a failing one, few."""
        return max(0, min(rows_max, _AHEAD * self.endpoint.allowance) - len(self._active))

    def wanting(self, rows_max: int) -> bool:
        """Whether it is worth reading: not for the sake of a few."""
        return 2 * self.room(rows_max) > min(rows_max, _AHEAD * self.endpoint.allowance)

    def take(self, rows: Iterable[OutboxRow]) -> None:
        """Add rows, each the first of its chain; those already in are not added twice."""
        for row in rows:
            if row.key not in self._active:
                self._active[row.key] = row.id
                self.ready.append(row)

    def release(self, row: OutboxRow) -> None:
        """A row is settled, or left to be read again."""
        if self._active.get(row.key) == row.id:
            del self._active[row.key]

    def drop(self, shards: Collection[int] | None = None) -> None:
        """Drop ready rows, of some shards or of all. Rows in flight stay known until they are settled."""
        kept: deque[OutboxRow] = deque()
        for row in self.ready:
            if shards is None or row.shard in shards:
                self.release(row)
            else:
                kept.append(row)
        self.ready = kept

    def expired(self, before_s: float) -> list[OutboxRow]:
        """Remove those queued before a given time."""
        old = [row for row in self.ready if row.queued_at_s < before_s]
        if old:
            self.ready = deque(row for row in self.ready if row.queued_at_s >= before_s)
        return old
