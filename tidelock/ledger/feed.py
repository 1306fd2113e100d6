"""The feed: the live end of the ledger, read once for all followers.

A follower first pages through the ledger by itself, then joins the shared tail. It joins only between two reads of the
tail, at a known position, and reads on its own up to exactly there: no gap, no repeat. One whose bounded queue
overflows leaves the tail and pages again, so a slow client costs neither memory nor the others' time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

import psycopg

from tidelock.errors import Unreachable
from tidelock.ledger.reader import Slice, next_sequence, read_head, read_page
from tidelock.ledger.routing import Filter, FollowerQueue, Frame, Router, frame
from tidelock.model import Head
from tidelock.postgres.course import IDLE, Turn
from tidelock.postgres.database import Database
from tidelock.postgres.listener import LEDGER_CHANNEL
from tidelock.postgres.loop import AsyncReaderLoop, nothing
from tidelock.postgres.pool import Connections

# A notification may be lost with its connection, so check the head this often anyway.
_POLL_S = 1.0
_PAUSE_S, _PAUSE_MAX_S = 0.1, 2.0
_PAGE_EVENTS = 500
# Each follower that catches up holds a page while it sends it.
_PAGE_BYTES = 4 * 2**20
# How much one query may scan for a rare filter; its time stays bounded on a ledger of any length.
_SCAN_SEQUENCES = 100_000
_QUEUE_BYTES_MAX = 16 * 2**20


@dataclass(frozen=True, slots=True)
class FeedState:
    """State of the feed, for the metrics."""

    followers: int
    #: events of the ledger that the tail has not read yet; 0 when nobody follows
    lag: int


class Feed:
    """Follows the ledger while it has followers; otherwise it reads nothing and holds no connection."""

    def __init__(
        self,
        database: Database,
        connections: Connections,
        *,
        queue_events_max: int,
        page_bytes_max: int = _PAGE_BYTES,
        poll_s: float = _POLL_S,
    ) -> None:
        self._database = database
        self._poll_s = poll_s
        self._connections = connections
        self._queue_events_max = queue_events_max
        # Small compared to the queue, so that one batch does not evict a follower that keeps up.
        self._batch_events = max(1, min(_PAGE_EVENTS, queue_events_max // 4))
        self._page_bytes = min(_PAGE_BYTES, page_bytes_max)
        self._router = Router()
        self._joining: list[FollowerQueue] = []
        self._followers = 0
        #: every event up to here has been routed; None without followers
        self._position: int | None = None
        #: the last sequence known to be committed
        self._head = 0
        #: the head is known, or something else asks for a turn
        self._woken = False
        wanted = lambda: self._followers > 0  # noqa: E731
        self._tail = AsyncReaderLoop(
            self._turn, what="live events", poll_s=poll_s, wanted=wanted, rest=self._forget_position
        )
        # Beside it, and not needed: whatever goes wrong there, the poll makes good.
        self._listening = AsyncReaderLoop(
            nothing, what="announcements of commits", database=database, name="tidelock feed",
            channels=[LEDGER_CHANNEL], heard=self._heard, poll_s=poll_s, wanted=wanted,
        )  # fmt: skip
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._tail.run(), name="feed tail"),
            asyncio.create_task(self._listening.run(), name="feed listener"),
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def state(self) -> FeedState:
        lag = 0 if self._position is None else max(0, self._head - self._position)
        return FeedState(self._followers, lag)

    def wake(self, sequence: int) -> None:
        """Everything up to this sequence is committed; no need to wait for the notification."""
        self._head = max(self._head, sequence)
        self._look()

    def _look(self) -> None:
        self._woken = True
        self._tail.wake()

    def _heard(self, notification: psycopg.Notify) -> bool:
        """Of commits of other processes, too."""
        self.wake(int(notification.payload))
        return False

    async def follow(self, only: Filter, after: int) -> AsyncGenerator[list[Frame], None]:
        """Every event of the filter above `after`, each once, in ledger order, without end."""
        self._followers += 1
        self._look()
        self._listening.wake()
        position = after
        try:
            while True:
                queue = FollowerQueue(only, events_max=self._queue_events_max, bytes_max=_QUEUE_BYTES_MAX)
                try:
                    async with aclosing(self._catch_up_and_join(queue, position)) as batches:
                        async for frames in batches:
                            position = frames[-1].sequence
                            yield frames
                finally:
                    self._leave(queue)
        finally:
            self._followers -= 1
            self._look()
            self._listening.wake()

    async def _catch_up_and_join(self, queue: FollowerQueue, position: int) -> AsyncGenerator[list[Frame], None]:
        """Pages up to near the tail, then exactly to where the queue begins, then the queue until it overflows."""
        while self._position is not None and self._position - position > self._queue_events_max:
            frames, position = await self._page(queue.only, position, self._position)
            if frames:
                yield frames
        self._joining.append(queue)
        self._look()
        await queue.joined.wait()
        while position < queue.since:
            frames, position = await self._page(queue.only, position, queue.since)
            if frames:
                yield frames
        while frames := await queue.take():
            # `after` may be beyond the end of the ledger.
            if new := [event for event in frames if event.sequence > position]:
                yield new

    def _leave(self, queue: FollowerQueue) -> None:
        self._router.remove(queue)
        if queue in self._joining:
            self._joining.remove(queue)

    async def _page(self, only: Filter, after: int, through: int) -> tuple[list[Frame], int]:
        """The next events of the filter, and the sequence through which they are complete."""
        end, through = through, min(through, after + _SCAN_SEQUENCES)
        wanted = Slice(*only, after=after, before=through + 1)
        pause_s = _PAUSE_S
        while True:
            try:
                async with self._connections.lend() as connection:
                    page = await read_page(connection, wanted, rows_max=_PAGE_EVENTS, bytes_max=self._page_bytes)
                    if not page.events and through < end:
                        # Any number of sequences may be skipped: continue where there are events.
                        start = await next_sequence(connection, through)
                        through = min(end, max(through, (start or 0) - 1))
            except Unreachable:
                # The follower waits out an outage as it waits for events.
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
                continue
            reached = page.events[-1].ingress_sequence if page.more else max(after, through)
            return [frame(event) for event in page.events], reached

    async def _turn(self) -> Turn:
        """Route everything that was committed."""
        if self._position is None:
            self._position = (await self._read_head()).ingress_sequence
        elif not self._woken:
            self._head = max(self._head, (await self._read_head()).ingress_sequence)
        self._woken = False
        await self._advance(self._position)
        return IDLE

    async def _forget_position(self) -> None:
        self._position = None

    async def _advance(self, position: int) -> None:
        while True:
            self._admit(position)
            if position >= self._head:
                return
            wanted = self._router.cover()
            if wanted is None:
                position = self._position = self._head
                continue
            through = self._head
            wanted = replace(wanted, after=position, before=through + 1)
            async with self._connections.lend() as connection:
                page = await read_page(connection, wanted, rows_max=self._batch_events, bytes_max=self._page_bytes)
            self._router.route(page.events)
            position = self._position = page.events[-1].ingress_sequence if page.more else through

    def _admit(self, position: int) -> None:
        """Let waiting followers join. Only here, between two reads: a running read may lack what a new filter wants."""
        for queue in self._joining:
            queue.since = position
            self._router.add(queue)
            queue.joined.set()
        self._joining.clear()

    async def _read_head(self) -> Head:
        async with self._connections.lend() as connection:
            return await read_head(connection)
