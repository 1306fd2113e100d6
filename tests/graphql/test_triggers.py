"""Triggers by every way to GraphQL: clients that stay make, list and end them too."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.graphql.served import FOLLOW
from tests.graphql.sockets import Socket, connected
from tests.graphql.sse import Events, streamed
from tests.http.test_access import bearer, make_key
from tests.serving import Start
from tests.views.folding import DEFINITIONS
from tidelock.app import Serving

CREATE = """mutation ($trigger: String!, $match: json!) {
    create_trigger(name: $trigger, table: "others", match: $match, webhook: "https://example.com/hook") {
        __typename name tenantId tenant_id match enabled createdSequence created_sequence secrets } }"""
DELETE = "mutation ($trigger: String!) { delete_trigger(name: $trigger) { name } }"
LIST = "{ triggers { name secrets } }"
MATCH = {"n": {"_gt": 10}}


@pytest.fixture(scope="module")
async def served(start: Start) -> AsyncIterator[Serving]:
    async with start(definitions=DEFINITIONS) as server:
        yield server


@pytest.fixture(scope="module")
async def keyed(start: Start) -> AsyncIterator[Serving]:
    async with start(definitions=DEFINITIONS) as server:
        await make_key(server, "*", ["read"])
        yield server


@pytest.fixture
async def client(served: Serving) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=served.url) as opened:
        yield opened


async def asked(socket: Socket, query: str, **variables: Any) -> Any:
    """The data that one operation gives, which is then complete."""
    await socket.subscribe(query, **variables)
    data = await socket.next()
    assert await socket.hear() == {"id": "1", "type": "complete"}
    return data


async def test_triggers_are_made_listed_and_ended_by_websocket(served: Serving, client: httpx.AsyncClient) -> None:
    async with connected(served.url) as socket:
        made = (await asked(socket, CREATE, trigger="by_socket", match=MATCH))["create_trigger"]
        assert made.pop("secrets")[0].startswith("whsec_")
        sequence = made.pop("createdSequence")
        assert made == {
            "__typename": "trigger", "name": "by_socket", "tenantId": "default", "tenant_id": "default",
            "match": MATCH, "enabled": True, "created_sequence": sequence,
        }  # fmt: skip
        assert {"name": "by_socket", "secrets": None} in (await asked(socket, LIST))["triggers"]
        assert (await client.get("/v1/triggers/by_socket")).json()["createdSequence"] == int(sequence)
        await socket.subscribe(CREATE, trigger="by_socket", match=MATCH)
        assert (await socket.error())["extensions"]["code"] == "exists"
        await socket.subscribe(CREATE, trigger="other", match={"m": {"_gt": 1}})
        assert (await socket.error())["extensions"]["field"] == "match.m"
        assert await asked(socket, DELETE, trigger="by_socket") == {"delete_trigger": {"name": "by_socket"}}
        await socket.subscribe(DELETE, trigger="by_socket")
        assert (await socket.error())["extensions"]["code"] == "not_found"


@pytest.mark.parametrize("accept", ["application/json", "application/graphql-response+json"])
async def test_what_a_mutation_is_refused_for_is_told_as_its_error(client: httpx.AsyncClient, accept: str) -> None:
    """By a status other than 200 many clients would not look for it."""

    async def code(query: str, **variables: Any) -> str:
        body = {"query": query, "variables": variables}
        answer = await client.post("/graphql", json=body, headers={"accept": accept})
        assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (200, accept)
        told = answer.json()
        assert (set(told), told["data"]) == ({"data", "errors"}, None)
        return str(told["errors"][0]["extensions"]["code"])

    made = {"query": CREATE, "variables": {"trigger": "twice", "match": MATCH}}
    assert "errors" not in (await client.post("/graphql", json=made)).json()
    assert await code(CREATE, trigger="twice", match=MATCH) == "exists"
    assert await code(CREATE, trigger="wrong", match={"m": {"_gt": 1}}) == "invalid_definition"
    assert await code(DELETE, trigger="wrong") == "not_found"
    assert (await client.delete("/v1/triggers/twice")).status_code == 204


async def test_triggers_are_made_listed_and_ended_by_events(client: httpx.AsyncClient) -> None:
    async with streamed(client, CREATE, trigger="by_events", match=MATCH) as events:
        assert (await events.data())["create_trigger"]["match"] == MATCH
        assert await events.ended()
    async with streamed(client, LIST) as events:
        assert {"name": "by_events", "secrets": None} in (await events.data())["triggers"]
    async with streamed(client, DELETE, trigger="by_events") as events:
        assert await events.data() == {"delete_trigger": {"name": "by_events"}}


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
async def test_nothing_is_made_by_a_link(client: httpx.AsyncClient, accept: str) -> None:
    params = {"query": CREATE, "variables": json.dumps({"trigger": "by_link", "match": MATCH})}
    async with client.stream("GET", "/graphql", params=params, headers={"accept": accept}) as response:
        if accept == "application/json":
            error = json.loads(await response.aread())["errors"][0]
        else:
            (error,) = await Events(response).errors()
    assert "POST" in error["message"]
    assert (await client.get("/v1/triggers/by_link")).status_code == 404


async def test_the_scope_of_triggers_is_enough_for_them_and_for_nothing_else(keyed: Serving) -> None:
    key = bearer(await make_key(keyed, "t", ["triggers"]))
    async with connected(keyed.url, headers=key) as socket:
        made = (await asked(socket, CREATE, trigger="scoped", match=MATCH))["create_trigger"]
        assert made["tenantId"] == "t"
        for query in (
            FOLLOW,
            "{ others { k } }",
            "{ triggers { name } others { k } }",
            "{ __schema { types { name } } }",
        ):
            await socket.subscribe(query)
            assert (await socket.error())["extensions"]["code"] == "forbidden"
    async with httpx.AsyncClient(base_url=keyed.url, headers=key) as client:
        listed = await client.post("/graphql", json={"query": LIST})
        assert listed.json() == {"data": {"triggers": [{"name": "scoped", "secrets": None}]}}
        assert (await client.post("/graphql", json={"query": "{ others { k } }"})).status_code == 403
        async with streamed(client, FOLLOW) as events:
            assert (await events.errors())[0]["extensions"]["code"] == "forbidden"


async def test_a_client_that_only_reads_makes_no_trigger_by_any_way(keyed: Serving) -> None:
    key = bearer(await make_key(keyed, "t", ["read"]))
    async with connected(keyed.url, headers=key) as socket:
        await socket.subscribe(CREATE, trigger="unscoped", match=MATCH)
        assert (await socket.error())["extensions"]["code"] == "forbidden"
        await socket.subscribe(LIST)
        assert (await socket.error())["extensions"]["code"] == "forbidden"
    async with (
        httpx.AsyncClient(base_url=keyed.url, headers=key) as client,
        streamed(client, CREATE, trigger="unscoped", match=MATCH) as events,
    ):
        assert (await events.errors())[0]["extensions"]["code"] == "forbidden"


async def test_a_condition_on_a_variable_that_is_not_there_is_not_left_out(client: httpx.AsyncClient) -> None:
    query = """mutation ($least: bigint) {
        create_trigger(name: "all", table: "others", match: {n: {_gt: $least}}, webhook: "https://example.com") { name }
    }"""
    answer = (await client.post("/graphql", json={"query": query})).json()
    assert answer["errors"][0]["extensions"] == {"code": "invalid_definition", "field": "match"}
    made = (await client.post("/graphql", json={"query": query, "variables": {"least": 5}})).json()
    assert made == {"data": {"create_trigger": {"name": "all"}}}
