"""Watermarks: how far time has come for one window and tenant, which rows are late, held, released."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from tests.model.events import Columns

#: Choice: a watermark is no lower than what 64 bits hold, which is before every event time
EARLIEST = -(2**63)


@dataclass(frozen=True, order=True)
class Entry:
    """A row on its way into a window. Ordered as it is released: by time, then by sequence."""

    time: int
    sequence: int
    columns: Columns = field(compare=False, repr=False)


@dataclass(frozen=True)
class Late:
    """A row that came too late, and the watermark that says so."""

    entry: Entry
    watermark: int
    reason: str


@dataclass(frozen=True)
class Collected:
    """What became of the rows of a collection, and which rows it released."""

    accepted: list[Entry]
    late: list[Late]
    released: list[Entry]


@dataclass
class EventTime:
    """Time by the rows themselves."""

    tolerance: int
    idle_timeout: int | None = None
    watermark: int | None = None
    #: greatest end that drains have closed: what lies before it comes too late
    closed_through: int | None = None
    max_timestamp_seen: int | None = None
    #: source timestamp of the last row, whatever became of it
    last_row_at: int | None = None
    late_dropped_count: int = 0
    #: a heap
    held: list[Entry] = field(default_factory=list)
    released: int = 0
    #: source timestamp and watermark of each collection that raised it
    raises: list[tuple[int, int]] = field(default_factory=list)

    def collect(self, at: int, entries: Iterable[Entry]) -> Collected:
        """One collection: rows are judged by the watermark before it, and then raise it together."""
        found = Collected([], [], [])
        for entry in entries:
            self.last_row_at = at
            if self.watermark is not None and entry.time <= self.watermark:
                found.late.append(Late(entry, self.watermark, "late"))
            elif self.closed_through is not None and entry.time < self.closed_through:
                # Only what had come is drained, so there is a watermark.
                assert self.watermark is not None
                found.late.append(Late(entry, self.watermark, "drained"))
            else:
                found.accepted.append(entry)
        self.late_dropped_count += len(found.late)
        for entry in found.accepted:
            heappush(self.held, entry)
        if found.accepted:
            self._raise(at, max(entry.time for entry in found.accepted))
        while self.held and self.watermark is not None and self.held[0].time <= self.watermark:
            found.released.append(heappop(self.held))
        self.released += len(found.released)
        return found

    def _raise(self, at: int, latest: int) -> None:
        seen = latest if self.max_timestamp_seen is None else max(latest, self.max_timestamp_seen)
        self.max_timestamp_seen = seen
        reached = max(seen - self.tolerance, EARLIEST)
        if self.watermark is None or reached > self.watermark:
            self.watermark = reached
            self.raises.append((at, reached))

    def drain(self) -> list[Entry]:
        """All that is held, in order. Time stays where it is."""
        released = [heappop(self.held) for _ in range(len(self.held))]
        self.released += len(released)
        return released

    def is_idle(self, at: int) -> bool:
        return (
            self.idle_timeout is not None
            and self.last_row_at is not None
            and at - self.last_row_at >= self.idle_timeout
        )


@dataclass
class Arrival:
    """Time by the ledger: rows have the time of their collection, so none is late and none is held."""

    watermark: int | None = None
    closed_through: None = None
    max_timestamp_seen: int | None = None
    last_row_at: int | None = None
    late_dropped_count: int = 0
    held: list[Entry] = field(default_factory=list)
    released: int = 0
    #: Choice: a collection that brought rows raised it; others pass by every window alike
    raises: list[tuple[int, int]] = field(default_factory=list)

    def collect(self, at: int, entries: Iterable[Entry]) -> Collected:
        """One collection of the ledger, of whichever stream and tenant: it moves time without a row too."""
        found = list(entries)
        self.watermark = at
        if found:
            self.max_timestamp_seen = self.last_row_at = at
            self.raises.append((at, at))
        self.released += len(found)
        return Collected(found, [], found)
