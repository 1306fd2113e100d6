"""Reconnecting: what a command does while the database, reached before, is unavailable, and what it reports at the end.

Every long-running command runs each of its steps through a `Patience`, most of them over a `Steady` connection: an
interrupted step is repeated from its beginning. The server may have executed it anyway, with the answer lost, so steps
must be repeatable.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg

from tidelock.errors import SettingsError, Unreachable

if TYPE_CHECKING:
    from tidelock.postgres.database import Database

T = TypeVar("T")

#: how long to wait before a step is done again, at first and at most
_PAUSE_S, _PAUSE_MAX_S = 0.05, 2.0
# SQLSTATEs of a connection that is lost or cannot be had now: exceptions of the connection, a server that is stopped,
# starts or recovers, a session that was idle for too long, too many connections.
_LOST = ("08", "57P", "25P03", "53300")
# These name files of the database, which mean nothing to clients. The log has the full message.
_TOLD: dict[type[psycopg.Error], str] = {
    psycopg.errors.DiskFull: "the disk of the database is full; free some space",
    psycopg.errors.IoError: "the database cannot read or write its files; see its log",
    psycopg.errors.DataCorrupted: "the database found a damaged file; see its log",
    psycopg.errors.IndexCorrupted: "the database found a damaged file; see its log",
}


class NoDatabase(Unreachable):
    """The database does not answer."""


class Away(NoDatabase):
    """The database connection was lost, or it is not up yet; it may be back in a moment."""


@contextmanager
def database_errors(doing: str) -> Iterator[None]:
    """Translate what the driver raises while `doing` something into the project's own error."""
    try:
        yield
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn) as error:
        raise Unreachable(f"{doing}: this database has no ledger; create one with `tidelock migrate`") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise SettingsError(
            f"{doing}: the database user may not do this ({reason(error)}); it must own the schema",
            field="database_url",
        ) from error
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        kind = Away if lost(error) else NoDatabase
        raise kind(f"{doing}: the database connection was lost ({reason(error)}); try again") from error


def reason(error: psycopg.Error) -> str:
    """The database's message in one line, for people who do not know its internals."""
    for kind, told in _TOLD.items():
        if isinstance(error, kind):
            return told
    return error.diag.message_primary or " ".join(str(error).split()) or type(error).__name__


def in_words(error: BaseException) -> str:
    """Any error in one line: the database's message, or the error's own."""
    if isinstance(error, psycopg.Error):
        return reason(error)
    return " ".join(str(error).split()) or type(error).__name__


def lost(error: BaseException) -> bool:
    """Whether the connection was lost or cannot be had now, so that the same step may work on another one."""
    if isinstance(error, psycopg.OperationalError):
        return error.sqlstate is None or error.sqlstate.startswith(_LOST)
    return isinstance(error, psycopg.InterfaceError | Away)


class Patience:
    """Repeats a step while outages interrupt it, up to `seconds` of waiting for each step.

    `again` says of an error whether the step may work later. Once `stop` is set, it does not wait any more.
    """

    def __init__(
        self,
        seconds: float,
        *,
        again: Callable[[BaseException], bool] = lost,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.seconds = seconds
        self._again = again
        self._stop = stop

    async def insist(self, step: Callable[[], Awaitable[T]]) -> T:
        """The result of the step. Raises its last error when patience runs out."""
        pauses = self.pauses()
        while True:
            try:
                return await step()
            except Exception as error:
                if not self._again(error) or self._stop() or (pause_s := next(pauses, None)) is None:
                    raise
            await asyncio.sleep(pause_s)

    def insist_sync(self, step: Callable[[], T]) -> T:
        """The same for a step that blocks."""
        pauses = self.pauses()
        while True:
            try:
                return step()
            except Exception as error:
                if not self._again(error) or self._stop() or (pause_s := next(pauses, None)) is None:
                    raise
            time.sleep(pause_s)

    def read_on(self, read: Callable[[T | None], Iterator[T]]) -> Iterator[T]:
        """Everything returned by `read`. After an outage it is called with the last item returned."""
        last: T | None = None
        pauses = self.pauses()
        while True:
            try:
                for item in read(last):
                    last = item
                    yield item
                    pauses = self.pauses()
                return
            except Exception as error:
                if not self._again(error) or self._stop() or (pause_s := next(pauses, None)) is None:
                    raise
            time.sleep(pause_s)

    def pauses(self) -> Iterator[float]:
        """How long to wait each time, until it was `seconds` together."""
        pause_s, waited_s = _PAUSE_S, 0.0
        while waited_s < self.seconds:
            yield pause_s
            waited_s += pause_s
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)


class Steady:
    """A connection that is reopened when lost. `session` are statements run on each new one."""

    def __init__(self, database: Database, name: str, *, session: str | None = None, patience: Patience) -> None:
        self._database = database
        self._name = name
        self._session = session
        self._patience = patience
        self._connection: psycopg.AsyncConnection[Any] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(self, step: Callable[[psycopg.AsyncConnection[Any]], Awaitable[T]]) -> T:
        """The result of the step, over a connection that lasts until its end."""
        return await self._patience.insist(lambda: self._run(step))

    async def _run(self, step: Callable[[psycopg.AsyncConnection[Any]], Awaitable[T]]) -> T:
        try:
            if self._connection is None:
                self._connection = await self._database.connect(name=self._name)
                if self._session is not None:
                    await self._connection.execute(self._session.encode())
            return await step(self._connection)
        except Exception as error:
            if lost(error):
                await self.close()
            raise

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                await connection.close()
