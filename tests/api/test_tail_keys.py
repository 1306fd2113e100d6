"""API keys on `/ws`: shown with the handshake or in the first frame, and looked at for as long as one follows."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest
import websockets
from websockets.asyncio.client import ClientConnection

from tests.budgets import HANG_S
from tests.http.test_access import bearer, make_key, revoke_all
from tests.serving import Start
from tidelock.app import Serving
from tidelock.ledger.apikeys import hash_key

EVENT = {"stream": "s"}


def tail_of(server: Serving, query: str = "", key: str | None = None) -> websockets.connect:
    headers = {} if key is None else bearer(key)
    return websockets.connect(server.url.replace("http", "ws") + "/ws" + query, additional_headers=headers)


async def closing(tail: ClientConnection, seconds: float = HANG_S) -> int | None:
    """The code that the server closes with."""
    await asyncio.wait_for(tail.wait_closed(), seconds)
    return tail.close_code


def init(key: str) -> str:
    return json.dumps({"type": "connection_init", "payload": {"authorization": f"Bearer {key}"}})


async def test_a_tail_opened_without_keys_ends_with_the_first_key(start: Start) -> None:
    async with start(key_cache_s=60) as server, tail_of(server) as tail:
        await make_key(server, "t", ["read"])
        assert await closing(tail) == 4401


async def test_a_tail_ends_when_its_key_comes_to_mean_one_tenant(start: Start) -> None:
    async with start(key_cache_s=60) as server, tail_of(server, key="known") as every, tail_of(
        server, "?tenantId=t", key="known"
    ) as one:  # fmt: skip
        async with await server.ledger.database.connect() as connection:
            # By hand, so that nobody is told: the regular look finds it.
            await connection.execute(
                "INSERT INTO api_keys (id, key_hash, tenant_id, scopes) VALUES ('k', %s, 't', '{read,ingest}')",
                [hash_key(b"known")],
            )
        assert await closing(every) == 4401
        async with httpx.AsyncClient(base_url=server.url, headers=bearer("known")) as client:
            await client.post("/v1/events", json=EVENT)
        assert json.loads(await asyncio.wait_for(one.recv(), HANG_S))["tenantId"] == "t"


@pytest.mark.usefixtures("_deaf")
async def test_a_client_that_keeps_talking_is_looked_at_too(start: Start) -> None:
    async with start(key_cache_s=0) as server:
        key = await make_key(server, "t", ["read"])
        async with tail_of(server, key=key) as tail:

            async def talk() -> None:
                while True:
                    await tail.send("hello")
                    await asyncio.sleep(0.02)

            talking = asyncio.create_task(talk())
            await revoke_all(server)
            assert await closing(tail) == 4401
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)


@pytest.mark.parametrize("flat", [False, True])
async def test_a_key_may_come_in_the_first_frame(start: Start, flat: bool) -> None:
    async with start() as server, httpx.AsyncClient(base_url=server.url) as client:
        own, other = [await make_key(server, name, ["ingest", "read"]) for name in ("t", "u")]
        await client.post("/v1/events", json=EVENT, headers=bearer(other))
        await client.post("/v1/events", json=EVENT, headers=bearer(own))
        async with tail_of(server, "?after=0") as tail:
            await tail.send(json.dumps({"authorization": f"Bearer {own}"}) if flat else init(own))
            assert json.loads(await asyncio.wait_for(tail.recv(), HANG_S))["tenantId"] == "t"
            await client.post("/v1/events", json=EVENT, headers=bearer(other))
            await client.post("/v1/events", json=EVENT, headers=bearer(own))
            assert json.loads(await asyncio.wait_for(tail.recv(), HANG_S))["ingressSequence"] == 4
            await revoke_all(server)
            assert await closing(tail) == 4401


@pytest.mark.parametrize(
    "frame",
    [
        "", "hello", "[]", "null", "{}", b"{}", init("unknown"), init(""), '{"type":"connection_init"}',
        '{"type":"connection_init","payload":null}', '{"authorization":5}', '{"authorization":"Basic eDp5"}',
        '{"type":"subscribe","payload":{"authorization":"Bearer x"}}', "[" * 10_000,
    ],
    ids=lambda frame: str(frame)[:40],
)  # fmt: skip
async def test_a_first_frame_without_a_key_is_the_end(keyed: Serving, frame: str | bytes) -> None:
    async with tail_of(keyed) as tail:
        await tail.send(frame)
        assert await closing(tail) == 4401


@pytest.fixture(scope="module")
async def keyed(start: Start) -> Any:
    async with start(ws_connections_max=1) as server:
        await make_key(server, "t", ["triggers"])
        yield server


async def test_a_key_that_may_not_read_is_refused_in_the_first_frame_too(keyed: Serving) -> None:
    async with tail_of(keyed) as tail:
        await tail.send(init(await make_key(keyed, "t", ["ingest"])))
        assert await closing(tail) == 4401
    async with tail_of(keyed, "?tenantId=u") as tail:
        await tail.send(init(await make_key(keyed, "t", ["read"])))
        assert await closing(tail) == 4401


async def test_a_client_that_shows_no_key_in_time_is_sent_away(keyed: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelock.api.events._INTRODUCTION_S", 0.3)
    started = time.monotonic()
    async with tail_of(keyed) as tail:
        assert await closing(tail) == 4401
    assert time.monotonic() - started >= 0.3


async def test_a_client_that_has_shown_no_key_takes_no_place_from_those_who_have(keyed: Serving) -> None:
    key = await make_key(keyed, "t", ["read"])
    async with tail_of(keyed) as stranger:
        with pytest.raises(websockets.InvalidStatus) as refused:
            await tail_of(keyed)
        assert refused.value.response.status_code == 429
        async with tail_of(keyed, key=key):
            await stranger.send(init(key))
            assert await closing(stranger) == 1013


async def test_wrong_parameters_are_reported_before_the_handshake_with_keys_too(keyed: Serving) -> None:
    with pytest.raises(websockets.InvalidStatus) as refused:
        await tail_of(keyed, "?after=x")
    assert refused.value.response.status_code == 400
