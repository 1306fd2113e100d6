"""The follower: reads new changes once for all views and passes them on.

It claims the changes up to the fold's current position, and then reads them for the tables that are watched at that
moment. A subscriber that joins meanwhile may miss some of them, so everyone who joins a view begins beyond `reach`, the
end of the claim, and gets earlier changes from a snapshot or from the log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import psycopg
import pyarrow as pa

from tidelock.changes.log import Frontier, LogCursor, LogPage, beginning, read_page, read_state
from tidelock.changes.reader import changes_of, slices
from tidelock.errors import Closed, ResumeExpired, Unreachable
from tidelock.postgres.course import IDLE, Turn
from tidelock.postgres.database import Database
from tidelock.postgres.listener import FOLD_CHANNEL
from tidelock.postgres.loop import AsyncReaderLoop, nothing
from tidelock.views.prefilter import Prefilter, fits
from tidelock.views.threads import Connection, Readers
from tidelock.views.views import TableViews

if TYPE_CHECKING:
    from tidelock.views.hub import Hub

# A notification may be lost with its connection, so poll this often anyway.
_POLL_S = 1.0
# How long others on the event loop wait for a turn, at most if their turns take as long.
_TURN_S, _TURN_MAX_S = 0.004, 0.02


@dataclass(slots=True)
class _Claim:
    """Changes being read for the views that existed when they were claimed."""

    #: source timestamp after which they come
    after: int
    end: Frontier
    #: by table
    watched: Mapping[str, tuple[TableViews, Prefilter]]
    #: the next ones; None: all were passed on
    cursor: LogCursor | None


class Follower:
    """Follows while wanted; otherwise reads nothing and holds no connection."""

    def __init__(self, database: Database, hub: Hub) -> None:
        """The hub has the views, and is told of everything besides changes."""
        self._readers = Readers(database, size_max=1, name="tidelock follower")
        self._hub = hub
        self._prefilters: WeakKeyDictionary[TableViews, tuple[int, Prefilter]] = WeakKeyDictionary()
        self._wanting = 0
        #: everything through here was passed on; None: not wanted
        self._position: Frontier | None = None
        self._claim: _Claim | None = None
        #: of the definitions; below 0 while unknown
        self._version: int | None = -1
        self._moved = asyncio.Event()
        wanted = lambda: self._wanting > 0  # noqa: E731
        self._following = AsyncReaderLoop(
            self._turn, what="live changes", poll_s=_POLL_S, wanted=wanted, rest=self._left, failed=self._failed
        )
        # Optional: if it fails, the poll makes up for it.
        self._listening = AsyncReaderLoop(
            nothing, what="announcements of changes", database=database, name="tidelock follower",
            channels=[FOLD_CHANNEL], opened=self._heard_again, heard=self._heard, poll_s=_POLL_S, wanted=wanted,
        )  # fmt: skip
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._following.run(), name="live follower"),
            asyncio.create_task(self._listening.run(), name="live listener"),
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._readers.close()

    def want(self) -> None:
        self._wanting += 1
        if self._wanting == 1:
            self._following.wake()
            self._listening.wake()

    def unwant(self) -> None:
        self._wanting -= 1
        if not self._wanting:
            self._following.wake()
            self._listening.wake()

    @property
    def position(self) -> Frontier | None:
        """Up to where everything was passed on; None while not wanted."""
        return self._position

    @property
    def reach(self) -> Frontier | None:
        """Up to where changes were passed on or are being read: a subscriber that joins a view gets later ones.

        None before the first read.
        """
        return self._position if self._claim is None else self._claim.end

    async def reached(self, source_timestamp: int) -> None:
        """Waits until its reach is known, and at or beyond a time."""
        while self.reach is None or self.reach.source_timestamp < source_timestamp:
            self._following.wake()
            await self._moved.wait()

    async def _turn(self) -> Turn:
        await self._advance()
        return IDLE

    async def _left(self) -> None:
        """It is no longer wanted."""
        self._position = self._claim = None
        await self._readers.rest()
        await self._hub.left()

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, Unreachable):
            self._give_up(error)

    async def _heard_again(self, _: psycopg.AsyncConnection[Any]) -> None:
        # Changes before it listened were missed.
        self._following.wake()

    def _heard(self, _: psycopg.Notify) -> bool:
        self._following.wake()
        return False

    async def _advance(self) -> None:
        """Pass on everything that the fold has done."""
        while self._wanting:
            if self._claim is None:
                seen = await self._readers.run(read_state)
                if seen.version != self._version:
                    await self._hub.redefined()
                    self._version = seen.version
                if not self._claims(seen.frontier):
                    return
            assert self._claim is not None
            await self._work_off(self._claim)
            self._position, self._claim = self._claim.end, None

    def _claims(self, end: Frontier) -> bool:
        """Whether there is something to read up to there. From now on subscribers that join a view begin beyond it."""
        if self._position is None:
            self._position = end
        elif end.sequence > self._position.sequence:
            watched = {
                name: (source, self._prefilter(source)) for name, source in self._hub.sources.items() if source.views
            }
            after = self._position.source_timestamp
            self._claim = _Claim(after, end, watched, beginning(after) if watched else None)
        else:
            return False
        self._moved.set()
        self._moved = asyncio.Event()
        return self._claim is not None

    async def _work_off(self, claim: _Claim) -> None:
        """Read and pass on page after page. After an outage it continues with the same page."""
        try:
            while claim.cursor is not None and self._wanting:
                page = await self._readers.run(partial(_read, claim=claim))
                for each in page.changes:
                    await self._tell(claim.watched[each.table_name][0], each.changes)
                claim.cursor = page.cursor
        except ResumeExpired as error:
            claim.cursor = None
            self._hub.missed(claim.end.source_timestamp, error)

    async def _tell(self, source: TableViews, changes: pa.Table) -> None:
        """Let a source apply changes, with pauses in which others get a turn."""
        turn_ends = time.perf_counter() + _TURN_S
        for batch in slices(changes):
            for change in changes_of(source.table.name, batch):
                source.apply(change)
                if time.perf_counter() > turn_ends:
                    turn_ends = await _others_turn()

    def _prefilter(self, source: TableViews) -> Prefilter:
        edition, prefilter = self._prefilters.get(source, (-1, None))
        if prefilter is None or edition != source.edition:
            prefilter = Prefilter(source.expressions, source.branches)
            self._prefilters[source] = source.edition, prefilter
        return prefilter

    def _give_up(self, error: Exception) -> None:
        """After a bug of ours: start over, and let no subscriber believe it has everything."""
        self._position = self._claim = None
        self._hub.missed(2**63 - 1, Closed(f"the server failed: {type(error).__name__}; see its log"))


def _read(connection: Connection, claim: _Claim) -> LogPage:
    """The next changes of a claim that may concern a view."""
    assert claim.cursor is not None

    def seen(name: str, changes: pa.Table) -> pa.Table | None:
        source, prefilter = claim.watched[name]
        # Changes of another shape are from before a swap, and subscribers of the new table began after it.
        return prefilter.apply(changes).combine_chunks() if fits(changes, source.table) else None

    return read_page(connection, claim.watched, claim.cursor, after=claim.after, through=claim.end.sequence, seen=seen)


async def _others_turn() -> float:
    """Let others have a turn; returns when our next turn ends. It is as long as theirs was:

    with a thousand subscribers each change keeps them busy for longer than it takes here, and several changes at a time
    are sent at little more than the cost of one.
    """
    before = time.perf_counter()
    await asyncio.sleep(0)
    now = time.perf_counter()
    return now + min(max(_TURN_S, now - before), _TURN_MAX_S)
