"""`postmaster.pid`: one that is empty or damaged neither stops a start nor lets two servers onto one directory."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tidelock.errors import Unreachable
from tidelock.postgres import postmaster
from tidelock.postgres.embedded import EmbeddedPostgres
from tidelock.postgres.filelocks import FileLock


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory whose server is stopped, the same for all: making one takes a second."""
    made = tmp_path_factory.mktemp("damaged") / "data"
    server = EmbeddedPostgres(made, None, {"fsync": "off"})
    server.ensure()
    server.release()
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def server(data: Path) -> Iterator[EmbeddedPostgres]:
    made = EmbeddedPostgres(data, None, {"fsync": "off"})
    yield made
    made.release()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00garbage\n", b"99999999999999\n"], ids=repr)
def test_an_empty_or_damaged_file_is_no_reason_not_to_start(
    data: Path, server: EmbeddedPostgres, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (data / "postgres" / "postmaster.pid").write_bytes(content)
    with psycopg.connect(server.ensure()) as connection:
        assert connection.execute("SELECT 1").fetchall() == [(1,)]
    assert "postmaster.pid was empty or damaged, and no Postgres runs on that directory" in caplog.text


def test_a_damaged_file_of_a_server_that_lives_is_left_alone_and_people_are_told_what_to_do(
    data: Path, server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that somebody else started: it does not hold our lock."""
    server.ensure()
    file = data / "postgres" / "postmaster.pid"
    right, found = file.read_bytes(), postmaster.find(data / "postgres")
    assert found is not None
    file.write_bytes(b"")
    try:
        monkeypatch.setattr(FileLock, "take", lambda *_, **__: True)
        told = f"postmaster.pid is damaged, and process {found.pid} is a Postgres.*kill -INT {found.pid}"
        with pytest.raises(Unreachable, match="another one is running on its directory") as error:
            EmbeddedPostgres(data, None, {}).ensure()
        assert re.search(told, str(error.value.detail))
        assert file.read_bytes() == b""
    finally:
        monkeypatch.undo()
        file.write_bytes(right)
