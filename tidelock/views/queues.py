"""Queues: what waits for one subscriber: every step, and when they are too many, one event for each row.

A subscriber who reads slowly is told what became of a row, not every step. An event that came later takes the place at
the end, so the times of what is taken never go back. That ends when all was taken.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice

from tidelock.views.views import Operation, ViewEvent


class SubscriberQueue:
    """A subscriber's events. Used on one event loop.

    Only what the subscriber has not got yet may be put: an INSERT and a DELETE are nothing together for who knows
    nothing of the row, but not for who had the INSERT already, as may be with those at the time one resumes after.
    """

    def __init__(self, keys_max: int) -> None:
        """At most this many steps wait, and when there are more, at most this many rows."""
        #: more waited than may: what did is dropped, and the subscriber is to be closed
        self.overflowed = False
        self._keys_max = keys_max
        #: in the order of their times
        self._steps: deque[ViewEvent] = deque()
        #: once they were too many: what they come to, by tenant and key, in the order of their times
        self._combining = False
        self._waiting: dict[tuple[str, str], ViewEvent] = {}
        #: times up to this one are left out
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
        """The first so many of what waits."""
        if not self._combining:
            taken = [self._steps.popleft() for _ in range(min(most, len(self._steps)))]
        else:
            taken = [self._waiting.pop(key) for key in list(islice(self._waiting, most))]
            self._combining = bool(self._waiting)
        if not len(self) and not self.overflowed:
            self._ready.clear()
        return taken

    def drop_through(self, source_timestamp: int) -> None:
        """Leave out everything up to this time, now and later: the subscriber has it already."""
        self._dropped_through = source_timestamp
        self._steps = deque(event for event in self._steps if event.source_timestamp > source_timestamp)
        for key in [key for key, event in self._waiting.items() if event.source_timestamp <= source_timestamp]:
            del self._waiting[key]

    async def wait(self) -> None:
        """Until there is something to take, the queue has overflowed, or the owner woke it. May be for nothing.

        Who waits looks first at what the owner may have to tell, takes, and waits when there was nothing.
        """
        await self._ready.wait()

    def wake(self) -> None:
        """Let `wait` return: the owner has something else to tell."""
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
    """What two events of one row are together: the later one itself, with its encodings, where that tells all."""
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
