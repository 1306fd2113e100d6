"""What clients are told when the database cannot take or give something, and what the log has of it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.budgets import HANG_S
from tests.graphql.sockets import connected
from tests.http.test_connections import client_of
from tests.serving import Start
from tidelock.app import Serving
from tidelock.errors import Unreachable
from tidelock.graphql.execution import Operations
from tidelock.http import problems
from tidelock.http.problems import Outages
from tidelock.postgres import pool as connections
from tidelock.postgres import postmaster

_FILE = 'could not extend file "base/5/16500.1": No space left on device'


@asynccontextmanager
async def full_disk(server: Serving) -> AsyncIterator[None]:
    """Postgres's own error, from Postgres, with the name of a file in it."""
    async with await server.ledger.database.connect(autocommit=True) as connection:
        await connection.execute(
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION USING ERRCODE = 'disk_full', MESSAGE = '{_FILE}'; END $$"
        )
        await connection.execute(b"CREATE TRIGGER full_disk BEFORE INSERT ON identities EXECUTE FUNCTION full_disk()")
        try:
            yield
        finally:
            await connection.execute("DROP TRIGGER full_disk ON identities; DROP FUNCTION full_disk()")


async def test_a_full_disk_is_reported_to_people_and_logged_once_a_minute(
    start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problems, "outages", Outages())
    event = {"stream": "s", "idempotencyKey": "k"}
    async with start() as server, httpx.AsyncClient(base_url=server.url) as client:
        async with full_disk(server):
            caplog.set_level(logging.WARNING)
            answers = [await client.post("/v1/events", json=event) for _ in range(5)]
        for answer in answers:
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert answer.json()["error"] == {
                "code": "unavailable",
                "message": "the ledger could not record the request: the disk of the database is full; free some "
                "space; retry it",
                "field": None,
            }
        logged = [record.getMessage() for record in caplog.records if "503" in record.getMessage()]
        assert len(logged) == 1
        assert "the disk of the database is full" in logged[0]
        assert _FILE in logged[0], "who runs it needs to know which"
        assert (await client.post("/v1/events", json=event)).json()["accepted"] == 1


async def test_a_full_disk_that_stops_postgres_is_reported_without_its_insides(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problems, "outages", Outages())
    # On a busy machine it takes longer to see that Postgres does not start.
    monkeypatch.setattr(connections, "_ANSWER_S", HANG_S)
    cluster = tmp_path / "data" / "postgres"
    async with start(data=tmp_path / "data", database_url=None) as server, client_of(server) as client:
        assert (await client.post("/v1/events", json={"stream": "s"})).status_code == 200
        # Its next start writes this file first, and finds the disk full.
        options = cluster / "postmaster.opts"
        options.unlink()
        options.symlink_to("/dev/full")
        running = postmaster.find(cluster)
        assert running is not None
        await asyncio.to_thread(running.stop, cluster)
        caplog.set_level(logging.WARNING)
        told: Counter[str] = Counter()
        async with asyncio.timeout(60):
            while min(told["post"], told["get"]) < 3:
                posted, read = await client.post("/v1/events", json={"stream": "s"}), await client.get("/admin/events")
                for how, answer in (("post", posted), ("get", read)):
                    assert answer.status_code == 503
                    message = answer.json()["error"]["message"]
                    # On a busy machine a start may take longer than a request waits.
                    if message == "the database does not respond in time":
                        continue
                    told[how] += 1
                    assert "The embedded Postgres did not start. The disk is full: free some space" in message
                    assert not re.search(r"postmaster|/data|\d\d:\d\d|/tmp", message), message
                await asyncio.sleep(1.1)  # until the next attempt to start it, which says another time
        logged = [record.getMessage() for record in caplog.records if "answered 503" in record.getMessage()]
        full_disk = [line for line in logged if "does not respond in time" not in line]
        assert len(full_disk) == len({line.partition(" [")[0] for line in full_disk}) <= 2
        assert 'could not write file "postmaster.opts": No space left on device' in full_disk[0]
        options.unlink()
        async with asyncio.timeout(30):
            while (await client.post("/v1/events", json={"stream": "s"})).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.1)


async def test_an_operation_that_something_away_ends_is_logged_on_every_transport_of_graphql(
    start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = ""

    async def away(*_: object, **__: object) -> None:
        raise Unreachable(f"away for {transport}")

    monkeypatch.setattr(Operations, "run", away)
    async with start() as server, client_of(server) as client:
        transport = "a WebSocket"
        async with connected(server.url) as socket:
            await socket.subscribe("{ __typename }")
            assert (await socket.error())["message"] == "away for a WebSocket"
        transport = "events"
        answer = await client.get("/graphql?query={__typename}", headers={"accept": "text/event-stream"})
        assert "away for events" in answer.text
    logged = [record.getMessage().partition("503: ")[2] for record in caplog.records]
    assert [line for line in logged if line] == ["away for a WebSocket", "away for events"]


def test_a_reason_is_logged_again_after_a_minute_with_how_often_it_occurred_meanwhile(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("tidelock.http.problems.time.monotonic", lambda: now)
    outages = Outages()
    for _ in range(3):
        outages.note(Unreachable("away"))
    outages.note(Unreachable("another"))
    now += 61
    outages.note(Unreachable("away"))
    assert [record.getMessage().partition("503: ")[2] for record in caplog.records] == [
        "away",
        "another",
        "away (2 more like this were not logged)",
    ]
