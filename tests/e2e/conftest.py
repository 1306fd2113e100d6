"""A real server on a real port over a real ledger, in this very process."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from tidelock.app import Serving, open_server
from tidelock.ledger.postgres import EmbeddedPostgres
from tidelock.settings import Settings

Start = Callable[..., AbstractAsyncContextManager[Serving]]

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def start(postgres: EmbeddedPostgres, template: str, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Starts a server over a ledger of its own (or the one at `database_url`), with any settings."""

    @asynccontextmanager
    async def started(*, streams_open: bool = True, **settings: Any) -> AsyncIterator[Serving]:
        data: Path = tmp_path_factory.mktemp("data")
        name = f"served_{next(_numbers)}"
        if "database_url" not in settings:
            with psycopg.connect(postgres.url, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
            settings["database_url"] = postgres.url.rsplit("/", 1)[0] + f"/{name}"
        try:
            async with open_server(Settings(data=data, port=0, **settings), streams_open=streams_open) as server:
                yield server
        finally:
            with psycopg.connect(postgres.url, autocommit=True) as connection:
                connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

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
