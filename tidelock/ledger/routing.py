"""Routing: which followers of the live ledger get which event. Pure: no I/O, no clock.

Followers are grouped by filter. An event costs one lookup per combination of filtered fields in use (at most sixteen)
and is encoded once, for any number of followers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from tidelock.ledger.reader import Slice
from tidelock.model import Recorded

# With more values than this, the query that reads the ledger's tail reads everything.
_COVER_VALUES_MAX = 200

_encode = msgspec.json.Encoder().encode


class Filter(NamedTuple):
    """What a follower wants: every field that is not None must be equal."""

    tenant_id: str | None = None
    stream: str | None = None
    customer_ref: str | None = None
    causality_key: str | None = None


class Frame(NamedTuple):
    """An event as followers get it."""

    sequence: int
    text: str


def frame(event: Recorded) -> Frame:
    return Frame(event.ingress_sequence, _encode(event).decode())


class FollowerQueue:
    """The queue of one follower. Once a batch does not fit, it accepts nothing more: the follower reads on
    by itself.
    """

    def __init__(self, only: Filter, *, events_max: int, bytes_max: int) -> None:
        self.only = only
        #: the sequence after which it gets everything; set when it joins
        self.since = 0
        self.joined = asyncio.Event()
        self.overflowed = False
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()

    def offer(self, frames: Sequence[Frame], size: int) -> None:
        if self.overflowed:
            return
        fits = len(self._frames) + len(frames) <= self._events_max and self._bytes + size <= self._bytes_max
        # Otherwise a batch larger than the whole queue would never get through.
        if fits or not self._frames:
            self._frames.extend(frames)
            self._bytes += size
        else:
            self.overflowed = True
        self._wake.set()

    async def take(self) -> list[Frame]:
        """The queued events, as soon as there are any; nothing once the queue has overflowed and is empty."""
        while not self._frames and not self.overflowed:
            self._wake.clear()
            await self._wake.wait()
        taken = list(self._frames)
        self._frames.clear()
        self._bytes = 0
        return taken

    def __len__(self) -> int:
        return len(self._frames)


class _FilterGroup:
    """All followers with one filter, and what the current batch has for them."""

    def __init__(self) -> None:
        self.queues: set[FollowerQueue] = set()
        self.batch: list[Frame] = []


class Router:
    """The followers by filter."""

    def __init__(self) -> None:
        #: per combination of filtered fields: how to read them off an event's names, and the groups by those values
        self._groups: dict[tuple[int, ...], tuple[Callable[[Filter], Hashable], dict[Hashable, _FilterGroup]]] = {}

    def __len__(self) -> int:
        return sum(len(group.queues) for _, groups in self._groups.values() for group in groups.values())

    def add(self, queue: FollowerQueue) -> None:
        fields = _fields(queue.only)
        values, groups = self._groups.setdefault(fields, (_reader(fields), {}))
        groups.setdefault(values(queue.only), _FilterGroup()).queues.add(queue)

    def remove(self, queue: FollowerQueue) -> None:
        fields = _fields(queue.only)
        if fields not in self._groups:
            return
        values, groups = self._groups[fields]
        key = values(queue.only)
        if (group := groups.get(key)) is not None:
            group.queues.discard(queue)
            if not group.queues:
                del groups[key]
        if not groups:
            del self._groups[fields]

    def route(self, events: Sequence[Recorded]) -> None:
        """Offer the events, in order, to every follower they match."""
        touched: dict[_FilterGroup, None] = {}
        for event in events:
            names = Filter(event.tenant_id, event.stream, event.customer_ref, event.causality_key)
            encoded: Frame | None = None
            for values, groups in self._groups.values():
                if (group := groups.get(values(names))) is not None:
                    encoded = encoded or frame(event)
                    group.batch.append(encoded)
                    touched[group] = None
        for group in touched:
            batch, group.batch = group.batch, []
            size = sum(len(encoded.text) for encoded in batch)
            for queue in group.queues:
                queue.offer(batch, size)

    def cover(self) -> Slice | None:
        """A slice that covers all followers; None without followers."""
        if not self._groups:
            return None
        wanted: dict[str, Any] = {}
        for index, name in enumerate(Filter._fields):
            if all(index in fields for fields in self._groups):
                values = {next(iter(group.queues)).only[index] for group in self._all_groups()}
                if len(values) <= _COVER_VALUES_MAX:
                    wanted[name] = tuple(str(value) for value in values)
        return Slice(**wanted)

    def _all_groups(self) -> list[_FilterGroup]:
        return [group for _, groups in self._groups.values() for group in groups.values()]


def _fields(only: Filter) -> tuple[int, ...]:
    return tuple(index for index, value in enumerate(only) if value is not None)


def _reader(fields: tuple[int, ...]) -> Callable[[Filter], Hashable]:
    return itemgetter(*fields) if fields else lambda names: ()
