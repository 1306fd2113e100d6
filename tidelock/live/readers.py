"""Readers: a bounded number of threads that read from the database in Arrow, each with a connection of its own.

What takes long there, waiting, decompressing, comparing whole columns, is done without the interpreter, so that the
event loop goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import adbc_driver_manager as adbc
import pyarrow as pa
from adbc_driver_postgresql import dbapi

from tidelock.errors import TidelockError, Unreachable
from tidelock.ledger.database import Database

T = TypeVar("T")

#: how long to wait before asking again a database that is away, at first and at most
PAUSE_S, PAUSE_MAX_S = 0.1, 2.0

_STATEMENT_S = 30
#: SQLSTATEs of what no waiting mends: data, constraints, syntax, limits
_OBJECTIONS = ("22", "23", "42", "54")
_CANCEL_S = 0.1
_CANCELLED = "57014"
_NO_SUCH_TABLE = "42P01"


class TookTooLong(TidelockError):
    """The database was told to stop after a while."""


class NoSuchTable(TidelockError):
    """A table is not there: it was not made yet, or is there no more."""


class Reader:
    """One connection, used by one thread at a time. After a failure it is of no use any more."""

    def __init__(self, database: Database, name: str) -> None:
        with _translated():
            self._connection: Any = dbapi.connect(database.conninfo(name), autocommit=True)
        try:
            self.execute("SET default_transaction_read_only = on")
            self.execute(f"SET statement_timeout = '{_STATEMENT_S}s'")
        except BaseException:
            self.close()
            raise

    def execute(self, sql: str) -> None:
        with _translated(), self._connection.cursor() as cursor:
            cursor.execute(sql)

    def query(self, sql: str, *, bytes_max: int | None = None) -> pa.Table | None:
        """What a query answers; None: it is more than so many bytes."""
        with _translated(), self._connection.cursor() as cursor:
            cursor.execute(sql)
            with cursor.fetch_record_batch() as found:
                batches, size = [], 0
                for batch in found:
                    batches.append(batch)
                    size += batch.nbytes
                    if bytes_max is not None and size > bytes_max:
                        return None
                return pa.Table.from_batches(batches, found.schema)

    def rows(self, sql: str) -> pa.Table:
        """What a query answers that was bounded by itself."""
        found = self.query(sql)
        assert found is not None
        return found

    def cancel(self) -> None:
        """Let a query end that another thread waits for."""
        with suppress(adbc.Error):
            self._connection.adbc_cancel()

    def close(self) -> None:
        # One that is lost cannot say goodbye.
        with suppress(adbc.Error):
            self._connection.close()


class Readers:
    """Gives work to at most so many readers. Connections are kept until they are not needed for a while."""

    def __init__(self, database: Database, *, size_max: int, name: str) -> None:
        self._database = database
        self._name = name
        self._threads = ThreadPoolExecutor(size_max, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._idle: list[Reader] = []
        self._busy: set[Reader] = set()
        self._resting = self._closed = False

    async def run(self, work: Callable[[Reader], T]) -> T:
        """What the work gives, done by a thread when one is free. Raises Unreachable."""
        self._resting = False
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._work, work)

    async def insist(self, work: Callable[[Reader], T]) -> T:
        """The same, however long the database is away."""
        pause_s = PAUSE_S
        while True:
            try:
                return await self.run(work)
            except Unreachable:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def rest(self) -> None:
        """Close the connections: nobody needs them now."""
        self._resting = True
        with self._lock:
            idle, self._idle = self._idle, []
        for reader in idle:
            await asyncio.to_thread(reader.close)

    async def close(self) -> None:
        """End what is under way."""
        self._closed = True
        stopping = asyncio.create_task(asyncio.to_thread(self._threads.shutdown, cancel_futures=True))
        while not stopping.done():
            with self._lock:
                for reader in self._busy:
                    reader.cancel()
            # A query that had not begun yet was not cancelled.
            await asyncio.wait([stopping], timeout=_CANCEL_S)
        await self.rest()

    def _work(self, work: Callable[[Reader], T]) -> T:
        reader = self._taken()
        fit = False
        try:
            found = work(reader)
            fit = True
            return found
        finally:
            with self._lock:
                self._busy.discard(reader)
                kept = fit and not self._resting and not self._closed
                if kept:
                    self._idle.append(reader)
            if not kept:
                reader.close()

    def _taken(self) -> Reader:
        with self._lock:
            reader = self._idle.pop() if self._idle else None
        reader = reader or Reader(self._database, self._name)
        with self._lock:
            self._busy.add(reader)
        return reader


@contextmanager
def _translated() -> Iterator[None]:
    """What the database objects to is our mistake and stays what it is; everything else is an outage."""
    try:
        yield
    except adbc.Error as error:
        state = error.sqlstate or ""
        told = " ".join(str(error).split())
        if state == _CANCELLED:
            raise TookTooLong(f"Postgres gave up: {told}") from None
        if state == _NO_SUCH_TABLE:
            raise NoSuchTable(told) from None
        if state.startswith(_OBJECTIONS):
            raise
        raise Unreachable(f"Postgres does not answer: {told}") from None
