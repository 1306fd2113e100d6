"""Moments: rows with timestamps, and word that no earlier ones follow, as the parts of complete moments. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tidelock.errors import Unreachable
from tidelock.sources.connect.connector import Change, Part


class Moments:
    """The moments of one subscription: from a snapshot on, or those after a timestamp."""

    def __init__(self, after_ms: int | None, part_rows_max: int) -> None:
        self._part_rows_max = part_rows_max
        #: the snapshot is not complete yet
        self._whole = after_ms is None
        #: everything up to here was told
        self._told_ms = after_ms
        #: of the moment whose rows are coming in
        self._at_ms: int | None = None
        self._changes: list[Change] = []

    def reached(self, at_ms: int) -> Iterator[Part]:
        """A row of that time came: what is earlier is complete."""
        if self._at_ms is not None and at_ms > self._at_ms:
            yield self._completed(self._at_ms)
        latest = self._told_ms if self._at_ms is None else self._at_ms
        if latest is not None and at_ms < latest:
            raise Unreachable(f"a row at {at_ms} came after word of {latest}: the subscription cannot be relied on")
        self._at_ms = at_ms

    def row(self, change: Change) -> Iterator[Part]:
        """A row of the time that was reached."""
        assert self._at_ms is not None, "a time is reached before its rows"
        self._changes.append(change)
        if len(self._changes) >= self._part_rows_max:
            yield Part(self._at_ms, self._taken(), None, self._whole)

    def progressed(self, frontier_ms: int) -> Iterator[Part]:
        """Nothing follows that is earlier than the frontier; there may be more at it."""
        if self._at_ms is None and self._whole:
            # The first word of a subscription is the time of its snapshot, which may have no rows at all.
            self._at_ms = frontier_ms
        elif self._at_ms is not None and frontier_ms > self._at_ms:
            yield self._completed(frontier_ms - 1)
        elif self._at_ms is None and (self._told_ms is None or frontier_ms - 1 > self._told_ms):
            self._told_ms = frontier_ms - 1
            yield Part(self._told_ms, (), str(self._told_ms))

    def ended(self) -> Iterator[Part]:
        """Nothing follows at all."""
        if self._at_ms is not None:
            yield self._completed(self._at_ms)

    def _completed(self, through_ms: int) -> Part:
        assert self._at_ms is not None
        part = Part(self._at_ms, self._taken(), str(through_ms), self._whole)
        self._at_ms, self._whole, self._told_ms = None, False, through_ms
        return part

    def _taken(self) -> list[Change]:
        taken, self._changes = self._changes, []
        return taken
