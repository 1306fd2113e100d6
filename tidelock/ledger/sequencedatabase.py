"""The sequence database: a dedicated Postgres that numbers the events of one or several ledgers.

A commit asks it for a block of numbers while it holds the ledger's head, so nothing here may take long: one round trip
on a connection that is kept, with a timeout. Connecting happens beside the commits. Whenever it cannot answer, the
ledger numbers by its own head; the next block then follows that head, because the same statement raises the sequence.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from tidelock.errors import SettingsError, TidelockError, Unreachable
from tidelock.postgres.database import Database
from tidelock.postgres.queries import load
from tidelock.postgres.reconnect import reason

log = logging.getLogger(__name__)

QUERIES = load("tidelock.ledger", "sql/sequence.sql")

#: a JSON number is exact up to here; numbers beyond it are not taken
SEQUENCE_MAX = 2**53 - 1
_SETTING = "event_sequence_database_url"
# Between two tries to connect while the breaker is closed.
_RETRY_S = 0.1


class Breaker:
    """Closed at first. `failures_max` failures in a row open it; after the pause one more failure opens it again."""

    def __init__(self, failures_max: int, pause_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._failures_max = failures_max
        self._pause_s = pause_s
        self._clock = clock
        self._failures = 0
        self._open_until = 0.0

    @property
    def pause_left_s(self) -> float:
        """How long it is to be left alone yet; 0: it may be tried."""
        return max(0.0, self._open_until - self._clock())

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        self._failures += 1
        if self._failures >= self._failures_max:
            self._open_until = self._clock() + self._pause_s


@dataclass(slots=True)
class Reservations:
    """What a process has asked its sequence database for, for the metrics."""

    #: whether the last commit had its numbers from there
    remote: bool = False
    #: blocks that were given
    taken: int = 0
    #: blocks that were asked for in vain
    failed: int = 0
    #: commits that did not ask, because it was known to be unavailable
    spared: int = 0
    #: time spent asking, under the head's lock, and the longest of it
    seconds: float = 0.0
    seconds_max: float = 0.0


class SequenceDatabase:
    """Allocates blocks of sequences. Used by one task at a time."""

    def __init__(self, database: Database, timeout_s: float, breaker: Breaker) -> None:
        self.reservations = Reservations()
        self._database = database
        self._timeout_s = timeout_s
        self._breaker = breaker
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._wanted = asyncio.Event()
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: abandoned queries
        self._given_up: set[asyncio.Task[Any]] = set()
        #: it was told that the ledger numbers by itself
        self._told = False

    @property
    def place(self) -> str:
        return self._database.place

    async def start(self) -> None:
        """Start connecting, and wait for the first attempt, so that the first events get their numbers there too."""
        self._wanted.set()
        self._task = asyncio.create_task(self._keep_connected(), name="sequence database")
        waiting = asyncio.create_task(self._tried.wait())
        # Wrong settings of the sequence database end it with the reason.
        done, _ = await asyncio.wait([waiting, self._task], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._task in done:
            self._task.result()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, *self._given_up, return_exceptions=True)
            self._task = None
        await _closed(self._connection)
        self._connection = None

    async def reserve(self, head: int, count: int) -> int | None:
        """The first of `count` sequences, all above the head; None: number from the head."""
        connection = self._connection
        if connection is None:
            self.reservations.remote = False
            self.reservations.spared += 1
            return None
        started = time.monotonic()
        try:
            last = await self._in_time(_reserved(connection, head, count))
            if not head + count <= last <= SEQUENCE_MAX:
                raise Unreachable(f"it returned {last}, which is not a valid sequence after {head}")
        except (psycopg.Error, Unreachable) as error:
            self._failed(error, time.monotonic() - started)
            return None
        self._succeeded(time.monotonic() - started)
        return last - count + 1

    async def _in_time(self, asked: Coroutine[Any, Any, int]) -> int:
        asking = asyncio.ensure_future(asked)
        await asyncio.wait([asking], timeout=self._timeout_s)
        if asking.done():
            return asking.result()
        # Not awaited: cancelling a query that hangs takes longer than a commit may. Sequences it still allocates are
        # lost.
        asking.cancel()
        self._given_up.add(asking)
        asking.add_done_callback(self._forget)
        raise Unreachable(f"it did not respond within {self._timeout_s * 1000:.0f} ms")

    def _forget(self, asked: asyncio.Task[Any]) -> None:
        self._given_up.discard(asked)
        if not asked.cancelled():
            asked.exception()

    def _succeeded(self, seconds: float) -> None:
        self._breaker.succeeded()
        self._count(seconds, remote=True)
        self.reservations.taken += 1
        if self._told:
            log.info("the sequence database at %s is back; it assigns the sequences again", self.place)
            self._told = False

    def _failed(self, error: Exception, seconds: float) -> None:
        self._count(seconds, remote=False)
        self.reservations.failed += 1
        self._note(error)
        # Its answer, whatever it is, must not reach the next commit.
        lost, self._connection = self._connection, None
        closing = asyncio.ensure_future(_closed_when_free(lost, self._given_up.copy()))
        self._given_up.add(closing)
        closing.add_done_callback(self._forget)
        self._wanted.set()

    def _count(self, seconds: float, *, remote: bool) -> None:
        counts = self.reservations
        counts.remote = remote
        counts.seconds += seconds
        counts.seconds_max = max(counts.seconds_max, seconds)

    def _note(self, error: Exception) -> None:
        self._breaker.failed()
        if not self._told:
            why = reason(error) if isinstance(error, psycopg.Error) else str(error)
            log.warning(
                "the sequence database at %s is unavailable; the ledger assigns the sequences itself: %s",
                self.place,
                why,
            )
            self._told = True

    async def _keep_connected(self) -> None:
        """Keep a connection whenever one is wanted and the breaker allows it."""
        while True:
            await self._wanted.wait()
            if (pause_s := self._breaker.pause_left_s) > 0:
                await asyncio.sleep(pause_s)
                continue
            try:
                self._connection = await self._connected()
                self._wanted.clear()
            except (psycopg.Error, TidelockError) as error:
                if isinstance(error, SettingsError) and not self._tried.is_set():
                    raise SettingsError(f"{_SETTING}: {error.message}", field=_SETTING) from None
                self._note(error)
                self._tried.set()
                await asyncio.sleep(_RETRY_S)
            self._tried.set()

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        connection = await self._database.connect(name="tidelock sequence")
        try:
            found = await (await connection.execute(QUERIES["find_sequence"])).fetchone()
            if found != (True,):
                await connection.execute(QUERIES["make_sequence"])
            await connection.execute(QUERIES["limit_session"], [f"{max(1, int(self._timeout_s * 1000))}ms"])
        except BaseException:
            # Closing meanwhile cancels this, and nobody else knows the connection yet.
            await _closed(connection)
            raise
        return connection


def last_number(database: Database) -> int | None:
    """The last value of the sequence; None: it has not been used yet. Raises Unreachable."""
    with database.connect_sync(name="tidelock status") as connection:
        try:
            found = connection.execute(QUERIES["find_sequence"]).fetchone()
            row = connection.execute(QUERIES["last_number"]).fetchone() if found == (True,) else None
        except psycopg.Error as error:
            raise Unreachable(f"the sequence cannot be read: {reason(error)}") from error
    return None if row is None else int(row[0])


async def _reserved(connection: psycopg.AsyncConnection[Any], head: int, count: int) -> int:
    cursor = psycopg.AsyncClientCursor(connection)
    await cursor.execute(QUERIES["reserve"], {"head": head, "count": count})
    cursor.nextset()
    row = await cursor.fetchone()
    assert row is not None, "a sequence that is set has a value"
    return int(row[0])


async def _closed_when_free(connection: psycopg.AsyncConnection[Any] | None, busy: set[asyncio.Task[Any]]) -> None:
    """Nobody else closes a connection on which an abandoned query is still running."""
    if busy:
        await asyncio.wait(busy)
    await _closed(connection)


async def _closed(connection: psycopg.AsyncConnection[Any] | None) -> None:
    if connection is not None:
        with suppress(psycopg.Error):
            await connection.close()
