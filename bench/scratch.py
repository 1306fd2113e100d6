"""Scratch: a directory, a ledger in it and a server over it, all thrown away after a measurement."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tidelock.errors import Unreachable
from tidelock.postgres.database import Database
from tidelock.postgres.ports import free_port

_HOST = "127.0.0.1"
_READY_S = 180.0
_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Served:
    """A server that is ready."""

    host: str
    port: int
    #: of `tidelock up`; a fold is a child of it
    pid: int


@contextmanager
def directory(place: Path | None) -> Iterator[Path]:
    """A directory in `place` (None: the system's), which an embedded Postgres of another user can enter."""
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tidelock-bench-", dir=place) as scratch:
        data = Path(scratch).resolve()
        data.chmod(0o755)
        yield data


@contextmanager
def database(server: Database, name: str) -> Iterator[Database]:
    """A database of its own, gone afterwards."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        try:
            yield Database(server.url.rpartition("/")[0] + f"/{name}")
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def take_jars(data: Path, scratch: Path) -> None:
    """Spark's jars of a data directory that has them, so that nothing is fetched again."""
    with suppress(FileNotFoundError):
        shutil.copytree(data / "jars", scratch / "jars")


@contextmanager
def server(data: Path, config: Path | None, environ: Mapping[str, str]) -> Iterator[Served]:
    """`tidelock up` in a process of its own, as users run it, whose settings lead to nothing but the scratch ledger."""
    port = free_port()
    flags = ["--data", str(data), "--host", _HOST, "--port", str(port), "--streams-open", "true"]
    if config is not None:
        flags += ["--config", str(config)]
    inherited = {name: value for name, value in os.environ.items() if not name.endswith("DATABASE_URL")}
    with (data / "server.log").open("wb+") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidelock", "up", *flags],
            stdout=subprocess.DEVNULL, stderr=said, stdin=subprocess.DEVNULL,
            env={**inherited, "TIDELOCK_ANCHOR": str(data / "anchor.jsonl"), **environ},
        )  # fmt: skip
        try:
            _wait_until_ready(process, f"http://{_HOST}:{port}/readyz", data / "server.log")
            yield Served(_HOST, port, process.pid)
        finally:
            process.terminate()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, said: Path) -> None:
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        with suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(url, timeout=5) as answer:
            json.load(answer)
            return
        if process.poll() is not None:
            raise Unreachable(f"the server to measure did not start: {said.read_text(errors='replace')[-500:]}")
        time.sleep(_PAUSE_S)
    raise Unreachable(f"the server to measure did not become ready within {_READY_S:.0f} s")
