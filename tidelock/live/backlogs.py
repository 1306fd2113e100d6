"""Backlogs: what a subscriber gets before it follows: rows, or changes of the past. Kept in Arrow, which is small.

Events are made of a few at a time when they are taken. Those who share a backlog and keep step share the events too,
and with them their encodings; one that lags behind has them made anew, so nothing is kept for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

from tidelock.live.decoding import slices
from tidelock.live.views import Event

# Slices whose events are kept, for those who keep step.
_KEPT = 4


class Backlog:
    """Events in the order of their source timestamps."""

    def __init__(self, rows: Iterable[pa.Table], make: Callable[[pa.RecordBatch], list[Event]]) -> None:
        self._slices = [part for table in rows for part in slices(table)]
        self._make = make
        self._made: dict[int, list[Event]] = {}

    def __len__(self) -> int:
        """How many slices it has."""
        return len(self._slices)

    def slice(self, number: int) -> list[Event]:
        """Its events, made in a few milliseconds; may be none."""
        if (events := self._made.get(number)) is None:
            events = self._made[number] = self._make(self._slices[number])
            if len(self._made) > _KEPT:
                del self._made[next(iter(self._made))]
        return events


class Taking:
    """How far one subscriber is in a backlog."""

    def __init__(self, backlog: Backlog, *, after: int) -> None:
        """Events up to a source timestamp are left out: the subscriber has them."""
        self._backlog = backlog
        self._after = after
        self._slice = 0
        self._events: list[Event] = []

    def take(self, limit: int) -> list[Event] | None:
        """The next events, of one slice; None: all were taken."""
        if not self._events:
            if self._slice == len(self._backlog):
                return None
            made = self._backlog.slice(self._slice)
            self._slice += 1
            self._events = [event for event in made if event.source_timestamp > self._after]
        taken, self._events = self._events[:limit], self._events[limit:]
        return taken
