"""`/ws`: live events, filtered and resumed by sequence, to clients of every speed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import websockets
from websockets.asyncio.client import ClientConnection

from tests.budgets import HANG_S
from tests.serving import Start
from tidelock.app import Serving

Json = dict[str, Any]


def tail_of(server: Serving, query: str = "", **options: Any) -> websockets.connect:
    return websockets.connect(server.url.replace("http", "ws") + "/ws" + query, **options)


async def receive(tail: ClientConnection, count: int) -> list[Json]:
    frames = [await asyncio.wait_for(tail.recv(), HANG_S) for _ in range(count)]
    assert all(isinstance(frame, str) for frame in frames), "events come in text frames"
    return [json.loads(frame) for frame in frames]


async def record(client: httpx.AsyncClient, tenant: str, *events: Json) -> list[int]:
    answer = await client.post("/v1/events", json=[{"tenantId": tenant, "stream": "s", **event} for event in events])
    return [result["ingressSequence"] for result in answer.json()["results"]]


async def test_from_now_on_every_event_comes_as_the_lists_show_it(
    server: Serving, client: httpx.AsyncClient, tenant: str
) -> None:
    await record(client, tenant, {"data": "before"})
    async with tail_of(server, f"?tenantId={tenant}") as tail:
        recorded = await record(client, tenant, {"ts": "2026-01-02T00:00:00Z"}, {"ts": "2026-01-01T00:00:00Z"})
        recorded += await record(client, tenant, {"quantity": "1.50", "data": {"a": [1.0]}})
        seen = await receive(tail, 3)
    assert [event["ingressSequence"] for event in seen] == recorded
    listed = (await client.get("/admin/events", params={"tenantId": tenant, "after": recorded[0] - 1})).json()["items"]
    assert seen == listed


async def test_after_a_sequence_everything_above_it_comes_then_what_is_new(
    server: Serving, client: httpx.AsyncClient, tenant: str
) -> None:
    recorded = await record(client, tenant, *({"data": number} for number in range(30)))
    async with tail_of(server, f"?tenantId={tenant}&after={recorded[9]}") as tail:
        assert [event["data"] for event in await receive(tail, 20)] == list(range(10, 30))
        await record(client, tenant, {"data": "new"})
        assert (await receive(tail, 1))[0]["data"] == "new"


async def test_filters_are_those_of_the_lists(server: Serving, client: httpx.AsyncClient, tenant: str) -> None:
    query = f"?tenantId={tenant}&stream=a&customerRef=x%20y&causalityKey=run%2F1"
    async with tail_of(server, query) as tail:
        match = {"stream": "a", "customerRef": "x y", "causalityKey": "run/1"}
        await record(client, tenant, match, {**match, "stream": "b"}, {**match, "customerRef": None}, {"stream": "a"})
        (last,) = await record(client, tenant, match)
        seen = await receive(tail, 2)
    assert seen[1]["ingressSequence"] == last
    assert {event["customerRef"] for event in seen} == {"x y"}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("?after=x", "after"),
        ("?after=-1", "after"),
        ("?strem=a", "strem"),
        ("?stream=", "stream"),
        ("?limit=1", "limit"),
    ],
)
async def test_wrong_parameters_are_reported_before_the_handshake(server: Serving, query: str, field: str) -> None:
    with pytest.raises(websockets.InvalidStatus) as refused:
        await tail_of(server, query)
    assert refused.value.response.status_code == 400
    assert refused.value.response.headers["content-type"] == "application/json"
    assert json.loads(refused.value.response.body or b"")["error"]["field"] == field


async def test_there_is_nothing_to_follow_elsewhere(server: Serving) -> None:
    with pytest.raises(websockets.InvalidStatus) as refused:
        await websockets.connect(server.url.replace("http", "ws") + "/nothing")
    assert refused.value.response.status_code == 404


async def test_what_a_client_says_is_ignored(server: Serving, client: httpx.AsyncClient, tenant: str) -> None:
    async with tail_of(server, f"?tenantId={tenant}") as tail:
        for _ in range(5):
            await tail.send("hello")
            await tail.send(b"\xff")
        await record(client, tenant, {})
        assert len(await receive(tail, 1)) == 1


async def test_compression_is_not_negotiated(server: Serving) -> None:
    async with tail_of(server, compression="deflate") as tail:
        assert tail.protocol.extensions == []


async def test_more_clients_than_allowed_are_asked_to_come_back(start: Start) -> None:
    async with (
        start(ws_connections_max=1, retry_after_s=3) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        async with tail_of(server):
            with pytest.raises(websockets.InvalidStatus) as refused:
                await tail_of(server)
            assert refused.value.response.status_code == 429
            assert refused.value.response.headers["retry-after"] == "3"
        await followers(client, 0)
        async with tail_of(server):
            pass


async def test_a_dead_client_is_found_by_its_silence_and_gives_its_place_back(start: Start) -> None:
    async with (
        start(ws_connections_max=1, ws_ping_s=0.2) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"GET /ws HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        assert b"101" in await reader.readline()
        await followers(client, 0)  # pings go unanswered
        async with tail_of(server):
            pass
        writer.close()


async def test_the_servers_end_closes_every_tail_in_good_order(start: Start) -> None:
    async with start() as server:
        tails = [await tail_of(server, "?after=0") for _ in range(3)]
    for tail in tails:
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await asyncio.wait_for(tail.recv(), HANG_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012


@asynccontextmanager
async def stuck(server: Serving, query: str) -> AsyncIterator[socket.socket]:
    """A client that says it follows and then does not read."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, (host, int(port)))
        request = (
            f"GET /ws{query} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            "sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        await loop.sock_sendall(client, request.encode())
        yield client


async def test_a_client_that_does_not_read_costs_the_others_nothing_and_loses_its_place(start: Start) -> None:
    async with (
        start(ws_queue_events_max=10, ws_ping_s=0.5) as server,
        httpx.AsyncClient(base_url=server.url) as client,
        tail_of(server, "?after=0", max_queue=None) as tail,
        stuck(server, "?after=0"),
    ):
        await followers(client, 2)
        for _ in range(10):
            await record(client, "t", *({"data": "x" * 10_000} for _ in range(100)))
        seen = await receive(tail, 1000)
        assert [event["ingressSequence"] for event in seen] == list(range(1, 1001))
        await followers(client, 1)


async def test_a_client_that_does_not_read_does_not_hold_up_the_servers_end(start: Start) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with start() as server, httpx.AsyncClient(base_url=server.url) as client:
            await stack.enter_async_context(stuck(server, "?after=0"))
            reading = await stack.enter_async_context(tail_of(server, "?after=0", max_queue=None))
            await followers(client, 2)
            for _ in range(10):
                await record(client, "t", *({"data": "x" * 10_000} for _ in range(100)))
            await receive(reading, 1000)
            started = time.monotonic()
        assert time.monotonic() - started < HANG_S


async def followers(client: httpx.AsyncClient, count: int) -> None:
    """Wait until so many follow."""
    async with asyncio.timeout(HANG_S):
        while f"tidelock_ws_subscribers {count}.0" not in (await client.get("/metrics")).text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_slow_and_fast_clients_see_every_event_once_while_writers_write(start: Start) -> None:
    async with start(ws_queue_events_max=8) as server, httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        await record(client, "t", *({"data": number} for number in range(300)))

        async def write(writer: int) -> None:
            for turn in range(30):
                await record(client, "t", *({"data": f"{writer}.{turn}"} for _ in range(1 + 20 * (turn % 2))))

        async def follow(after: int, pause_s: float) -> list[int]:
            seen: list[Any] = []
            async with tail_of(server, f"?tenantId=t&after={after}", max_queue=2) as tail:
                while not seen or seen[-1] < total:
                    event = json.loads(await asyncio.wait_for(tail.recv(), HANG_S))
                    seen.append(event["ingressSequence"])
                    if len(seen) % 20 == 0:
                        await asyncio.sleep(pause_s)
            return seen

        total = 300 + 4 * 15 * (1 + 21)
        starts = [(0, 0.0), (0, 0.01), (150, 0.0), (299, 0.005), (300, 0.02)]
        following = [asyncio.create_task(follow(after, pause_s)) for after, pause_s in starts]
        await asyncio.gather(*(write(writer) for writer in range(4)))
        for (after, _), task in zip(starts, following, strict=True):
            assert await task == list(range(after + 1, total + 1))


async def test_events_of_another_process_on_the_same_ledger_come_too(start: Start) -> None:
    async with (
        start() as one,
        start(database_url=one.ledger.database.url) as other,
        tail_of(one) as tail,
        httpx.AsyncClient(base_url=other.url) as client,
    ):
        await record(client, "t", {"data": "from there"})
        assert (await receive(tail, 1))[0]["data"] == "from there"
