"""The embedded Postgres: shared, found again, and brought back, whatever was killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tidelock.errors import SettingsError, Unreachable
from tidelock.postgres import embedded as launcher
from tidelock.postgres import postmaster
from tidelock.postgres.cluster import explain
from tidelock.postgres.embedded import EmbeddedPostgres, find_binaries
from tidelock.postgres.ports import free_port

NOBODY = 65534

# A user of the server in another process: prints the postmaster, then stays until its input ends.
USER = """
import sys
from pathlib import Path
from tidelock.errors import TidelockError
from tidelock.postgres import postmaster
from tidelock.postgres.embedded import EmbeddedPostgres
data = Path(sys.argv[1])
server = EmbeddedPostgres(data, None, {})
try:
    server.ensure()
except TidelockError as error:
    print(type(error).__name__, error)
    sys.exit(error.exit_code)
print(postmaster.read(data / "postgres").pid, flush=True)
sys.stdin.read()
server.release()
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who can become other users")


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Path]:
    """A directory nobody used yet."""
    yield tmp_path / "data"
    _stop(tmp_path / "data")
    shutil.rmtree(tmp_path / "data", ignore_errors=True)


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    data = tmp_path_factory.mktemp("used") / "data"
    server = EmbeddedPostgres(data, None, {})
    server.ensure()
    server.release()
    yield data
    shutil.rmtree(data, ignore_errors=True)


@pytest.fixture
def data(used: Path) -> Iterator[Path]:
    """A directory with a stopped server: the same for all, as making one takes a second."""
    yield used
    _stop(used)


@pytest.fixture
def server(data: Path) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(data, None, {})
    server.ensure()
    yield server
    server.release()


def test_a_clean_stop_and_restart_keeps_data_and_port(data: Path, server: EmbeddedPostgres) -> None:
    _execute(server, "CREATE TABLE kept AS SELECT 1 AS x")
    url = server.url
    server.release()
    assert postmaster.find(data / "postgres") is None
    assert server.ensure() == url
    assert _execute(server, "SELECT x FROM kept") == [(1,)]


def test_a_killed_postmaster_is_replaced_and_what_was_committed_is_there(data: Path, server: EmbeddedPostgres) -> None:
    _execute(server, "CREATE TABLE committed AS SELECT 1 AS x")
    killed = _pid(data)
    # Backends outlive their postmaster for a moment: the new one must wait for them.
    connection = psycopg.connect(server.url)
    connection.execute("SELECT 1")
    os.kill(killed, signal.SIGKILL)
    while postmaster.serves(killed, data / "postgres"):
        time.sleep(0.001)
    server.ensure()
    connection.close()
    assert _pid(data) != killed
    assert _execute(server, "SELECT x FROM committed") == [(1,)]


def test_a_killed_user_leaves_a_server_that_the_next_one_takes_over(data: Path) -> None:
    user, pid = _user(data)
    user.kill()
    user.communicate()
    assert postmaster.serves(pid, data / "postgres")
    server = EmbeddedPostgres(data, None, {})
    server.ensure()
    assert _pid(data) == pid
    server.release()
    assert postmaster.find(data / "postgres") is None


def test_of_two_users_the_first_to_leave_does_not_stop_it(data: Path, server: EmbeddedPostgres) -> None:
    user, pid = _user(data)
    assert pid == _pid(data)
    server.release()
    assert postmaster.serves(pid, data / "postgres")
    user.communicate()
    assert not postmaster.serves(pid, data / "postgres")


def test_two_users_in_one_process_are_two_users(data: Path, server: EmbeddedPostgres) -> None:
    other = EmbeddedPostgres(data, None, {})
    other.ensure()
    other.release()
    assert _execute(server, "SELECT 1") == [(1,)]


def test_processes_that_start_at_once_share_one_server(fresh: Path) -> None:
    started = [_spawn(fresh) for _ in range(4)]
    pids = {_first_line(user) for user in started}
    assert len(pids) == 1
    for user in started:
        user.communicate()
    assert postmaster.find(fresh / "postgres") is None


def test_ensure_starts_and_asks_nothing_while_it_runs(
    server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(*_: object, **__: object) -> None:
        raise AssertionError("it runs, as its files say")

    monkeypatch.setattr(subprocess, "Popen", nobody)
    monkeypatch.setattr(psycopg, "connect", nobody)
    assert len({server.ensure() for _ in range(100)}) == 1


def test_a_pid_file_with_the_number_of_another_program_does_not_fool_it(data: Path, server: EmbeddedPostgres) -> None:
    pid_file = data / "postgres" / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    server.release()
    # Of the account that runs the server, else Postgres itself would see that it cannot be its own.
    owner = (data / "postgres").stat()
    with _as(owner.st_uid, owner.st_gid, ["sleep", "60"]) as stranger:
        pid_file.write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")
        server.ensure()
        assert stranger.poll() is None
        stranger.kill()
    assert _execute(server, "SELECT 1") == [(1,)]


def test_a_kill_while_the_directory_was_being_made_leaves_nothing_in_the_way(fresh: Path) -> None:
    (fresh / "postgres.new").mkdir(parents=True)
    (fresh / "postgres.new" / "PG_VERSION").write_text("18\n")
    server = EmbeddedPostgres(fresh, None, {})
    server.ensure()
    assert _execute(server, "SELECT 1") == [(1,)]
    server.release()
    assert not (fresh / "postgres.new").exists()


def test_a_port_taken_meanwhile_is_replaced_by_a_free_one(server: EmbeddedPostgres) -> None:
    before = server.url
    server.release()
    with socket.create_server(("127.0.0.1", int(before.rsplit(":", 1)[1].split("/")[0]))):
        assert server.ensure() != before
        assert _execute(server, "SELECT 1") == [(1,)]


def test_a_port_lost_between_the_look_and_the_start_is_replaced(
    data: Path, server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.release()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1], free_port()])
        monkeypatch.setattr(launcher, "free_port", lambda: next(ports))
        server.ensure()
        assert _execute(server, "SELECT 1") == [(1,)]


def test_it_listens_on_loopback_only_and_asks_for_the_password(data: Path, server: EmbeddedPostgres) -> None:
    assert _execute(server, "SHOW listen_addresses") == [("127.0.0.1",)]
    assert _execute(server, "SHOW unix_socket_directories") == [("",)]
    assert stat.S_IMODE((data / "postgres.password").stat().st_mode) == 0o600
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(server.url, password="wrong")
    # One round: a connection is quick, and a random password is safe by itself.
    assert _execute(server, "SELECT split_part(rolpassword, ':', 1) FROM pg_authid WHERE rolpassword IS NOT NULL") == [
        ("SCRAM-SHA-256$1",)
    ]
    assert not (data / "postgres.verifier").exists()


def test_it_is_durable_and_utf8_by_default(server: EmbeddedPostgres) -> None:
    for name in ("fsync", "synchronous_commit", "full_page_writes", "autovacuum", "data_checksums"):
        assert _execute(server, f"SHOW {name}") == [("on",)], name
    assert _execute(server, "SHOW server_encoding") == [("UTF8",)]
    assert _execute(server, "SHOW wal_compression") != [("off",)]


def test_ctrl_c_in_our_terminal_does_not_reach_it(data: Path, server: EmbeddedPostgres) -> None:
    assert os.getsid(_pid(data)) == _pid(data) != os.getsid(0)


def test_configuration_of_the_user_comes_first(data: Path) -> None:
    server = EmbeddedPostgres(data, None, {"max_connections": "7", "wal_compression": "off"})
    server.ensure()
    assert _execute(server, "SHOW max_connections") == [("7",)]
    assert _execute(server, "SHOW wal_compression") == [("off",)]
    server.release()


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"shared_buffers": "many"}, r'invalid value for parameter "shared_buffers"'),
        ({"speed": "high"}, r'unrecognized configuration parameter "speed"'),
        ({"port": "5432"}, r"does not allow setting port"),
    ],
)
def test_wrong_configuration_is_a_settings_error(data: Path, config: dict[str, str], complaint: str) -> None:
    with pytest.raises(SettingsError) as told:
        EmbeddedPostgres(data, None, config).ensure()
    assert re.search(complaint, f"{told.value.message} {told.value.detail}")


def test_data_of_another_major_version_is_refused(data: Path, server: EmbeddedPostgres) -> None:
    server.release()
    version = data / "postgres" / "PG_VERSION"
    right = version.read_text()
    version.write_text("14\n")
    with pytest.raises(SettingsError, match=r"written by Postgres 14, but .* is Postgres 1\d"):
        server.ensure()
    version.write_text(right)


def test_damaged_data_is_reported_with_the_last_lines_of_the_log(data: Path, server: EmbeddedPostgres) -> None:
    server.release()
    control = data / "postgres" / "global" / "pg_control"
    aside = control.rename(data / "pg_control")
    with pytest.raises(Unreachable, match="did not start") as told:
        server.ensure()
    assert "pg_control" in str(told.value.detail)
    aside.rename(control)


def test_a_directory_without_programs_is_refused_by_name(fresh: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"{tmp_path} does not contain the programs"):
        EmbeddedPostgres(fresh, tmp_path, {}).ensure()


def test_a_full_disk_is_explained() -> None:
    said = 'FATAL:  could not write lock file "postmaster.pid": No space left on device'
    error = explain("It did not start", "/data/postgres", said)
    assert error.message == (
        "It did not start. The disk is full: free some space, or choose another directory with --data."
    )
    assert error.detail == f"/data/postgres says:\n  {said}"


def test_a_log_that_has_grown_is_cut_while_the_server_writes_on(data: Path, server: EmbeddedPostgres) -> None:
    log = data / "postgres.log"
    with log.open("ab") as file:
        file.write(b"a line of old output\n" * 500_000)
    server.ensure()
    assert log.stat().st_size < 100_000
    server.release()
    assert "database system is shut down" in log.read_text()
    assert "\0" not in log.read_text()


@as_root
def test_root_runs_it_as_somebody_else_even_below_a_private_directory(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "programs").symlink_to(find_binaries(None))
    server = EmbeddedPostgres(private / "data", private / "programs", {})
    server.ensure()
    assert _uid(_pid(private / "data")) == (private / "data" / "postgres").stat().st_uid != 0
    assert _execute(server, "SELECT 1") == [(1,)]
    server.release()


@as_root
def test_root_without_the_means_is_shown_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    monkeypatch.setenv("PATH", "")  # where setpriv would be found
    with pytest.raises(SettingsError, match=r"does not run as root(?s:.)*cannot reach(?s:.)*DATABASE_URL"):
        EmbeddedPostgres(tmp_path / "private" / "data", None, {}).ensure()


@as_root
def test_root_in_the_directory_of_a_user_leaves_everything_to_that_user(fresh: Path) -> None:
    fresh.mkdir()
    os.chown(fresh, NOBODY, NOBODY)
    server = EmbeddedPostgres(fresh, None, {})
    server.ensure()
    assert _uid(_pid(fresh)) == NOBODY
    server.release()
    assert {path.stat().st_uid for path in fresh.iterdir()} == {NOBODY}
    user, pid = _user(fresh, uid=NOBODY)
    assert _uid(pid) == NOBODY
    user.communicate()


@as_root
def test_root_in_a_mounted_directory_of_a_number_without_a_name_runs_it_as_nobody(fresh: Path) -> None:
    fresh.mkdir(mode=0o700)
    os.chown(fresh, 54321, 54321)
    server = EmbeddedPostgres(fresh, None, {})
    server.ensure()
    assert _uid(_pid(fresh)) == NOBODY
    server.release()


@as_root
def test_an_ordinary_user_runs_it_too(fresh: Path) -> None:
    fresh.mkdir()
    os.chown(fresh, NOBODY, NOBODY)
    user, pid = _user(fresh, uid=NOBODY)
    assert _uid(pid) == NOBODY
    user.communicate()
    assert user.returncode == 0
    assert postmaster.find(fresh / "postgres") is None


@as_root
def test_an_ordinary_user_on_the_directory_of_another_is_shown_whose_it_is(
    data: Path, server: EmbeddedPostgres
) -> None:
    user = _spawn(data, uid=12345)
    said, _ = user.communicate()
    assert user.returncode == 2
    assert f"belongs to uid {NOBODY}, and you are uid 12345" in said


def _execute(server: EmbeddedPostgres, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


def _pid(data: Path) -> int:
    found = postmaster.find(data / "postgres")
    assert found is not None
    return found.pid


def _uid(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def _user(data: Path, uid: int | None = None) -> tuple[subprocess.Popen[str], int]:
    user = _spawn(data, uid)
    return user, int(_first_line(user))


def _spawn(data: Path, uid: int | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-B", "-c", USER, str(data)]
    if uid is not None:
        # The capability is for this test's own Python and directories, which may lie below /root.
        lend = "+dac_read_search"
        become = ["--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
        command = ["setpriv", *become, "--inh-caps", lend, "--ambient-caps", lend, "--", *command]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _first_line(user: subprocess.Popen[str]) -> str:
    assert user.stdout is not None
    return user.stdout.readline()


def _as(uid: int, gid: int, command: list[str]) -> subprocess.Popen[bytes]:
    if os.geteuid() != 0:
        return subprocess.Popen(command)
    return subprocess.Popen(command, user=uid, group=gid, extra_groups=[])


def _stop(data: Path) -> None:
    """End what a failed test may have left running."""
    if data.exists() and (left := postmaster.find(data / "postgres")) is not None:
        left.stop(data / "postgres")
