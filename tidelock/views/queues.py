"""Queues of a subscriber: every change, and when there are too many, one event per row. A slow subscriber gets the net
effect on a row, not every step.

A merged event moves to the end, so that times never go back. Merging ends once everything has been taken.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice

from tidelock.views.views import Operation, ViewEvent


class SubscriberQueue:
    """A subscriber's events. Used on one event loop.

    Only events that the subscriber does not have yet may be added: an INSERT and a DELETE cancel out for a subscriber
    that does not know the row, but not for one that already has the INSERT, as may happen at the time from which it
    resumes.
    """

    def __init__(self, keys_max: int) -> None:
        """At most this many changes are queued, and if there are more, at most this many rows."""
        #: it overflowed: the events are dropped, and the subscriber is to be closed
        self.overflowed = False
        self._keys_max = keys_max
        #: in the order of their times
        self._steps: deque[ViewEvent] = deque()
        #: once there were too many: the merged events by tenant and key, in the order of their times
        self._combining = False
        self._waiting: dict[tuple[str, str], ViewEvent] = {}
        #: events up to this time are skipped
        self._dropped_through = -1
        self._ready = asyncio.Event()

    def __len__(self) -> int:
        return len(self._steps) + len(self._waiting)

    def put(self, event: ViewEvent) -> None:
        """Events come in the order of their source timestamps."""
        if event.source_timestamp <= self._dropped_through or self.overflowed:
            return
        if not self._combining and len(self._steps) < self._keys_max:
            self._steps.append(event)
            self._ready.set()
            return
        self._combining = True
        while self._steps:
            self._combine(self._steps.popleft())
        self._combine(event)

    def take(self, most: int) -> list[ViewEvent]:
        """The first events of the queue, up to a number."""
        if not self._combining:
            taken = [self._steps.popleft() for _ in range(min(most, len(self._steps)))]
        else:
            taken = [self._waiting.pop(key) for key in list(islice(self._waiting, most))]
            self._combining = bool(self._waiting)
        if not len(self) and not self.overflowed:
            self._ready.clear()
        return taken

    def drop_through(self, source_timestamp: int) -> None:
        """Skip everything up to this time, now and later: the subscriber already has it."""
        self._dropped_through = source_timestamp
        self._steps = deque(event for event in self._steps if event.source_timestamp > source_timestamp)
        for key in [key for key, event in self._waiting.items() if event.source_timestamp <= source_timestamp]:
            del self._waiting[key]

    async def wait(self) -> None:
        """Wait until there is something to take, the queue has overflowed, or the owner woke it. May return for
        nothing.

        The waiter first checks what the owner has to say, takes, and waits if there was nothing.
        """
        await self._ready.wait()

    def wake(self) -> None:
        """Let `wait` return: the owner has something else to say."""
        self._ready.set()

    def _combine(self, event: ViewEvent) -> None:
        place = event.tenant_id, event.key
        earlier = self._waiting.pop(place, None)
        if earlier is None:
            if len(self._waiting) == self._keys_max:
                self._overflow()
                return
            combined: ViewEvent | None = event
        else:
            combined = _combined(earlier, event)
        if combined is not None:
            self._waiting[place] = combined
            self._ready.set()

    def _overflow(self) -> None:
        self.overflowed = True
        self._steps.clear()
        self._waiting.clear()
        self._ready.set()


def _combined(earlier: ViewEvent, later: ViewEvent) -> ViewEvent | None:
    """Two events of one row merged: the later one itself, with its encodings, if that is enough."""
    match earlier.operation, later.operation:
        case "INSERT", "DELETE":
            return None
        case "INSERT", "UPDATE":
            return _retold(later, "INSERT", earlier.fields)
        case "DELETE", "INSERT":
            return _retold(later, "UPDATE", later.fields)
        case "UPDATE", "UPDATE" if not set(earlier.fields) <= set(later.fields):
            changed = {*earlier.fields, *later.fields}
            # A row has its columns in their order.
            return _retold(later, "UPDATE", tuple(name for name in later.row if name in changed))
        case _:
            return later


def _retold(event: ViewEvent, operation: Operation, fields: tuple[str, ...]) -> ViewEvent:
    return ViewEvent(event.tenant_id, event.key, operation, fields, event.row, source_timestamp=event.source_timestamp)
