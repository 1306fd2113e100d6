"""The files of the embedded Postgres: its data directory, its password, the port it had, its configuration, its log."""

from __future__ import annotations

import hmac
import logging
import os
import re
import secrets
import shutil
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import pbkdf2_hmac, sha256
from pathlib import Path

from tidelock.errors import SettingsError, TidelockError, Unreachable
from tidelock.postgres import postmaster
from tidelock.postgres.account import Account, belong_to_parent

USER = "tidelock"
log = logging.getLogger(__name__)
_MEBIBYTE = 1 << 20

# Acknowledged means durable: the first three are Postgres's own defaults, stated because everything relies on them.
_DEFAULTS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    # A ledger writes steadily: few large checkpoints cost less than many small ones.
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "max_connections": "100",
    # Every query is short or from Spark; compiling them costs more than it saves.
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # A killed client must not hold the head of the ledger until its query ends.
    "client_connection_check_interval": "2s",
    # Failed statements are reported to their client. The log only has server messages, so it stays small.
    "log_min_messages": "log",
    "log_checkpoints": "off",
    "log_autovacuum_min_duration": "-1",
}

# Only this machine, only by TCP: what the launcher itself relies on.
_FIXED = {"listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
_RESERVED = frozenset({*_FIXED, "port", "data_directory", "external_pid_file", "logging_collector"})
_SIZE_MAX = 8 << 20
_TAIL = 64 << 10
_LINES = 12
_FULL = "The disk is full: free some space, or choose another directory with --data."
_ADVICE = {
    "No space left on device": _FULL,
    "Check free disk space": _FULL,
    "Disk quota exceeded": "The disk quota is used up: free some space, or choose another directory with --data.",
    "Read-only file system": "The file system is read-only: choose another directory with --data.",
    "has wrong ownership": "Give the directory to the account that runs the server (chown -R), or run as its owner.",
    "has invalid permissions": "Only the account that runs the server may enter its directory: chmod 700 it.",
    "Permission denied": "The account that runs the server cannot read or write there: check owner and mode.",
    "user does not exist": (
        "Postgres initialises a new directory only for a user with a name: add this one to /etc/passwd, run as another "
        "user, or name a server of your own with DATABASE_URL."
    ),
    "could not map anonymous shared memory": "There is not enough memory: set a smaller shared_buffers.",
    "could not create semaphores": "The system allows too few semaphores: set a smaller max_connections.",
}

# The user's own configuration is wrong: another attempt would not help.
_CONFIGURATION = ("unrecognized configuration parameter", "invalid value for parameter", "is outside the valid range")


class Cluster:
    """The files of one embedded server."""

    def __init__(self, data: Path) -> None:
        self.path = data / "postgres"
        self._data = data
        self._password = data / "postgres.password"
        self._port = data / "postgres.port"

    def password(self) -> str:
        try:
            return self._password.read_text().strip()
        except FileNotFoundError:
            raise Unreachable(
                "The password file of the embedded Postgres is missing: without it nobody can log in.",
                detail=f"Put {self._password} back from a backup of {self._data}.",
            ) from None

    def port(self) -> int:
        found = postmaster.read(self.path)
        return found.port if found is not None and found.port else self.last_port()

    def last_port(self) -> int:
        """0 when it never ran."""
        try:
            return int(self._port.read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def keep_port(self, port: int) -> None:
        self._port.write_text(f"{port}\n")
        belong_to_parent(self._port)

    def check_access(self) -> None:
        """Report the owner, rather than that some file cannot be read."""
        ours = os.geteuid()
        if ours and self.path.exists() and (owner := self.path.stat().st_uid) != ours:
            raise SettingsError(
                f"{self.path} belongs to uid {owner}, and you are uid {ours}. Run Tidelock as that user or as root, "
                "or choose another directory with --data.",
                field="data",
            )

    def prepare(self, binaries: Path, account: Account, version: str) -> None:
        """Create the data directory if needed, and check that the available programs can serve it."""
        if not (self.path / "PG_VERSION").exists():
            self._create(binaries, account, _major(version))
        made_by = (self.path / "PG_VERSION").read_text().strip()
        if made_by != str(_major(version)):
            raise SettingsError(
                f"{self.path} was written by Postgres {made_by}, but {binaries} is Postgres {_major(version)}. Set "
                f"`postgres.binaries` to the programs of Postgres {made_by}, or upgrade the directory with pg_upgrade.",
                field="postgres.binaries",
            )
        self._drop_foreign_pid_file()

    def settings(self, binaries: Path, account: Account, config: Mapping[str, str]) -> dict[str, str]:
        """The server's parameters: our defaults, then the user's choices, then the fixed ones."""
        if refused := sorted(_RESERVED & config.keys()):
            raise SettingsError(
                f"The embedded Postgres does not allow setting {', '.join(refused)}.", field="postgres.config"
            )
        chosen = {**_DEFAULTS, "shared_buffers": _shared_buffers(), **config, **_FIXED}
        if "wal_compression" not in chosen:
            chosen["wal_compression"] = self._wal_compression(binaries, account)
        return chosen

    def _create(self, binaries: Path, account: Account, major: int) -> None:
        """Created separately and renamed when complete: a kill in between leaves nothing half done."""
        new = self._data / "postgres.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        account.give(new)
        self._write_password()
        account.give(self._password)
        kept = self._data / "postgres.verifier"
        kept.touch(0o600)
        kept.write_text(_verifier(self.password()) + "\n")
        account.give(kept)
        # Text compares by code point in both; the builtin provider also knows the letters beyond ASCII.
        builtin = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] if major >= 17 else []
        made = account.run(
            [
                binaries / "initdb",
                f"--pgdata={new}",
                f"--username={USER}",
                f"--pwfile={kept}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C",
                *builtin,
                "--data-checksums",
                "--no-instructions",
            ]
        )
        kept.unlink()
        belong_to_parent(self._password)
        if made.returncode != 0:
            shutil.rmtree(new, ignore_errors=True)
            raise explain("Postgres could not create its data directory", str(self.path), made.stdout)
        new.rename(self.path)
        _sync(self._data)

    def _write_password(self) -> None:
        if not self._password.exists():
            with open(os.open(self._password, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(24) + "\n")
                file.flush()
                os.fsync(file.fileno())

    def _drop_foreign_pid_file(self) -> None:
        """After a reboot the recorded number may be another program's, and Postgres would not dare to start.

        The caller holds the server lock, so no process of this server lives. An unused number is left alone: Postgres
        then makes its own checks.
        """
        recorded = postmaster.read(self.path)
        file = self.path / "postmaster.pid"
        if recorded is None and file.exists():
            self._drop_damaged_pid_file(file)
        elif recorded is not None and postmaster.exists(recorded.pid):
            file.unlink()

    def _drop_damaged_pid_file(self, file: Path) -> None:
        """A full disk or a power cut can leave it empty, and Postgres would not start.

        A Postgres started by somebody else does not hold our lock, so the process list is searched for one.
        """
        if (pid := postmaster.living(self.path)) is not None:
            raise Unreachable(
                "The embedded Postgres cannot start: another one is running on its directory.",
                detail=f"{file} is damaged, and process {pid} is a Postgres on that directory. Stop it first "
                f"(kill -INT {pid}), then start again.",
            )
        log.warning("%s was empty or damaged, and no Postgres runs on that directory: removed it", file)
        file.unlink()

    def _wal_compression(self, binaries: Path, account: Account) -> str:
        """The best method of this build: full pages after a checkpoint are most of what a busy ledger writes."""
        for method in ("lz4", "zstd", "pglz"):
            flags = f"-C wal_compression -c wal_compression={method} -D".split()
            if account.run([binaries / "postgres", *flags, self.path]).returncode == 0:
                return method
        return "off"


class ServerLog:
    """Everything the server prints, appended to one file of bounded size."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Where the output of the present start begins.
        self._start = 0

    @contextmanager
    def opened(self) -> Iterator[int]:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            belong_to_parent(self._path)
            self._start = os.fstat(file).st_size
            yield file
        finally:
            os.close(file)

    def trim(self) -> None:
        """Keep the tail of a log that has grown. The server appends, so the file may shrink under it."""
        if not self._path.exists() or self._path.stat().st_size <= _SIZE_MAX:
            return
        with self._path.open("r+b") as file:
            file.seek(-_TAIL, os.SEEK_END)
            tail = file.read()
            file.truncate(0)
            file.seek(0)
            file.write(tail[tail.find(b"\n") + 1 :])

    def says(self, text: str) -> bool:
        return text in self._since_start()

    def failure(self, headline: str, where: str) -> TidelockError:
        return explain(headline, where, self._since_start())

    def _since_start(self) -> str:
        try:
            with self._path.open("rb") as file:
                file.seek(self._start)
                return file.read(_TAIL).decode(errors="replace")
        except FileNotFoundError:
            return ""


def explain(headline: str, where: str, output: str) -> TidelockError:
    """An error that says what happened and what to do if that is known. Its detail says where, with the last lines the
    server printed: they name files, and the time, so that no two are the same."""
    advice = next((text for sign, text in _ADVICE.items() if sign in output), None)
    lines = "\n".join(f"  {line}" for line in output.strip().splitlines()[-_LINES:])
    message = " ".join(filter(None, [f"{headline}.", advice]))
    detail = f"{where} says:\n{lines}" if lines else f"{where} says nothing."
    if any(sign in output for sign in _CONFIGURATION):
        return SettingsError(message, field="postgres.config", detail=detail)
    return Unreachable(message, detail=detail)


def _major(version: str) -> int:
    """18 of `postgres (PostgreSQL) 18.6`, also of `19beta1`."""
    match = re.search(r"\(PostgreSQL\) (\d+)", version)
    if match is None:
        raise SettingsError(f"Not a Postgres version: {version.strip()}", field="postgres.binaries")
    return int(match[1])


def _verifier(password: str) -> str:
    """What Postgres keeps of the password, by one round of SCRAM in place of 4,096.

    Those protect passwords that people think of. Nobody guesses a random one, and rounds are what most of the processor
    time of a new connection goes to: Spark opens several for every range.
    """
    salt = secrets.token_bytes(16)
    salted = pbkdf2_hmac("sha256", password.encode(), salt, 1)
    stored, server = (
        sha256(hmac.digest(salted, b"Client Key", "sha256")).digest(),
        hmac.digest(salted, b"Server Key", "sha256"),
    )
    return "SCRAM-SHA-256$1:{}${}:{}".format(*(b64encode(part).decode() for part in (salt, stored, server)))


def _shared_buffers() -> str:
    """An eighth of the memory, as Spark lives beside it, within limits that suit a small machine and a big one."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{min(max(memory // 8 // _MEBIBYTE, 64), 512)}MB"


def _sync(directory: Path) -> None:
    file = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
