"""Ticks: the passing of time, recorded only if something waits for it.

The fold reads no clock: it stores when a window or an idle timeout is due. This module watches the clock, and once that
moment has passed it records a tick, a control event that every fold and every replay sees at the same place.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from tidelock.clock import Clock, database_clock
from tidelock.instants import SECOND
from tidelock.postgres.course import MORE, PAUSE_S, Turn
from tidelock.postgres.database import Database
from tidelock.postgres.listener import DUE_CHANNEL
from tidelock.postgres.loop import AsyncReaderLoop
from tidelock.postgres.queries import load

if TYPE_CHECKING:
    # The writer, on which the sequencer is built, asks here what is due.
    from tidelock.ledger.sequencer import Decide, Sequencer

QUERIES = load("tidelock.ledger", "sql/ticks.sql")

# A notification may be lost with its connection, so check this often anyway.
_POLL_S = 1.0
# On a busy ledger the next event closes a window just as well, and a tick is a separate range of the fold, so give the
# next event this long. It adds to the time an idle window takes to close.
_GRACE_NS = SECOND // 10
_PAUSE_MAX_S = 1.0
_ANSWER_S = 2.0


class DueTimes(NamedTuple):
    """Moments that the fold waits for, in nanoseconds, and the last tick recorded."""

    #: the end of the next window by arrival; any event at or after it closes that window
    window: int | None
    #: when the next idle timeout expires; only a tick at or after it is checked for that
    idle: int | None
    #: source timestamp of the last tick; 0: there was none
    last_tick: int
    #: when the next period is to be closed, as far as the fold is
    close: int | None = None

    def next(self, head: int) -> int | None:
        """The time of the next tick, given the head's source timestamp; None: nothing waits for one."""
        waiting = []
        if self.window is not None and head < self.window:
            waiting.append(self.window)
        if self.idle is not None and self.last_tick < self.idle:
            waiting.append(self.idle)
        return min(waiting, default=None)

    def wants_tick(self, head: int, now: int) -> bool:
        """Whether something waits for a tick recorded now. Ledger time is never before the head."""
        moment = self.next(head)
        return moment is not None and max(now, head + 1) >= moment


async def read_due(connection: psycopg.AsyncConnection[Any]) -> DueTimes:
    row = await (await connection.execute(QUERIES["due"])).fetchone()
    return DueTimes(None, None, 0) if row is None else DueTimes(*row)


class Ticker:
    """Asks the sequencer for a tick whenever one is due, or for a close. Any number may run on a ledger; only one is
    recorded.
    """

    def __init__(
        self,
        database: Database,
        sequencer: Sequencer,
        clock: Clock = database_clock,
        *,
        closing: Decide | None = None,
        poll_s: float = _POLL_S,
        grace_ns: int = _GRACE_NS,
    ) -> None:
        """`closing` decides what is to be closed."""
        self._database = database
        self._sequencer = sequencer
        self._clock = clock
        self._closing = closing
        self._poll_s = poll_s
        self._grace_ns = grace_ns

        self._connection: psycopg.AsyncConnection[Any] | None = None

    async def run(self) -> None:
        """For as long as the server runs, whatever happens to the database."""
        await AsyncReaderLoop(
            self._turn, what="ticks", database=self._database, name="tidelock ticks", channels=[DUE_CHANNEL],
            opened=self._open, poll_s=self._poll_s, pause_max_s=_PAUSE_MAX_S,
        ).run()  # fmt: skip

    async def _open(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def _turn(self) -> Turn:
        """One look: a tick when one is due, else a wait until it is, or the fold stores other moments."""
        assert self._connection is not None
        async with asyncio.timeout(_ANSWER_S):
            due = await read_due(self._connection)
            row = await (await self._connection.execute(QUERIES["outlook"])).fetchone()
        assert row is not None, "the head is always there"
        head, now = row[0], self._clock(row[1])
        if self._closing is not None and due.close is not None and max(now, head + 1) >= due.close:
            # Nothing is left to close where the fold has yet to come to a close that is recorded.
            await self._sequencer.decided(self._closing)
            due = due._replace(close=None)
        moment = due.next(head)
        if due.close is not None:
            moment = due.close if moment is None else min(moment, due.close)
        # In the ledger's time, which is never before the head.
        left_ns = self._poll_s * SECOND if moment is None else moment + self._grace_ns - max(now, head + 1)
        if left_ns > 0:
            return Turn(due_s=min(self._poll_s, left_ns / SECOND))
        # Only requested here: under the head's lock, another process may have been first, or the clock may be set back.
        return MORE if await self._sequencer.tick() is not None else Turn(pause_s=PAUSE_S)
