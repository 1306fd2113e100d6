"""A real server on a real port over a real ledger, in this very process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psycopg
import pytest
import uvloop

from tidelock.clock import Clock, database_clock
from tidelock.postgres.embedded import EmbeddedPostgres
from tidelock.settings import Settings

if TYPE_CHECKING:
    from tidelock.app import Serving

Start = Callable[..., AbstractAsyncContextManager["Serving"]]
Threaded = Callable[..., AbstractContextManager[str]]

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def start(postgres: EmbeddedPostgres, template: str, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Starts a server over a ledger of its own (or the one at `database_url`), with any settings."""
    # Only here: it imports every room, which most tests have no use for.
    from tidelock.app import open_server

    @asynccontextmanager
    async def started(
        *, streams_open: bool = True, fold_needed: bool = False, clock: Clock = database_clock, **settings: Any
    ) -> AsyncIterator[Serving]:
        data: Path = tmp_path_factory.mktemp("data")
        name = f"served_{next(_numbers)}"
        if "database_url" not in settings:
            with psycopg.connect(postgres.url, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
            settings["database_url"] = postgres.url.rsplit("/", 1)[0] + f"/{name}"
        try:
            given = Settings(**{"data": data, "port": 0, **settings})
            async with open_server(given, streams_open=streams_open, fold_needed=fold_needed, clock=clock) as server:
                yield server
        finally:
            with psycopg.connect(postgres.url, autocommit=True) as connection:
                connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    return started


@pytest.fixture(scope="session")
def threaded(start: Start) -> Threaded:
    """Starts a server in a thread of its own, for tests that block theirs. Gives its URL."""

    @contextmanager
    def started(**settings: Any) -> Iterator[str]:
        url: Future[str] = Future()
        stop = asyncio.Event()

        async def run() -> None:
            async with start(**settings) as server:
                url.set_result(server.url)
                await stop.wait()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, ThreadPoolExecutor(1) as executor:
            loop = runner.get_loop()
            running = executor.submit(runner.run, run())
            running.add_done_callback(lambda done: done.exception() and url.cancel())
            try:
                yield url.result(timeout=30)
            finally:
                loop.call_soon_threadsafe(stop.set)
                running.result(timeout=30)

    return started


@pytest.fixture(scope="module")
async def server(start: Start) -> AsyncIterator[Serving]:
    """One server for a file's tests; each has a tenant of its own."""
    async with start() as serving:
        yield serving


@pytest.fixture(scope="module")
async def client(server: Serving) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url) as opened:
        yield opened


@pytest.fixture
def tenant() -> str:
    return f"tenant-{next(_numbers)}"


@pytest.fixture
def _deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that hear nothing of keys."""
    from tidelock.ledger.apikeys import KeyNews

    async def nothing(_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(KeyNews, "run", nothing)
