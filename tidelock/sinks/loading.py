"""Loading: one store is brought on by steps, each of them whole or not at all.

A step is staged aside, then published while the cursor's row is locked for its new position: who has lost the cursor
publishes nothing. Killed between publishing and the commit it is done again, which changes nothing.
"""

from __future__ import annotations

from typing import Protocol

from tidelock.fold.store import Store
from tidelock.sinks.source import Source


class Staged(Protocol):
    """What a step will show to readers."""

    def publish(self) -> None:
        """Show it. To do so again, with the same or with a longer step, changes nothing but what is new."""


class Sink(Protocol):
    """A store. Its law: after a step its events above `lo` through `hi` are those of the source, others as before."""

    @property
    def name(self) -> str:
        """Of its cursor, too."""

    @property
    def replaces(self) -> bool:
        """Whether a repair takes the place of what was there; else that is removed first, and missing for a while."""

    def open(self) -> None:
        """Make what has to be there."""

    def last(self) -> int | None:
        """The last sequence that is there, 0 where there is none; None: it cannot be told."""

    def stage(self, lo: int, hi: int, source: Source) -> Staged:
        """Prepare a step; readers see nothing of it."""

    def widened(self, lo: int, hi: int) -> tuple[int, int]:
        """The least range around this one that can be replaced."""

    def stage_repair(self, lo: int, hi: int, source: Source) -> Staged:
        """Prepare to replace a range, whatever is there."""


class Loading:
    """One sink and its cursor."""

    def __init__(self, sink: Sink, store: Store, source: Source) -> None:
        self.sink = sink
        self._store = store
        self._source = source
        #: everything up to here is loaded
        self.position = 0

    def open(self) -> int:
        """Find out how far the store is; what the cursor said.

        A cursor that is ahead of it was another store's, of another path or before it was put back from a backup: what
        is missing is loaded again.
        """
        self.sink.open()
        told = self.position = self._store.position()
        last = self.sink.last()
        if last is not None and last < told:
            found = self._source.commit_end(last)
            self._store.move(told, found)
            self._store.commit()
            self.position = found
        return told

    def look(self) -> None:
        """Where another loader is."""
        self.position = self._store.position()

    def close(self) -> None:
        """What was half done is left; the next `open` begins anew."""
        self._store.rollback()
        self._store.close()

    def step(self, events_max: int, through: int | None = None) -> int:
        """Load what comes next; how many sequences that were. Raises CursorMoved."""
        hi = self._source.frontier(self.position, events_max, through)
        if hi is None:
            return 0
        staged = self.sink.stage(self.position, hi, self._source)
        self._publish(staged, hi)
        done, self.position = hi - self.position, hi
        return done

    def repair(self, lo: int, events_max: int) -> int:
        """Replace what was loaded above `lo`, at most so many events; where that ended. Raises CursorMoved."""
        hi = self._source.frontier(lo, events_max, self.position) or self.position
        lo, hi = self.sink.widened(lo, hi)
        hi = min(hi, self.position)
        staged, end = self.sink.stage_repair(lo, hi, self._source), self.position
        if not self.sink.replaces:
            self._move_back(lo)
        self._publish(staged, end)
        self.position = end
        return hi

    def _move_back(self, lo: int) -> None:
        """In a commit of its own: if the repair is killed amid, the next steps insert what it has removed."""
        start = self._source.commit_end(lo)
        self._store.move(self.position, start)
        self._store.commit()
        self.position = start

    def _publish(self, staged: Staged, to: int) -> None:
        self._store.move(self.position, to)
        try:
            staged.publish()
        except BaseException:
            self._store.rollback()
            raise
        self._store.commit()
