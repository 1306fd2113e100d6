"""Health and metrics: what the server says of itself, also while its database is away."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import psycopg
import pytest
import websockets
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.budgets import HANG_S
from tests.recording import until_waited_for
from tests.serving import Start
from tidelock.app import Serving
from tidelock.errors import SettingsError
from tidelock.postgres.database import Database
from tidelock.postgres.embedded import EmbeddedPostgres
from tidelock.postgres.leases import READY, hold


async def sample(client: httpx.AsyncClient, name: str, **labels: str) -> float:
    text = (await client.get("/metrics")).text
    found = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return sum(found)


async def test_health_shows_where_the_ledger_is(start: Start) -> None:
    async with start() as server, httpx.AsyncClient(base_url=server.url) as client:
        empty = {"head": {"ingressSequence": 0, "sourceTimestamp": "0"}, "readers": []}
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        assert (await client.get("/readyz")).json() == empty
        numbers = {"source": "local", "since": None, "skipped": 0}
        assert (await client.get("/admin/event-health")).json() == {**empty, "sequence": numbers, "windows": []}
        answer = (await client.post("/v1/events", json=[{"stream": "s"}, {"stream": "s"}])).json()["results"][1]
        head = {name: answer[name] for name in ("ingressSequence", "sourceTimestamp")}
        assert (await client.get("/readyz")).json()["head"] == head


async def test_the_fold_is_reported_once_it_has_run(start: Start) -> None:
    async with (
        start() as server,
        httpx.AsyncClient(base_url=server.url) as client,
        await server.ledger.database.connect() as connection,
    ):
        assert (await client.get("/readyz")).json()["readers"] == []
        for count in (2, 3):
            await client.post("/v1/events", json=[{"stream": "s"}] * count)
        await connection.execute("INSERT INTO cursors VALUES ('fold', 2)")
        for path in ("/readyz", "/admin/event-health"):
            (reader,) = (await client.get(path)).json()["readers"]
            assert (reader["name"], reader["ingressSequence"], reader["lagSequences"]) == ("fold", 2, 3)
            assert 0 < reader["lagSeconds"] < 60
        lag = reader["lagSeconds"]
        assert await sample(client, "tidelock_reader_sequence", reader="fold") == 2
        assert await sample(client, "tidelock_reader_lag_sequences", reader="fold") == 3
        assert lag <= await sample(client, "tidelock_reader_lag_seconds", reader="fold") < 60
        await connection.execute("UPDATE cursors SET sequence = 5")
        caught_up = {"name": "fold", "ingressSequence": 5, "lagSequences": 0, "lagSeconds": 0.0}
        assert (await client.get("/readyz")).json()["readers"] == [caught_up]


async def test_where_a_fold_is_needed_the_server_is_ready_while_one_runs(start: Start, database: Database) -> None:
    async with start(fold_needed=True) as server, httpx.AsyncClient(base_url=server.url) as client:
        with database.connect_sync() as elsewhere, server.ledger.database.connect_sync() as fold:
            # The fold of another database on the same server is none of ours.
            assert hold(elsewhere, READY)
            waiting = await client.get("/readyz")
            assert (waiting.status_code, waiting.headers["retry-after"]) == (503, "1")
            assert waiting.json()["head"] == {"ingressSequence": 0, "sourceTimestamp": "0"}
            assert [reader["name"] for reader in waiting.json()["readers"]] == ["fold"]
            # Everything else is answered meanwhile, and events are taken.
            for path in ("/admin/event-health", "/metrics", "/v1/counters"):
                assert (await client.get(path)).status_code == 200
            assert (await client.post("/v1/events", json={"stream": "s"})).status_code == 200
            assert hold(fold, READY)
            assert (await client.get("/readyz")).status_code == 200
            with server.ledger.database.connect_sync() as another:
                assert not hold(another, READY)
        assert (await client.get("/readyz")).status_code == 503


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_probes_may_ask_for_the_head_only(client: httpx.AsyncClient, path: str) -> None:
    response = await client.head(path)
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["content-length"] == str(len((await client.get(path)).content))
    refused = await client.delete(path)
    assert refused.status_code == 405
    assert refused.headers["allow"] == "GET, HEAD, OPTIONS"


async def test_verdicts_requests_and_commits_are_counted(start: Start) -> None:
    async with start() as server, httpx.AsyncClient(base_url=server.url) as client:
        event = {"stream": "s", "idempotencyKey": "k"}
        await client.post("/v1/events", json=[event, event, {**event, "stream": "t"}, {}, {"stream": "s"}])
        await client.post("/v1/events", content=b"{", headers={"content-type": "application/json"})
        await client.get("/nothing")
        await client.get("/v1/causality/one")
        await client.get("/v1/causality/two")
        for verdict, count in (("accepted", 2), ("duplicate", 1), ("conflict", 1), ("rejected", 1)):
            assert await sample(client, "tidelock_events_total", verdict=verdict) == count
        assert await sample(client, "tidelock_requests_total", route="/v1/events", status="200") == 1
        assert await sample(client, "tidelock_requests_total", route="/v1/events", status="400") == 1
        assert await sample(client, "tidelock_requests_total", route="none", status="404") == 1
        assert await sample(client, "tidelock_requests_total", route="/v1/causality/{key}") == 2
        assert await sample(client, "tidelock_request_seconds_count", route="/v1/events") == 2
        for path in ("/readyz", "/healthz", "/ws"):
            await client.get(path)
            assert await sample(client, "tidelock_requests_total", route=path) == 1
        assert await sample(client, "tidelock_commit_seconds_count") == 1
        assert await sample(client, "tidelock_commit_events_sum") == 2
        assert await sample(client, "tidelock_head_sequence") == 2
        assert await sample(client, "tidelock_queue_events") == 0
        assert await sample(client, "tidelock_feed_lag_events") == 0
        async with websockets.connect(server.url.replace("http", "ws") + "/ws"):
            assert await sample(client, "tidelock_ws_subscribers") == 1


async def test_metrics_are_in_openmetrics_for_who_asks_for_it(client: httpx.AsyncClient) -> None:
    prometheus_2 = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    asked = await client.get("/metrics", headers={"accept": prometheus_2})
    assert asked.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family.type for family in openmetrics.text_string_to_metric_families(asked.text)}
    assert (families["tidelock_events"], families["tidelock_late_dropped"]) == ("counter", "counter")
    for accept in ("", "*/*", "text/plain", "text/html"):
        plain = await client.get("/metrics", headers={"accept": accept})
        assert plain.headers["content-type"].startswith("text/plain")
        assert "# TYPE tidelock_events_total counter" in plain.text


@asynccontextmanager
async def away(postgres: EmbeddedPostgres, server: Serving) -> AsyncIterator[None]:
    """The server's database throws everybody out and lets nobody in, as one that restarts does."""
    name = server.ledger.database.url.rsplit("/", 1)[1]
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as connection:
        await connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        await connection.execute(kill, [name])
        try:
            yield
        finally:
            await connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


async def test_a_lost_database_is_503_until_it_is_back_and_nobody_has_to_restart_anything(
    start: Start, postgres: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        start(key_cache_s=0) as server,
        httpx.AsyncClient(base_url=server.url) as client,
        websockets.connect(server.url.replace("http", "ws") + "/ws?after=0") as tail,
    ):
        event = {"stream": "s", "idempotencyKey": "before"}
        assert (await client.post("/v1/events", json=event)).status_code == 200
        assert "before" in await asyncio.wait_for(tail.recv(), HANG_S)
        async with away(postgres, server):
            assert (await client.get("/healthz")).status_code == 200
            ready = await client.get("/readyz")
            assert ready.status_code == 503
            assert ready.json() == {"head": None, "readers": []}
            for method, path in (("POST", "/v1/events"), ("GET", "/admin/events"), ("GET", "/admin/event-health")):
                response = await client.request(method, path, json=event if method == "POST" else None)
                assert response.status_code == 503, path
                assert response.json()["error"]["code"] == "unavailable"
                assert response.headers["retry-after"] == "1"
            with pytest.raises(websockets.InvalidStatus) as refused:
                await websockets.connect(server.url.replace("http", "ws") + "/ws")
            assert refused.value.response.status_code == 503
        later = {**event, "idempotencyKey": "after"}
        async with asyncio.timeout(HANG_S):
            while (await client.post("/v1/events", json=later)).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            while (await client.get("/readyz")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert "after" in await asyncio.wait_for(tail.recv(), HANG_S)
        assert (await client.post("/v1/events", json=event)).json()["duplicates"] == 1
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_list_that_takes_long_holds_up_no_other_answer(start: Start) -> None:
    async with (
        start(read_connections_max=1) as server,
        httpx.AsyncClient(base_url=server.url) as client,
        await psycopg.AsyncConnection.connect(server.ledger.database.url) as holder,
    ):
        await holder.execute("LOCK TABLE events")
        lists = [asyncio.create_task(client.get("/admin/events")) for _ in range(3)]
        await until_waited_for(server.ledger.database)
        for path in ("/readyz", "/metrics", "/admin/event-health"):
            assert (await client.get(path)).status_code == 200
        assert not any(each.done() for each in lists)
        await holder.rollback()
        assert [(await each).status_code for each in lists] == [200, 200, 200]


async def test_a_ledger_that_hangs_is_reported_in_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelock.postgres.pool._ANSWER_S", 0.3)
    async with (
        start() as server,
        httpx.AsyncClient(base_url=server.url, timeout=HANG_S) as client,
        await psycopg.AsyncConnection.connect(server.ledger.database.url) as holder,
    ):
        await holder.execute("LOCK TABLE ledger_head")
        answers = await asyncio.gather(*(client.get("/readyz") for _ in range(8)))
        assert [answer.status_code for answer in answers] == [503] * 8
        await holder.rollback()
        assert (await client.get("/readyz")).status_code == 200


async def test_metrics_are_there_while_the_database_is_away(start: Start, postgres: EmbeddedPostgres) -> None:
    async with start() as server, httpx.AsyncClient(base_url=server.url) as client:
        await client.get("/metrics")
        async with away(postgres, server):
            assert (await client.get("/metrics")).status_code == 200
            assert (await client.get("/metrics", headers={"host": "evil.example"})).status_code == 403
            assert (await client.get("/metrics", headers={"authorization": "Bearer other"})).status_code == 503


async def test_stopping_answers_what_was_taken_and_takes_nothing_more(start: Start) -> None:
    starting = start()
    server = await starting.__aenter__()
    async with (
        httpx.AsyncClient(base_url=server.url) as client,
        await psycopg.AsyncConnection.connect(server.ledger.database.url) as holder,
    ):
        await holder.execute("SELECT 1 FROM ledger_head FOR UPDATE")
        waiting = asyncio.create_task(client.post("/v1/events", json={"stream": "s"}))
        await until_waited_for(server.ledger.database)
        stopping = asyncio.create_task(starting.__aexit__(None, None, None))
        async with asyncio.timeout(HANG_S):
            # It takes no more connections before it has answered what it took.
            while await is_there(server.url):  # noqa: ASYNC110  (nobody tells)
                await asyncio.sleep(0.01)
        assert not stopping.done()
        await holder.rollback()
        assert (await waiting).json()["accepted"] == 1
    await asyncio.wait_for(stopping, HANG_S)


async def test_a_port_that_is_taken_is_reported_before_anything_is_started(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SettingsError, match="choose another") as error:
        async with start(port=taken.getsockname()[1]):
            pass
    assert error.value.field == "port"


async def is_there(url: str) -> bool:
    """Whether a stranger gets a connection and an answer."""
    try:
        async with httpx.AsyncClient(base_url=url) as stranger:
            return (await stranger.get("/healthz")).status_code == 200
    except httpx.TransportError:
        return False
