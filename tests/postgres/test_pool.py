"""Connections for reading: bounded, read-only, and good again after the database was away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from tidelock.errors import RequestError, Unreachable
from tidelock.postgres.database import Database
from tidelock.postgres.pool import Connections


@pytest.fixture
async def connections(database: Database) -> AsyncIterator[Connections]:
    made = Connections(database, size_max=2)
    yield made
    await made.close()


async def backend(connection: psycopg.AsyncConnection[Any]) -> int:
    row = await (await connection.execute("SELECT pg_backend_pid()")).fetchone()
    assert row is not None
    return int(row[0])


async def test_a_connection_is_used_again(connections: Connections) -> None:
    assert len({await connections.ask(backend) for _ in range(5)}) == 1


async def test_no_more_are_open_than_allowed_and_the_others_wait(connections: Connections) -> None:
    async def hold(_: object) -> int:
        async with connections.lend() as connection:
            return await backend(connection)

    assert len(set(await asyncio.gather(*map(hold, range(8))))) == 2


async def test_a_client_that_waits_too_long_is_asked_to_come_back(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelock.postgres.pool._WAIT_S", 0.1)
    async with connections.lend(), connections.lend():
        with pytest.raises(Unreachable, match="in use"):
            async with connections.lend():
                pass
    assert await connections.ask(backend)


async def test_one_that_was_cut_while_idle_is_replaced_unnoticed(connections: Connections, database: Database) -> None:
    first = await connections.ask(backend)
    async with await database.connect() as killer:
        await killer.execute("SELECT pg_terminate_backend(%s, 2000)", [first])
    assert await connections.ask(backend) != first


async def test_one_that_is_cut_in_use_is_unreachable_and_not_used_again(
    connections: Connections, database: Database
) -> None:
    async def cut(connection: psycopg.AsyncConnection[Any]) -> int:
        async with await database.connect() as killer:
            await killer.execute("SELECT pg_terminate_backend(%s, 2000)", [await backend(connection)])
        return await backend(connection)

    with pytest.raises(Unreachable):
        await connections.ask(cut)
    assert await connections.ask(backend)


async def test_nothing_can_be_written_through_it(connections: Connections) -> None:
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        async with connections.lend() as connection:
            await connection.execute("INSERT INTO cursors VALUES ('x', 1)")


async def test_a_value_the_database_cannot_take_is_the_requests_fault(connections: Connections) -> None:
    with pytest.raises(RequestError):
        async with connections.lend() as connection:
            await connection.execute("SELECT 'x'::bigint")


async def test_a_question_that_hangs_is_given_up_and_its_place_comes_back(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sleep(connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute("SELECT pg_sleep(60)")

    monkeypatch.setattr("tidelock.postgres.pool._ANSWER_S", 0.1)
    for _ in range(4):
        with pytest.raises(Unreachable, match="in time"):
            await connections.ask(sleep)
    monkeypatch.setattr("tidelock.postgres.pool._ANSWER_S", 5)
    assert await connections.ask(backend)


async def test_a_client_that_hangs_up_while_asking_leaves_nothing_behind(connections: Connections) -> None:
    async def sleep(connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute("SELECT pg_sleep(60)")

    for _ in range(4):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connections.ask(sleep), 0.05)
    assert await connections.ask(backend)


async def test_a_database_that_is_not_there_is_reported_at_once_to_everybody_but_the_first(database: Database) -> None:
    nowhere = Connections(Database("postgresql://nobody@127.0.0.1:1/none"), size_max=2)
    for _ in range(3):
        with pytest.raises(Unreachable, match="Cannot connect"):
            await nowhere.ask(backend)
    await nowhere.close()
