"""What is due: the moments at which something closes though nothing happens, as the fold has stored them."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg

from tidelock.postgres.queries import load

QUERIES = load("tidelock.ledger", "sql/ticks.sql")


class Due(NamedTuple):
    """Moments that the fold waits for, in nanoseconds, and the last tick it was or will be told of."""

    #: the end of the next window by arrival; any event at or after it closes that window
    window: int | None
    #: when the next idle timeout is over; only a tick at or after it is looked at for that
    idle: int | None
    #: source timestamp of the last tick; 0: there was none
    last_tick: int

    def next(self, head: int) -> int | None:
        """The moment of the next tick, given the head's source timestamp; None: nothing waits for one."""
        waiting = []
        if self.window is not None and head < self.window:
            waiting.append(self.window)
        if self.idle is not None and self.last_tick < self.idle:
            waiting.append(self.idle)
        return min(waiting, default=None)

    def wants_tick(self, head: int, now: int) -> bool:
        """Whether a tick recorded now would be one that somebody waits for. Ledger time never lies before the head."""
        moment = self.next(head)
        return moment is not None and max(now, head + 1) >= moment


async def read_due(connection: psycopg.AsyncConnection[Any]) -> Due:
    row = await (await connection.execute(QUERIES["due"])).fetchone()
    return Due(None, None, 0) if row is None else Due(*row)
