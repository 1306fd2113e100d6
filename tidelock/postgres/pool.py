"""Reading for many at a time: a bounded pool of connections that outlives restarts of the server, and single flight."""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from tidelock.errors import RequestError, TidelockError, Unreachable
from tidelock.postgres.database import Database
from tidelock.postgres.reconnect import reason

T = TypeVar("T")

# A reader that would wait longer than this for a connection is better told to retry.
_WAIT_S = 10.0

# After a failure to connect, all requests fail at once for this long, instead of each trying by itself.
_PAUSE_S = 0.25
_ANSWER_S = 3.0
_SESSION = "SET default_transaction_read_only = on; SET statement_timeout = '30s'"


class Connections:
    """Lends read-only connections, at most `size_max` at a time. Vendor errors inside become Tidelock's."""

    def __init__(self, database: Database, *, size_max: int, name: str = "tidelock reads") -> None:
        self._database = database
        self._name = name
        self._free = asyncio.Semaphore(size_max)
        self._idle: list[psycopg.AsyncConnection[Any]] = []
        self._closed = False
        self._away: Unreachable | None = None
        self._away_until = 0.0
        self._given_up: set[asyncio.Future[Any]] = set()

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """A connection for the duration of the block. Raises Unreachable, or RequestError for invalid data."""
        try:
            async with asyncio.timeout(_WAIT_S):
                await self._free.acquire()
        except TimeoutError:
            raise Unreachable("all connections to the database are in use; retry later") from None
        try:
            connection = await self._idle_or_new()
            try:
                yield connection
            except psycopg.Error as error:
                raise _translated(error) from error
            finally:
                await self._give_back(connection)
        finally:
            self._free.release()

    async def ask(self, question: Callable[[psycopg.AsyncConnection[Any]], Awaitable[T]]) -> T:
        """The answer to a short query. If the database hangs, it raises Unreachable in time."""
        asking = asyncio.ensure_future(self._ask(question))
        try:
            await asyncio.wait([asking], timeout=_ANSWER_S)
            if asking.done():
                return asking.result()
        finally:
            if not asking.done():
                # Not awaited: cancelling a hanging query takes longer than anybody should wait.
                asking.cancel()
                self._given_up.add(asking)
                asking.add_done_callback(self._forget)
        raise Unreachable("the database does not respond in time")

    async def _ask(self, question: Callable[[psycopg.AsyncConnection[Any]], Awaitable[T]]) -> T:
        async with self.lend() as connection:
            return await question(connection)

    def _forget(self, asked: asyncio.Future[Any]) -> None:
        self._given_up.discard(asked)
        if not asked.cancelled():
            asked.exception()

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*self._given_up, return_exceptions=True)
        while self._idle:
            await self._idle.pop().close()

    async def _idle_or_new(self) -> psycopg.AsyncConnection[Any]:
        while self._idle:
            connection = self._idle.pop()
            if _quiet(connection):
                return connection
            await _drop(connection)
        if self._away is not None and time.monotonic() < self._away_until:
            raise self._away
        try:
            connection = await self._database.connect(name=self._name)
        except Unreachable as error:
            self._away, self._away_until = error, time.monotonic() + _PAUSE_S
            raise
        try:
            await connection.execute(_SESSION)
        except BaseException as error:
            # The requester may have disconnected, too.
            await _drop(connection)
            if isinstance(error, psycopg.Error):
                raise _translated(error) from error
            raise
        return connection

    async def _give_back(self, connection: psycopg.AsyncConnection[Any]) -> None:
        if self._closed or connection.closed or connection.info.transaction_status is not TransactionStatus.IDLE:
            await _drop(connection)
        else:
            self._idle.append(connection)


def _quiet(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Whether an idle connection is still good: the only message to an idle client is a disconnect."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


async def _drop(connection: psycopg.AsyncConnection[Any]) -> None:
    with suppress(psycopg.Error):
        await connection.close()


def _translated(error: psycopg.Error) -> TidelockError:
    if isinstance(error, psycopg.errors.QueryCanceled):
        return Unreachable("reading took too long; narrow the request to a smaller part of the ledger")
    if isinstance(error, psycopg.DataError):
        return RequestError(f"the ledger cannot answer this query: {reason(error)}")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return Unreachable(f"the ledger cannot be read: {reason(error)}")
    raise error


class Flight(Generic[T]):
    """Running work that several callers wait for: one that leaves does not cancel it for the others."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.task = asyncio.create_task(work)
        # Seen here even if nobody waits any more; otherwise asyncio complains of its error.
        self.task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def result(self) -> T:
        """Waits for it. May be asked again, also after a wait that was cancelled."""
        return await asyncio.shield(self.task)


class SingleFlight(Generic[T]):
    """A question that many ask at a time is put to the database once for all of them.

    Each gets an answer that was looked up after it asked; all who wait for it get the same one.

    So a thousand clients that come back at once put the question twice: once for who came first, and once for the rest.
    """

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._running: Flight[T] | None = None
        self._next: Flight[T] | None = None

    async def __call__(self) -> T:
        if self._next is None:
            self._next = Flight(self._look(None if self._running is None else self._running.task))
        return await self._next.result()

    async def _look(self, running: asyncio.Task[T] | None) -> T:
        waited = running is not None and not running.done()
        if running is not None and waited:
            await asyncio.wait([running])
        # Who asks from here on may want to know of what happens from here on.
        self._running, self._next = self._next, None
        if running is not None and waited and (error := running.exception()) is not None:
            # It was away a moment ago: waiting for as long again would be too long.
            raise error
        return await self._ask()
