"""Connections: brought back with the embedded server, refused in words for people, never with the password."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from tests.budgets import HANG_S
from tests.recording import rows
from tidelock.errors import SettingsError, Unreachable
from tidelock.postgres import postmaster
from tidelock.postgres.database import Database
from tidelock.postgres.embedded import EmbeddedPostgres
from tidelock.postgres.reconnect import Away, NoDatabase

SECRET = "s3cr3t-w0rd"


def _open(url: str) -> Database:
    return Database.open(url, Path("unused"), None, {})


async def test_a_connection_is_named_and_commits_by_itself(database: Database) -> None:
    async with await database.connect(name="tidelock sequencer") as connection:
        cursor = await connection.execute("SELECT current_setting('application_name')")
        assert await cursor.fetchone() == ("tidelock sequencer",)
        assert connection.autocommit


async def test_a_client_that_is_cancelled_while_it_connects_leaves_no_session(database: Database) -> None:
    for step in range(40):
        connecting = asyncio.create_task(database.connect(name="given up"))
        # At many places of the handshake.
        await asyncio.sleep(step * 0.0003)
        connecting.cancel()
        (found,) = await asyncio.gather(connecting, return_exceptions=True)
        if isinstance(found, psycopg.AsyncConnection):
            await found.close()
    left = """SELECT state FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
        AND (application_name = 'given up' OR state = 'starting')"""
    async with asyncio.timeout(HANG_S / 2):
        while await rows(database, left):  # noqa: ASYNC110  (the server ends them when it reads that they are closed)
            await asyncio.sleep(0.01)


async def test_the_embedded_server_is_brought_back_on_connect(tmp_path: Path) -> None:
    with Database.open(None, tmp_path / "data", None, {}) as database:
        assert database.embedded
        found = postmaster.find(tmp_path / "data" / "postgres")
        assert found is not None
        os.kill(found.pid, signal.SIGKILL)
        async with await database.connect() as connection:
            # A backend that dies takes all others with it, and the server recovers for a moment.
            os.kill(connection.info.backend_pid, signal.SIGKILL)
        with database.connect_sync() as other:
            assert other.execute("SELECT 1").fetchone() == (1,)
    assert postmaster.find(tmp_path / "data" / "postgres") is None


@pytest.mark.parametrize("where", ["127.0.0.1:1/x", "nowhere.invalid/x", "/x?host=/nowhere"])
async def test_a_server_that_is_not_there_is_unreachable_and_the_password_is_not_shown(where: str) -> None:
    database = _open(f"postgresql://u:{SECRET}@{where}")
    with pytest.raises(Unreachable, match="Cannot connect to Postgres at") as unreachable:
        await database.connect()
    assert SECRET not in str(unreachable.value)
    assert SECRET not in repr(database)
    with pytest.raises(Unreachable, match="Cannot connect to Postgres at"):
        database.connect_sync()


def test_why_nobody_is_let_in_is_found_out_without_reading_words(
    postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server tells it in its own language, and libpq gives no SQLSTATE of a login that fails."""

    def refused(**_: object) -> psycopg.Connection[object]:
        raise psycopg.OperationalError("FATAL: le système de bases de données s'arrête")

    def kind_of(url: str) -> type[Unreachable]:
        with monkeypatch.context() as patch:
            patch.setattr(psycopg.Connection, "connect", refused)
            with pytest.raises(Unreachable) as unreachable:
                _open(url).connect_sync()
        return type(unreachable.value)

    assert kind_of(postgres.url) is NoDatabase, "it takes connections, but not this one"
    assert kind_of("postgresql://u@127.0.0.1:1/x") is NoDatabase, "nobody is there: a wrong address, most likely"
    with socket.socket() as hanging_up:
        hanging_up.bind(("127.0.0.1", 0))
        hanging_up.listen()
        threading.Thread(target=_hang_up, args=(hanging_up,), daemon=True).start()
        assert kind_of(f"postgresql://u@127.0.0.1:{hanging_up.getsockname()[1]}/x") is Away, "it may be back"


def _hang_up(listening: socket.socket) -> None:
    with suppress(OSError):
        while True:
            listening.accept()[0].close()


async def test_a_wrong_password_is_unreachable_and_not_shown(postgres: EmbeddedPostgres) -> None:
    right = postgres.url.split(":")[2].split("@")[0]
    with pytest.raises(Unreachable, match="password authentication failed") as unreachable:
        await _open(postgres.url.replace(right, SECRET)).connect()
    assert SECRET not in str(unreachable.value)


@pytest.mark.parametrize(
    "url", [f"postgres://u:{SECRET}@[::1/x", f"mysql://u:{SECRET}@h/x", f"postgresql://u:{SECRET}%@h"]
)
def test_a_url_that_cannot_be_read_is_a_settings_error_without_the_password(url: str) -> None:
    with pytest.raises(SettingsError, match="postgresql://user:password@host") as refused:
        _open(url)
    assert SECRET not in str(refused.value)


async def test_a_database_in_another_encoding_is_refused(postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE latin ENCODING LATIN1 LOCALE 'C' LOCALE_PROVIDER libc TEMPLATE template0")
    with pytest.raises(SettingsError, match="encoded in LATIN1; Tidelock needs UTF8"):
        await _open(postgres.url.rsplit("/", 1)[0] + "/latin").connect()


async def test_a_server_that_is_too_old_is_refused(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelock.postgres.database._VERSION_MIN", 99)
    with pytest.raises(SettingsError, match=r"runs Postgres \d+; Tidelock needs 99 or newer"):
        await database.connect()
