"""API keys of subscribers: shown with the handshake or in `connection_init`, and looked at for as long as one stays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import websockets

from tests.graphql.served import FOLLOW, Served, serving
from tests.graphql.sockets import connected, opened
from tests.graphql.sse import streamed
from tests.http.test_access import bearer, make_key
from tests.javascript import CLIENTS, need_javascript
from tests.serving import Start
from tidelock.ledger.apikeys import list_keys, revoke_key


@pytest.fixture(scope="module")
async def keyed(start: Start) -> AsyncIterator[Served]:
    async with serving(start, key_cache_s=0) as served:
        await make_key(served.server, "nobody", ["triggers"])
        yield served


async def revoke(served: Served, tenant: str) -> None:
    """Every key of a tenant."""
    async with await served.server.ledger.database.connect() as connection:
        for key in await list_keys(connection):
            if key.tenant_id == tenant:
                await revoke_key(connection, key.id)


def rows(*messages: Any) -> list[tuple[str, str, str]]:
    return [tuple(message["others"]["data"].values()) for message in messages]


@pytest.mark.parametrize(
    "payload",
    [None, {}, {"authorization": None}, {"authorization": 5}, {"authorization": ""},
     {"authorization": "Bearer nothing"}, {"headers": None}, {"headers": {"authorization": "Bearer nothing"}},
     {"authorization": "Basic eDp5"}, {"key": "Bearer x"}],
    ids=str,
)  # fmt: skip
async def test_a_client_that_shows_no_good_key_is_not_let_in(keyed: Served, payload: Any) -> None:
    async with opened(keyed.url) as socket:
        await socket.say("connection_init", payload=payload)
        code, reason = await socket.closing()
        assert code == 4403
        assert "API key" in str(reason)


async def test_a_key_that_may_not_read_does_not_let_in(keyed: Served) -> None:
    key = await make_key(keyed.server, "t", ["ingest"])
    async with opened(keyed.url, headers=bearer(key)) as socket:
        await socket.say("connection_init")
        assert await socket.closing() == (4403, "this needs an API key with the scope read or triggers")


async def test_what_graphql_ws_sends_with_the_parameters_of_hasura_is_taken(keyed: Served, tenant: str) -> None:
    need_javascript()
    key = await make_key(keyed.server, tenant, ["read"])
    await keyed.put(tenant, a=1, b=2)
    query = "subscription ($least: bigint) { others(where: {n: {_gte: $least}}) { data { k } } }"
    command = ["node", str(CLIENTS / "hasura.mjs"), keyed.url, key, query, "2"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    told, _ = await process.communicate()
    assert [json.loads(line)["data"]["others"]["data"]["k"] for line in told.splitlines()] == ["a", "b"]


@pytest.mark.parametrize("way", ["header", "init", "Init", "Hasura"])
async def test_a_key_shows_the_rows_of_its_tenant_only(keyed: Served, tenant: str, way: str) -> None:
    other = f"{tenant}-other"
    key = await make_key(keyed.server, tenant, ["read"])
    await keyed.put(other, x=1)
    (first,) = await keyed.put(tenant, a=1)
    async with opened(keyed.url, headers=bearer(key) if way == "header" else None) as socket:
        name = "authorization" if way == "init" else "Authorization"
        shown = {} if way == "header" else {name: f"Bearer {key}"}
        await socket.init({"headers": shown} if way == "Hasura" else shown)
        await socket.subscribe(FOLLOW, "all")
        await socket.subscribe(FOLLOW, "other", where={"tenant_id": {"_eq": other}})
        await socket.subscribe(FOLLOW, "resumed", after=first)
        heard = {message["id"]: message["payload"]["data"] for message in [await socket.hear(), await socket.hear()]}
        assert rows(heard["all"], heard["resumed"]) == [(tenant, "a", "1")] * 2
        await keyed.put(other, x=2)
        await keyed.put(tenant, b=2)
        heard = {message["id"]: message["payload"]["data"] for message in [await socket.hear(), await socket.hear()]}
        assert rows(heard["all"], heard["resumed"]) == [(tenant, "b", "2")] * 2
        await socket.subscribe("{ others { tenant_id } }", "query")
        assert await socket.next("query") == {"others": [{"tenant_id": tenant}] * 2}


async def test_a_key_of_every_tenant_shows_all(keyed: Served, tenant: str) -> None:
    key = await make_key(keyed.server, "*", ["read"])
    async with opened(keyed.url, headers=bearer(key)) as socket:
        await socket.init()
        await socket.subscribe(FOLLOW, where={"k": {"_eq": tenant}})
        await keyed.until("view_subscribers", 1, 10, **bearer(key))
        await keyed.put("t", **{tenant: 1})
        await keyed.put("u", **{tenant: 2})
        assert rows(await socket.next(), await socket.next()) == [("t", tenant, "1"), ("u", tenant, "2")]


async def test_a_key_that_is_revoked_ends_who_came_with_it(start: Start) -> None:
    async with serving(start) as served:
        own, other = [await make_key(served.server, name, ["read"]) for name in ("t", "u")]
        async with (
            opened(served.url, headers=bearer(own)) as socket,
            opened(served.url, headers=bearer(other)) as neighbour,
            streamed(served.client, FOLLOW, headers=bearer(own)) as events,
        ):
            await socket.init()
            await neighbour.init()
            await revoke(served, "t")
            assert (await socket.closing())[0] == 4403
            assert (await events.errors())[0]["extensions"]["code"] == "unauthorized"
            assert await events.ended()
            await neighbour.subscribe("{ __typename }")
            assert await neighbour.next() == {"__typename": "Query"}


async def test_the_first_key_ends_those_who_came_without(start: Start) -> None:
    async with serving(start) as served, connected(served.url) as socket:
        await make_key(served.server, "t", ["read"])
        assert (await socket.closing())[0] == 4403


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
async def test_without_keys_other_peoples_web_pages_are_not_let_in(start: Start, origin: str) -> None:
    async with serving(start) as served:
        with pytest.raises(websockets.InvalidStatus) as refused:
            await opened(served.url, headers={"origin": origin}).__aenter__()
        assert refused.value.response.status_code == 403


async def test_a_tenant_has_a_limited_number_of_clients(start: Start) -> None:
    async with serving(start, live_connections_max=2) as served:
        own, other = [await make_key(served.server, name, ["read"]) for name in ("t", "u")]
        async with (
            opened(served.url, headers=bearer(own)) as first,
            streamed(served.client, FOLLOW, headers=bearer(own)),
        ):
            await first.init()
            async with opened(served.url, headers=bearer(own)) as third:
                await third.say("connection_init")
                assert (await third.closing())[0] == 1013
            response = await served.client.post(
                "/graphql", json={"query": FOLLOW}, headers={**bearer(own), "accept": "text/event-stream"}
            )
            assert (response.status_code, response.json()["error"]["code"]) == (429, "overloaded")
            async with opened(served.url, headers=bearer(other)) as neighbour:
                await neighbour.init()
        async with opened(served.url, headers=bearer(own)) as fourth:
            await fourth.init()
