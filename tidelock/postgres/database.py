"""The database the ledger lives in: a server by its URL, or the embedded one."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from enum import Enum, auto
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
# How long to retry while an existing embedded server starts, recovers or stops.
_PATIENCE_S = 15.0
_PAUSE_S = 0.1
# The first message of a client: version 3.0 of the protocol; and enough of the answer.
_PROTOCOL, _ANSWER_BYTES = 3 << 16, 4096
# SQLSTATEs of a server that stops, starts or recovers, or has too many connections: it takes more later.
_LATER = (b"57P", b"53300")
# How long a cancelled caller waits for its pending connection, to close it.
_FAREWELL_S = 1.0
# Connections closed later than that: the event loop alone would not keep the tasks.
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
        #: a login succeeded: the settings are right, and an outage may be temporary
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
        """With the password. The embedded server's may change when it is restarted: read it each time."""
        if self._server is not None:
            return self._server.url
        assert self._url is not None
        return self._url

    @property
    def embedded(self) -> bool:
        return self._server is not None

    @property
    def place(self) -> str:
        """Its address for people, without the password."""
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
                door = await asyncio.to_thread(self._look, error)
                if not retry.worthwhile(door):
                    raise self._unreachable(error, door) from None
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
                door = self._look(error)
                if not retry.worthwhile(door):
                    raise self._unreachable(error, door) from None
                retry.prepare()
        self._reached = True
        if (objection := _objection(connection.info)) is not None:
            connection.close()
            raise SettingsError(f"{objection} ({self.place})", field="database_url")
        return connection

    def close(self) -> None:
        """Leave the embedded server; the last user stops it. Connections are closed by their owners."""
        if self._server is not None:
            self._server.release()

    def _parameters(self, name: str) -> dict[str, Any]:
        timeout = {"connect_timeout": max(1, round(self._connect_timeout_s))}
        return {**_TRANSPORT, **timeout, **_parse(self.url), "application_name": name, "client_encoding": "UTF8"}

    def _look(self, error: psycopg.OperationalError) -> _Door:
        """What is there, after it let nobody in."""
        if isinstance(error, psycopg.errors.ConnectionTimeout):
            return _Door.SHUT
        return _knock(_parse(self.url), self._connect_timeout_s)

    def _unreachable(self, error: psycopg.OperationalError, door: _Door) -> Unreachable:
        reason = " ".join(str(error).split()) or "it does not respond"
        password = _parse(self.url).get("password")
        if password:
            reason = reason.replace(str(password), "***")
        # A server that was never reached and refuses at once is more often a wrong address than an outage.
        away = door is _Door.BUSY or self._reached
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
    """Connect. A caller cancelled meanwhile waits a moment for the connection, and closes it.

    A connection abandoned during its handshake stays open until garbage is collected: the server waits a minute for the
    rest of the handshake, and nobody can drop the database before.
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


class _Door(Enum):
    """What is found where a server should be."""

    #: nobody
    SHUT = auto()
    #: a server that starts, recovers or stops, has too many connections, or hangs up in the midst of a crash
    BUSY = auto()
    #: a server that takes connections: it refused this login, or lost it on the way
    OPEN = auto()


class _Retry:
    """When to try to connect once more: to the embedded server, which is ours to bring back, for a while; to one that
    takes connections once, in case the first was lost on its way. What fails twice there was refused."""

    def __init__(self, server: EmbeddedPostgres | None) -> None:
        self._server = server
        self._attempts = 0
        self._deadline = time.monotonic() + _PATIENCE_S

    def worthwhile(self, door: _Door) -> bool:
        self._attempts += 1
        if self._server is None:
            return self._attempts == 1 and door is _Door.OPEN
        return self._attempts == 1 or time.monotonic() < self._deadline

    def prepare(self) -> None:
        if self._server is None:
            return
        if self._attempts > 1:
            time.sleep(_PAUSE_S)
        self._server.ensure()


def _knock(known: Mapping[str, Any], timeout_s: float) -> _Door:
    """Begin a session as a client does, and look at the SQLSTATE of the answer: libpq gives none of a login that fails,
    and the words of its error are in the server's language. (Its `PQping` keeps every thread waiting.)"""
    host, port = str(known.get("hostaddr") or known.get("host") or "localhost"), str(known.get("port") or 5432)
    user = str(known.get("user") or "postgres")
    named = f"user\0{user}\0database\0{known.get('dbname') or user}\0\0".encode()
    try:
        with _connected(host, port, timeout_s) as line:
            try:
                line.sendall(struct.pack("!ii", 8 + len(named), _PROTOCOL) + named)
                answer = line.recv(_ANSWER_BYTES)
            except OSError:
                return _Door.BUSY
    except (OSError, ValueError):
        # Several hosts in one URL have no one address.
        return _Door.SHUT
    states = [each[1:] for each in answer[5:].split(b"\0") if each[:1] == b"C"] if answer[:1] == b"E" else []
    return _Door.BUSY if not answer or any(state.startswith(_LATER) for state in states) else _Door.OPEN


def _connected(host: str, port: str, timeout_s: float) -> socket.socket:
    if not host.startswith("/"):
        return socket.create_connection((host, int(port)), timeout_s)
    local = socket.socket(socket.AF_UNIX)
    local.settimeout(timeout_s)
    try:
        local.connect(f"{host}/.s.PGSQL.{port}")
    except OSError:
        local.close()
        raise
    return local


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
