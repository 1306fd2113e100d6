"""The one clock: the sequencer's. Everything else reads time from the ledger.

The database's clock is read under the head lock, so that all processes on one ledger share it. A `Clock` maps that
reading to the time to use; tests inject one that returns chosen instants.
"""

from __future__ import annotations

from collections.abc import Callable

#: nanoseconds read from the database -> nanoseconds to use
Clock = Callable[[int], int]


def database_clock(now: int) -> int:
    return now
