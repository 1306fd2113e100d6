"""The database the ledger lives in: a server by its URL, or the embedded one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow

from tidelock.errors import SettingsError, Unreachable
from tidelock.postgres.embedded import EmbeddedPostgres
from tidelock.postgres.reconnect import Away, NoDatabase, Patience

_VERSION_MIN = 15
# How long to try again while an embedded server that is there starts, recovers or stops.
_PATIENCE_S = 15.0
_PAUSE_S = 0.1
# How long who is cancelled while it connects waits for the connection to be there, to close it.
_FAREWELL_S = 1.0
# What is being closed later than that: the loop alone would not keep it.
_closing: set[asyncio.Task[None]] = set()
# Dead peers are found in about a minute: a lost network must not look like a slow query for hours.
_TRANSPORT = {
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}


class Database:
    """Gives connections, and keeps the embedded server running while it is open."""

    def __init__(
        self, source: str | EmbeddedPostgres, connect_timeout_s: float = 5, outage_patience_s: float = 15
    ) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._outage_patience_s = outage_patience_s
        #: somebody was let in: the settings are right, and what is away now may come back
        self._reached = False
        self._url = source if isinstance(source, str) else None
        self._server = source if isinstance(source, EmbeddedPostgres) else None

    @classmethod
    def open(
        cls,
        url: str | None,
        data: Path,
        binaries: Path | None,
        config: Mapping[str, str],
        connect_timeout_s: float = 5,
        outage_patience_s: float = 15,
    ) -> Database:
        """The server that `url` names, else the embedded one in `data`, which runs when this returns."""
        if url is not None:
            _parse(url)
            return cls(url, connect_timeout_s, outage_patience_s)
        server = EmbeddedPostgres(data, binaries, config)
        server.ensure()
        return cls(server, connect_timeout_s, outage_patience_s)

    @property
    def url(self) -> str:
        """With the password. Of the embedded server it may change when that is started anew: ask each time."""
        if self._server is not None:
            return self._server.url
        assert self._url is not None
        return self._url

    @property
    def embedded(self) -> bool:
        return self._server is not None

    @property
    def place(self) -> str:
        """Where it is, for people: without the password."""
        known = _parse(self.url)
        host = known.get("host") or known.get("hostaddr") or "localhost"
        return f"{host}:{known.get('port') or 5432}/{known.get('dbname') or known.get('user') or ''}"

    @property
    def patience(self) -> Patience:
        """For steps that should outlive an outage."""
        return Patience(self._outage_patience_s)

    async def connect(self, *, name: str = "tidelock", autocommit: bool = True) -> psycopg.AsyncConnection[TupleRow]:
        retry = _Retry(self._server)
        while True:
            try:
                connection = await _to_its_end(
                    psycopg.AsyncConnection.connect(**self._parameters(name), autocommit=autocommit)
                )
                break
            except psycopg.OperationalError as error:
                if not retry.worthwhile(error):
                    raise self._unreachable(error) from None
                await asyncio.to_thread(retry.prepare)
        self._reached = True
        if (objection := _objection(connection.info)) is not None:
            await connection.close()
            raise SettingsError(f"{objection} ({self.place})", field="database_url")
        return connection

    def connect_sync(self, *, name: str = "tidelock", autocommit: bool = True) -> psycopg.Connection[TupleRow]:
        retry = _Retry(self._server)
        while True:
            try:
                connection = psycopg.Connection.connect(**self._parameters(name), autocommit=autocommit)
                break
            except psycopg.OperationalError as error:
                if not retry.worthwhile(error):
                    raise self._unreachable(error) from None
                retry.prepare()
        self._reached = True
        if (objection := _objection(connection.info)) is not None:
            connection.close()
            raise SettingsError(f"{objection} ({self.place})", field="database_url")
        return connection

    def close(self) -> None:
        """Leave the embedded server; the last to leave stops it. Connections are closed by who opened them."""
        if self._server is not None:
            self._server.release()

    def _parameters(self, name: str) -> dict[str, Any]:
        timeout = {"connect_timeout": max(1, round(self._connect_timeout_s))}
        return {**_TRANSPORT, **timeout, **_parse(self.url), "application_name": name, "client_encoding": "UTF8"}

    def _unreachable(self, error: psycopg.OperationalError) -> Unreachable:
        reason = " ".join(str(error).split()) or "it does not respond"
        password = _parse(self.url).get("password")
        if password:
            reason = reason.replace(str(password), "***")
        # One that was never reached and refuses at once is a wrong address more often than an outage.
        away = _dropped(error) or (self._reached and _passing(error))
        return (Away if away else NoDatabase)(f"Cannot connect to Postgres at {self.place}: {reason}")

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Database({self.place}{', embedded' if self.embedded else ''})"


async def _to_its_end(
    connecting: Coroutine[Any, Any, psycopg.AsyncConnection[TupleRow]],
) -> psycopg.AsyncConnection[TupleRow]:
    """Connect. Whoever is cancelled meanwhile waits for a moment until there is a connection, and closes it.

    One that is given up amid its handshake stays open until somebody collects garbage. The server waits a minute for
    the rest of the handshake, and nobody can drop a database before.
    """
    task = asyncio.create_task(connecting)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        closing = asyncio.create_task(_close_connected(task))
        _closing.add(closing)
        closing.add_done_callback(_closing.discard)
        await asyncio.wait([closing], timeout=_FAREWELL_S)
        raise


async def _close_connected(task: asyncio.Task[psycopg.AsyncConnection[TupleRow]]) -> None:
    with suppress(psycopg.Error):
        await (await task).close()


class _Retry:
    """When to try to connect once more: only to the embedded server, which is ours to bring back.

    Once in any case, after seeing that it runs; then for a while, unless it refuses us for a reason of its own.
    """

    def __init__(self, server: EmbeddedPostgres | None) -> None:
        self._server = server
        self._attempts = 0
        self._deadline = time.monotonic() + _PATIENCE_S

    def worthwhile(self, error: psycopg.OperationalError) -> bool:
        if self._server is None:
            return False
        self._attempts += 1
        return self._attempts == 1 or (_passing(error) and time.monotonic() < self._deadline)

    def prepare(self) -> None:
        assert self._server is not None
        if self._attempts > 1:
            time.sleep(_PAUSE_S)
        self._server.ensure()


def _passing(error: psycopg.OperationalError) -> bool:
    """Whether a server that was reached before may take a connection later; it has not refused this login."""
    return _dropped(error) or "FATAL" not in str(error) or "too many" in str(error)


def _dropped(error: psycopg.OperationalError) -> bool:
    """Whether a server hung up on us while we connected.

    Starting, recovering and stopping servers say so; one in the midst of a crash just hangs up.
    """
    said = str(error)
    return any(text in said for text in ("the database system is", "terminating connection", "closed the connection"))


def _parse(url: str) -> dict[str, Any]:
    try:
        return dict(conninfo_to_dict(url))
    except psycopg.ProgrammingError:
        # The vendor's message quotes the text, and with it the password.
        raise SettingsError(
            "The database URL is not valid; it should look like postgresql://user:password@host:5432/name, with "
            "special "
            "characters in the password percent-encoded.",
            field="database_url",
        ) from None


def _objection(info: psycopg.ConnectionInfo) -> str | None:
    """Why this server cannot hold a ledger. Read from what the server sent at connect: it costs nothing."""
    if info.server_version < _VERSION_MIN * 10_000:
        return f"This server runs Postgres {info.server_version // 10_000}; Tidelock needs {_VERSION_MIN} or newer."
    encoding = info.parameter_status("server_encoding")
    if encoding != "UTF8":
        return f"This database is encoded in {encoding}; Tidelock needs UTF8: CREATE DATABASE ... ENCODING 'UTF8'."
    return None
