"""Threads that read: a bounded number of them, each with a connection of its own to the database.

Slow work (waiting, decompressing, comparing whole columns) happens there while the event loop continues.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from tidelock.errors import Unreachable
from tidelock.postgres.database import Database

T = TypeVar("T")
Connection = psycopg.Connection[Any]

#: how long to wait before asking an unavailable database again, at first and at most
PAUSE_S, PAUSE_MAX_S = 0.1, 2.0

_SESSION = "SET default_transaction_read_only = on; SET statement_timeout = '30s'"
_CANCEL_S = 0.1


class Readers:
    """Runs work on a bounded number of threads. Connections are kept until they are unused for a while."""

    def __init__(self, database: Database, *, size_max: int, name: str) -> None:
        self._database = database
        self._name = name
        self._threads = ThreadPoolExecutor(size_max, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._resting = self._closed = False

    async def run(self, work: Callable[[Connection], T]) -> T:
        """The result of the work, done by the next free thread. Raises Unreachable."""
        self._resting = False
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._work, work)

    async def insist(self, work: Callable[[Connection], T]) -> T:
        """The same, however long the database is unavailable."""
        pause_s = PAUSE_S
        while True:
            try:
                return await self.run(work)
            except Unreachable:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def rest(self) -> None:
        """Close the connections, which are unused now."""
        self._resting = True
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    async def close(self) -> None:
        """Cancel running work."""
        self._closed = True
        stopping = asyncio.create_task(asyncio.to_thread(self._threads.shutdown, cancel_futures=True))
        while not stopping.done():
            with self._lock:
                busy = tuple(self._busy)
            for connection in busy:
                with suppress(psycopg.Error):
                    await asyncio.to_thread(connection.cancel_safe, timeout=_CANCEL_S)
            # A query that had not begun yet was not cancelled.
            await asyncio.wait([stopping], timeout=_CANCEL_S)
        await self.rest()

    def _work(self, work: Callable[[Connection], T]) -> T:
        with self._lock:
            idle = self._idle.pop() if self._idle else None
        connection = idle or self._connected()
        with self._lock:
            self._busy.add(connection)
        try:
            return work(connection)
        except psycopg.Error as error:
            raise _translated(error) from None
        finally:
            self._give_back(connection)

    def _connected(self) -> Connection:
        connection = self._database.connect_sync(name=self._name)
        try:
            connection.execute(_SESSION)
        except psycopg.Error as error:
            connection.close()
            raise _translated(error) from None
        return connection

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            self._busy.discard(connection)
            fit = not connection.closed and connection.info.transaction_status is TransactionStatus.IDLE
            if fit and not self._resting and not self._closed:
                self._idle.append(connection)
                return
        connection.close()


def _translated(error: psycopg.Error) -> Exception:
    """An error from the database is our bug and stays as it is; everything else is an outage."""
    reason = error.diag.message_primary or " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return Unreachable(f"the database does not respond: {reason}")
    return error
