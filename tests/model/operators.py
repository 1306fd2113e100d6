"""Operators: one window of one tenant, or its ordered output, with all that it remembers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.model.events import Columns
from tests.model.values import bounded, instant_text, key_text
from tests.model.watermarks import Arrival, Entry, EventTime, Late
from tests.model.windows import Counts, Frame, Group, Window, selected


@dataclass(frozen=True)
class Metrics:
    """What is told of a window and tenant."""

    watermark: int | None
    closed_through: int | None
    #: rows held back; windows of time hold none, they aggregate at arrival
    buffer_size: int
    late_dropped_count: int
    watermark_emitted_count: int
    max_timestamp_seen: int | None
    last_row_at: int | None
    #: of those that hold rows, how many they have released so far
    released: int


@dataclass
class Operator:
    """A window of one tenant. Ordered output is one too: every released row is a count window of one row."""

    time: EventTime | Arrival
    frame: Frame
    group_by: Sequence[str] = ()
    select: Mapping[str, str] = field(default_factory=dict)

    def collect(self, at: int, entries: Iterable[Entry]) -> tuple[list[Window], list[Late]]:
        """The windows that a collection closes, and its late rows."""
        found = self.time.collect(at, entries)
        for entry in found.accepted:
            self.frame.take(self._group(entry.columns), entry)
        for entry in found.released:
            self.frame.release(self._group(entry.columns), entry)
        closed = [] if self.time.watermark is None else self.frame.close(self.time.watermark)
        return closed, found.late

    def drain(self) -> list[Window]:
        """Release all rows, close all windows, and remember how far they reached.

        Choice: a drain that closes nothing leaves no trace. By arrival there are no drains: time passes by itself.
        """
        if isinstance(self.time, Arrival):
            return []
        for entry in self.time.drain():
            self.frame.release(self._group(entry.columns), entry)
        closed = self.frame.close(None)
        reached = [window.limit for window in closed]
        if self.time.closed_through is not None:
            reached.append(self.time.closed_through)
        self.time.closed_through = max(reached, default=None)
        return closed

    def tick(self, at: int) -> list[Window]:
        """A drain, if no row came for too long."""
        return self.drain() if isinstance(self.time, EventTime) and self.time.is_idle(at) else []

    def metrics(self) -> Metrics:
        return Metrics(
            watermark=self.time.watermark,
            closed_through=self.time.closed_through,
            buffer_size=len(self.held()),
            late_dropped_count=self.time.late_dropped_count,
            watermark_emitted_count=len(self.time.raises),
            max_timestamp_seen=self.time.max_timestamp_seen,
            last_row_at=self.time.last_row_at,
            released=self.time.released if self._holds() else 0,
        )

    def held(self) -> list[int]:
        """Sequences of the rows that are held back, in the order of their release."""
        return [entry.sequence for entry in sorted(self.time.held)] if self._holds() else []

    def open_rows(self) -> dict[str, dict[str, Any]]:
        """Key and row of every open window, as if it was closed now."""
        return {self.key(window): self.row(window) for window in self.frame.open()}

    def key(self, window: Window) -> str:
        number = instant_text(window.start) if window.ordinal is None else str(window.ordinal)
        return bounded(key_text([*window.group, number]))

    def row(self, window: Window) -> dict[str, Any]:
        first = window.entries[0].columns
        groups = {name.replace(".", "_"): first.value(name) for name in self.group_by}
        ordinal = {} if window.ordinal is None else {"window_ordinal": window.ordinal}
        span = {"window_start": window.start, "window_end": window.end}
        return groups | ordinal | span | selected(self.select, window.entries)

    def _holds(self) -> bool:
        """Whether rows are kept until their release. Windows of time aggregate at arrival, with the same result."""
        return isinstance(self.frame, Counts) and isinstance(self.time, EventTime)

    def _group(self, columns: Columns) -> Group:
        return tuple(columns.text(name) for name in self.group_by)
