"""Subscriptions: a subscriber's progress through a table, from its current rows, or a time, to its changes.

A subscription begins with a snapshot, or with nothing if it resumes. Then it joins its view, from where changes are
queued, and reads the changes in between from the log. It takes from the queue after that. If the queue overflows
before, because a large snapshot takes that long, it leaves the view and reads on from the log in the same way, as long
as it is catching up. Once it follows, an overflow ends it.
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

#: default number of events of one `take`
TAKE_EVENTS = 200
# How long a subscriber may take nothing while its queue overflows.
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Supply:
    """The services that subscriptions use."""

    follower: Follower
    snapshots: Snapshots
    catchups: Catchups
    #: how long before the fold's last event a subscription may resume
    retention_ns: int
    queue_rows_max: int
    #: ends those whose tables have changed, if a snapshot follows another version of the definitions
    check: Callable[[int | None], Coroutine[Any, Any, None]]
    #: called when one has ended
    forget: Callable[[Subscription], None]


class Subscription:
    """The rows of a filter and their changes, in the order of their source timestamps.

    Created by `Hub.subscribe`. One caller takes; anyone may close it. Nothing is lost if a waiting `take` is cancelled:
    the next one continues where it was.
    """

    def __init__(self, supply: Supply, source: TableViews, expression: Expression, after: int | None) -> None:
        self.source = source
        self._supply = supply
        self._expression = expression
        #: source timestamp through which it is complete once it has taken what it holds; None: it has nothing
        self._position = None if after is None else max(0, after - 1)
        self._snapshot: Share[Snapshot] | None = None
        #: its queue since it joined its view
        self._queue: SubscriberQueue | None = None
        self._view: View | None = None
        #: what is left to read from the log before the queue
        self._gap: _Gap | None = None
        self._caught: Share[Caught] | None = None
        #: what was read and is being taken
        self._taking: BacklogCursor | None = None
        #: it has caught up, and now takes from the queue
        self.follows = False
        #: events taken since it joined its view, and between its two previous joins; None: the first time
        self._taken = 0
        self._taken_before: int | None = None
        #: how often something was taken, and whether a caller waits for more
        self._takes = 0
        self._awaited = False
        self._patience: asyncio.TimerHandle | None = None
        self._error: TidelockError | None = None
        self._ended = asyncio.Event()

    async def take(self, limit: int = TAKE_EVENTS) -> list[ViewEvent]:
        """The next events, at least one; waits for them. First the snapshot as INSERTs, then changes.

        Raises Ended (`Closed`, `DefinitionChanged`, `Overflowed`), ResumeExpired, SnapshotTooLarge: then it has ended,
        and its resources are free.
        """
        self._awaited = True
        try:
            while True:
                # Yield to others: creating events takes time.
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
        """Waits until it has ended, and returns the reason.

        For a caller that is blocked while sending: it cannot take, and so would not learn of an overflow.
        """
        await self._ended.wait()
        assert self._error is not None
        return self._error

    @property
    def queued(self) -> int:
        """Queued rows, not counting the snapshot."""
        return 0 if self._queue is None else len(self._queue)

    def close(self) -> None:
        """Free everything. A waiting `take` raises Closed. Idempotent."""
        self.end(Closed("the subscription was closed"))

    def end(self, error: TidelockError) -> None:
        """Free everything, for a reason that `take` raises. The first one counts."""
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
        """Changes through a source timestamp were not delivered: it ends, if it needed them."""
        joined = self._view is not None and self._queue is not None and not self._queue.overflowed
        if joined and self._position is not None and self._position < through:
            self.end(error)

    def put(self, event: ViewEvent) -> None:
        """Called by the view."""
        if self._queue is not None:
            self._queue.put(event)
            if self._queue.overflowed:
                # Not immediately: the view is still iterating over its subscribers.
                asyncio.get_running_loop().call_soon(self._overflowed)

    async def _next(self, limit: int) -> list[ViewEvent] | None:
        """Some events, if available, or a step towards them."""
        if self._taking is not None:
            if (events := self._taking.take(limit)) is not None:
                return events
            self._taking = None
        elif self._gap is not None:
            await self._read_on(self._gap)
        elif self._queue is None:
            await self._begin()
        elif self._queue.overflowed:
            # This may run before `_overflowed` is called.
            self._join_again()
        else:
            self.follows = True
            if events := self._queue.take(limit):
                return events
            await self._queue.wait()
        return None

    async def _begin(self) -> None:
        """Get a snapshot or a starting time, and join the view."""
        follower = self._supply.follower
        if self._position is not None:
            # The follower may lag behind the one that the subscriber knew. Repeated events must not be queued, where an
            # INSERT that it has and a DELETE that it lacks would cancel out.
            await self._unless_ended(follower.reached(self._position + 1))
            self._refuse_expired(self._position + 1)
        else:
            # After it, so that there is nothing to read from the log in between.
            await self._unless_ended(follower.reached(0))
            snapshot = await self._read_snapshot()
            self._position = snapshot.frontier.source_timestamp
            self._taking = BacklogCursor(snapshot.rows, after=-1)
        while (reach := follower.reach) is None:
            await self._unless_ended(follower.reached(0))
        self._join(self._position, reach)

    def _refuse_expired(self, after: int) -> None:
        """A time older than the retention cannot be resumed, whether already pruned or not."""
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
        """After the queue overflowed while it was catching up: read on from the log.

        Raises Overflowed if it had already caught up.
        """
        if self.follows or (self._taken_before is not None and self._taken >= self._taken_before):
            # It is not catching up: there is more to take each time.
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
        """The next page of changes between what it has and its queue."""
        assert self._view is not None, "it joined its view before"
        if self._caught is None:
            self._caught = self._supply.catchups.join(self._view, gap.cursor, after=gap.after, through=gap.through)
        caught = await self._unless_ended(self._caught.result())
        self._caught.leave()
        self._caught = None
        self._taking = BacklogCursor(caught.events, after=gap.after)
        self._gap = None if caught.cursor is None else replace(gap, cursor=caught.cursor)

    async def _unless_ended(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of the work, unless it ends before. May be cancelled and called again."""
        working, ending = asyncio.ensure_future(work), asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
            if self._error is not None:
                raise self._error
            return working.result()
        finally:
            ending.cancel()
            if not working.cancel() and not working.cancelled():
                # Retrieved here, even if something else is raised.
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
        """End it after a while in which it took nothing, because its queue is kept all the time."""
        loop, takes = asyncio.get_running_loop(), self._takes

        def look() -> None:
            self._patience = None
            if self._takes == takes and not self._awaited:
                self.end(_slow())
            elif not self.follows:
                self._be_patient()

        self._patience = loop.call_later(_PATIENCE_S, look)

    def _leave(self) -> None:
        """Leave the view. A running read of the log still uses it."""
        if self._view is not None:
            self.source.unsubscribe(self, self._view)


@dataclass(frozen=True, slots=True)
class _Gap:
    """Changes to be read from the log."""

    #: source timestamp after which they come
    after: int
    #: sequence of the fold at which they end
    through: int
    #: where the next ones are
    cursor: LogCursor


def _slow() -> Overflowed:
    return Overflowed("too many rows were queued (setting live_queue_rows_max); subscribe again and read faster")
