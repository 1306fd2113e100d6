"""Subscriptions: one subscriber's way through a table, from its rows of now, or a time, to its changes.

A subscription first has a snapshot, or nothing where it resumes. Then it joins its view, from where on changes wait in
its queue, and reads from the log what lies between the two. It takes from the queue when it has taken all of that. If
the queue overflows before, for so long takes a large snapshot, it leaves the view and reads on from the log in the same
way, as long as it is catching up. Once it follows, an overflow is the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tidelock.changes.log import Frontier, LogCursor, beginning, expired
from tidelock.errors import Closed, Overflowed, TidelockError
from tidelock.views.follower import Follower
from tidelock.views.queues import SubscriberQueue
from tidelock.views.snapshots import BacklogCursor, Catchups, Caught, Share, Snapshot, Snapshots
from tidelock.views.views import TableViews, View, ViewEvent
from tidelock.where import Expression

T = TypeVar("T")

#: events of one `take` where the caller does not say
TAKE_EVENTS = 200
# How long one may take nothing while it could, and more comes than may wait.
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Supply:
    """Where subscriptions have everything from."""

    follower: Follower
    snapshots: Snapshots
    catchups: Catchups
    #: how long before the fold's last event one may resume
    retention_ns: int
    queue_rows_max: int
    #: ends those whose tables are not what they were, where a snapshot was by another version of the definitions
    check: Callable[[int | None], Coroutine[Any, Any, None]]
    #: told when one is over
    forget: Callable[[Subscription], None]


class Subscription:
    """The rows of a filter and what becomes of them, in the order of their source timestamps.

    Made by `Hub.subscribe`. One caller takes; whoever has the object may close it. Nothing is lost when a `take` that
    waits is cancelled: the next one goes on where it was.
    """

    def __init__(self, supply: Supply, source: TableViews, expression: Expression, after: int | None) -> None:
        self.source = source
        self._supply = supply
        self._expression = expression
        #: source timestamp through which it has everything when it has taken what it holds; None: it has nothing
        self._position = None if after is None else max(0, after - 1)
        self._snapshot: Share[Snapshot] | None = None
        #: what waits since it joined its view
        self._queue: SubscriberQueue | None = None
        self._view: View | None = None
        #: what is left to read from the log before that
        self._gap: _Gap | None = None
        self._caught: Share[Caught] | None = None
        #: what was read and is being taken
        self._taking: BacklogCursor | None = None
        #: it has taken all there was before it joined its view, and now takes what waits
        self.follows = False
        #: events taken since it joined its view, and between the two times that it did before; None: a first time
        self._taken = 0
        self._taken_before: int | None = None
        #: how often something was taken, and whether somebody waits for more
        self._takes = 0
        self._awaited = False
        self._patience: asyncio.TimerHandle | None = None
        self._error: TidelockError | None = None
        self._ended = asyncio.Event()

    async def take(self, limit: int = TAKE_EVENTS) -> list[ViewEvent]:
        """The next events, at least one; waits for it. First the snapshot as INSERTs, then changes.

        Raises Ended (`Closed`, `DefinitionChanged`, `Overflowed`), ResumeExpired, SnapshotTooLarge: then it is over,
        and everything it had is free.
        """
        self._awaited = True
        try:
            while True:
                # What waits never makes others wait: making events takes its time.
                if self._taking is not None:
                    await asyncio.sleep(0)
                if self._error is not None:
                    raise self._error
                if events := await self._next(limit):
                    self._taken += len(events)
                    self._takes += 1
                    return events
        except TidelockError as error:
            self.end(error)
            raise
        finally:
            self._awaited = False

    async def wait_ended(self) -> TidelockError:
        """Waits until it is over, and gives why.

        For who is held up sending what it took: it cannot take, and so would not hear that too much waits.
        """
        await self._ended.wait()
        assert self._error is not None
        return self._error

    @property
    def queued(self) -> int:
        """Rows that wait to be taken, beside the snapshot."""
        return 0 if self._queue is None else len(self._queue)

    def close(self) -> None:
        """Free everything. A `take` that waits raises Closed. Doing it again does nothing."""
        self.end(Closed("the subscription was closed"))

    def end(self, error: TidelockError) -> None:
        """Free everything, for a reason that whoever takes is told. The first one counts."""
        if self._error is not None:
            return
        self._error = error
        self._leave()
        for share in (self._snapshot, self._caught):
            if share is not None:
                share.leave()
        if self._queue is not None:
            self._queue.wake()
        if self._patience is not None:
            self._patience.cancel()
        self._snapshot = self._caught = self._queue = self._taking = None
        self._ended.set()
        self._supply.forget(self)

    def missed(self, through: int, error: TidelockError) -> None:
        """Changes through a source timestamp were not put: it is over, if it was to have them."""
        joined = self._view is not None and self._queue is not None and not self._queue.overflowed
        if joined and self._position is not None and self._position < through:
            self.end(error)

    def put(self, event: ViewEvent) -> None:
        """Called by the view."""
        if self._queue is not None:
            self._queue.put(event)
            if self._queue.overflowed:
                # Not at once: the view is telling others meanwhile.
                asyncio.get_running_loop().call_soon(self._overflowed)

    async def _next(self, limit: int) -> list[ViewEvent] | None:
        """Some events, if there are any at hand, or a step towards them."""
        if self._taking is not None:
            if (events := self._taking.take(limit)) is not None:
                return events
            self._taking = None
        elif self._gap is not None:
            await self._read_on(self._gap)
        elif self._queue is None:
            await self._begin()
        elif self._queue.overflowed:
            # It may be here before `_overflowed` is called.
            self._join_again()
        else:
            self.follows = True
            if events := self._queue.take(limit):
                return events
            await self._queue.wait()
        return None

    async def _begin(self) -> None:
        """Have a snapshot or a time to begin with, and join the view."""
        follower = self._supply.follower
        if self._position is not None:
            # The follower may be behind the one that the subscriber knew. What it is told again must not wait in a
            # queue, where an insertion it has and a removal it has not would be nothing together.
            await self._unless_ended(follower.reached(self._position + 1))
            self._refuse_expired(self._position + 1)
        else:
            # Behind it, so that there is nothing to read from the log in between.
            await self._unless_ended(follower.reached(0))
            snapshot = await self._read_snapshot()
            self._position = snapshot.frontier.source_timestamp
            self._taking = BacklogCursor(snapshot.rows, after=-1)
        while (reach := follower.reach) is None:
            await self._unless_ended(follower.reached(0))
        self._join(self._position, reach)

    def _refuse_expired(self, after: int) -> None:
        """What is older than the retention cannot be resumed, whether it was pruned already or not."""
        reach = self._supply.follower.reach
        if reach is not None and after < reach.source_timestamp - self._supply.retention_ns:
            raise expired(after)

    def _join(self, position: int, reach: Frontier) -> None:
        self._position = max(position, reach.source_timestamp)
        self._queue = SubscriberQueue(self._supply.queue_rows_max)
        self._queue.drop_through(self._position)
        self._view = self.source.subscribe(self, self._expression)
        if position < reach.source_timestamp:
            self._gap = _Gap(position, reach.sequence, beginning(position))

    def _join_again(self) -> None:
        """After too much has come for its queue while it took what there was before: read that from the log.

        Raises Overflowed where it had taken all of that.
        """
        if self.follows or (self._taken_before is not None and self._taken >= self._taken_before):
            # It does not catch up: there is more to take each time.
            raise _slow()
        self._taken_before, self._taken = self._taken, 0
        self._leave()
        self._queue = None

    async def _read_snapshot(self) -> Snapshot:
        if self._snapshot is None:
            key = self.source, self._expression.text
            self._snapshot = self._supply.snapshots.join(key, self.source.table, self._expression)
        snapshot = await self._unless_ended(self._snapshot.result())
        await self._unless_ended(self._supply.check(snapshot.version))
        self._snapshot.leave()
        self._snapshot = None
        return snapshot

    async def _read_on(self, gap: _Gap) -> None:
        """The next page of what lies between what it has and its queue."""
        assert self._view is not None, "it joined its view before"
        if self._caught is None:
            self._caught = self._supply.catchups.join(self._view, gap.cursor, after=gap.after, through=gap.through)
        caught = await self._unless_ended(self._caught.result())
        self._caught.leave()
        self._caught = None
        self._taking = BacklogCursor(caught.events, after=gap.after)
        self._gap = None if caught.cursor is None else replace(gap, cursor=caught.cursor)

    async def _unless_ended(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work gives, unless it is over before. May be cancelled, and asked for again."""
        working, ending = asyncio.ensure_future(work), asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
            if self._error is not None:
                raise self._error
            return working.result()
        finally:
            ending.cancel()
            if not working.cancel() and not working.cancelled():
                # Seen here, even if something else is raised.
                working.exception()

    def _overflowed(self) -> None:
        if self._queue is None or not self._queue.overflowed:
            return
        if self.follows:
            self.end(_slow())
            return
        self._leave()
        if self._patience is None:
            self._be_patient()

    def _be_patient(self) -> None:
        """End it after a while in which it took nothing: what it has not taken yet is kept for it all the time."""
        loop, takes = asyncio.get_running_loop(), self._takes

        def look() -> None:
            self._patience = None
            if self._takes == takes and not self._awaited:
                self.end(_slow())
            elif not self.follows:
                self._be_patient()

        self._patience = loop.call_later(_PATIENCE_S, look)

    def _leave(self) -> None:
        """Be told nothing any more. What is being read from the log is still read for the view that it was."""
        if self._view is not None:
            self.source.unsubscribe(self, self._view)


@dataclass(frozen=True, slots=True)
class _Gap:
    """Changes to be read from the log."""

    #: source timestamp that they come after
    after: int
    #: sequence of the fold that they end with
    through: int
    #: where the next ones are
    cursor: LogCursor


def _slow() -> Overflowed:
    return Overflowed("too many rows were queued (setting live_queue_rows_max); subscribe again and read faster")
