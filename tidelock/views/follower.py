"""The follower: reads what the fold did since, once for all views, and tells them.

It claims what there is by a look at how far the fold has come, and then reads the changes up to there of the tables
that are watched at that moment. Who comes while they are read may miss some of them, so everyone who joins a view
begins beyond `reach`, the end of what was claimed, and has what lies before from a snapshot or from the log.
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

# A notification may be lost with its connection: look this often in any case.
_POLL_S = 1.0
# How long others on the event loop wait for a turn, or at most where theirs take as long.
_TURN_S, _TURN_MAX_S = 0.004, 0.02


@dataclass(slots=True)
class _Claim:
    """Changes that are being read, for the views that were there when they were claimed."""

    #: source timestamp that they come after
    after: int
    end: Frontier
    #: by table
    watched: Mapping[str, tuple[TableViews, Prefilter]]
    #: which come next; None: all were told
    cursor: LogCursor | None


class Follower:
    """Follows while somebody wants it to; reads nothing and holds no connection otherwise."""

    def __init__(self, database: Database, hub: Hub) -> None:
        """The hub has the views that are told, and hears what the follower learns beside changes."""
        self._readers = Readers(database, size_max=1, name="tidelock follower")
        self._hub = hub
        self._prefilters: WeakKeyDictionary[TableViews, tuple[int, Prefilter]] = WeakKeyDictionary()
        self._wanting = 0
        #: everything through here was told; None: nobody wants to know
        self._position: Frontier | None = None
        self._claim: _Claim | None = None
        #: of the definitions; below 0 while it is not known
        self._version: int | None = -1
        self._moved = asyncio.Event()
        wanted = lambda: self._wanting > 0  # noqa: E731
        self._following = AsyncReaderLoop(
            self._turn, what="live changes", poll_s=_POLL_S, wanted=wanted, rest=self._left, failed=self._failed
        )
        # Beside it, and not needed: whatever goes wrong there, the poll makes good.
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
        """Up to where everything was told; None while nobody wants to know."""
        return self._position

    @property
    def reach(self) -> Frontier | None:
        """Up to where changes were told or are being read: who joins a view is told what comes later.

        None, when nobody wanted it until now, before the first look.
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
        """Nobody wants it any more."""
        self._position = self._claim = None
        await self._readers.rest()
        await self._hub.left()

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, Unreachable):
            self._give_up(error)

    async def _heard_again(self, _: psycopg.AsyncConnection[Any]) -> None:
        # What happened before it listened was not heard.
        self._following.wake()

    def _heard(self, _: psycopg.Notify) -> bool:
        self._following.wake()
        return False

    async def _advance(self) -> None:
        """Tell everything that the fold has done."""
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
        """Whether there is something to read up to there. From now on who joins a view begins beyond it."""
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
        """Read and tell a page after another. After an outage it goes on with the page that it was at."""
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
        """Let a source apply changes, with pauses in which others have their turn."""
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
        """After a defect of ours: begin anew, and let nobody believe to have everything."""
        self._position = self._claim = None
        self._hub.missed(2**63 - 1, Closed(f"the server failed: {type(error).__name__}; see its log"))


def _read(connection: Connection, claim: _Claim) -> LogPage:
    """The next changes of a claim, those that may concern a view."""
    assert claim.cursor is not None

    def seen(name: str, changes: pa.Table) -> pa.Table | None:
        source, prefilter = claim.watched[name]
        # Of another shape they are from before a swap, and those who look at the new one have begun behind it.
        return prefilter.apply(changes).combine_chunks() if fits(changes, source.table) else None

    return read_page(connection, claim.watched, claim.cursor, after=claim.after, through=claim.end.sequence, seen=seen)


async def _others_turn() -> float:
    """Let others have their turn. Gives when the next turn of ours ends.

    It is as long as theirs was: with a thousand subscribers each change keeps them busy for longer than it takes here,
    and several changes at a time are sent for little more than the cost of one.
    """
    before = time.perf_counter()
    await asyncio.sleep(0)
    now = time.perf_counter()
    return now + min(max(_TURN_S, now - before), _TURN_MAX_S)
