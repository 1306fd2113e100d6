"""Server-sent events, as graphql-sse has them: one operation a request, errors as events, and an end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest

from tests.budgets import HANG_S
from tests.graphql.served import FOLLOW, Served, serving
from tests.graphql.sse import Events, streamed
from tests.graphql.test_ws_subscriptions import event, of
from tests.http.test_access import make_key
from tests.serving import Start


@pytest.fixture(scope="module")
async def served(start: Start) -> AsyncIterator[Served]:
    async with serving(start) as opened:
        yield opened


async def test_rows_come_first_and_then_what_becomes_of_them(served: Served, tenant: str) -> None:
    (first,) = await served.put(tenant, a=1)
    async with streamed(served.client, FOLLOW, **of(tenant)) as events:
        assert await events.data() == event("INSERT", first, "a", 1, tenant)
        (second,) = await served.put(tenant, a=2)
        assert await events.data() == event("UPDATE", second, "a", 2, tenant, fields=("n",))
        assert events.response.headers["cache-control"] == "no-cache, no-transform"
    await served.until("view_subscribers", 0)
    await served.until("live_connections", 0)


async def test_the_browsers_own_client_asks_by_get(served: Served, tenant: str) -> None:
    (first,) = await served.put(tenant, a=1)
    params = {"query": FOLLOW, "variables": json.dumps(of(tenant))}
    headers = {"accept": "text/event-stream"}
    async with served.client.stream("GET", "/graphql", params=params, headers=headers) as response:
        assert await Events(response).data() == event("INSERT", first, "a", 1, tenant)


async def test_a_client_that_comes_back_continues_where_it_was(served: Served, tenant: str) -> None:
    _, second = await served.put(tenant, a=1, b=2)
    async with streamed(served.client, FOLLOW, **of(tenant), after=second) as events:
        assert await events.data() == event("INSERT", second, "b", 2, tenant)


async def test_a_query_is_one_event_and_the_end(served: Served) -> None:
    async with streamed(served.client, "{ __typename }") as events:
        assert await events.data() == {"__typename": "Query"}
        assert await events.ended()


@pytest.mark.parametrize(
    ("query", "code"),
    [("subscription {", "parse_failed"), ("subscription { nothing }", "validation_failed"),
     ('subscription { others(where: {n: {_eq: "x"}}) { operation } }', "invalid_definition"),
     ('subscription { others(after: "x") { operation } }', "invalid_argument")],
)  # fmt: skip
async def test_a_bad_document_is_reported_by_an_event(served: Served, query: str, code: str) -> None:
    async with streamed(served.client, query) as events:
        assert {error["extensions"]["code"] for error in await events.errors()} == {code}
        assert await events.ended()


async def test_what_is_not_a_request_is_reported_by_a_status(served: Served) -> None:
    headers = {"accept": "text/event-stream", "content-type": "application/json"}
    response = await served.client.post("/graphql", content=b"{", headers=headers)
    assert response.status_code == 400


async def test_without_a_key_nothing_is_streamed(start: Start) -> None:
    async with serving(start) as served:
        await make_key(served.server, "t", ["ingest"])
        headers = {"accept": "text/event-stream"}
        response = await served.client.post("/graphql", json={"query": FOLLOW}, headers=headers)
        assert response.status_code == 401


async def test_a_client_that_hears_nothing_gets_a_comment_now_and_then(start: Start) -> None:
    async with serving(start, live_keep_alive=200_000_000) as served, streamed(served.client, FOLLOW) as events:
        with pytest.raises(TimeoutError):
            await events.next(1)
        assert events.comments >= 3


async def test_a_stream_does_not_hold_up_the_servers_end(start: Start) -> None:
    async with AsyncExitStack() as clients:
        async with serving(start) as served:
            client = await clients.enter_async_context(httpx.AsyncClient(base_url=served.url))
            events = await clients.enter_async_context(streamed(client, FOLLOW))
            await served.until("view_subscribers", 1)
            started = time.monotonic()
        assert time.monotonic() - started < HANG_S
        # Without `complete`: it is to be resumed.
        with pytest.raises((EOFError, httpx.TransportError)):
            await asyncio.wait_for(events.next(), HANG_S)
