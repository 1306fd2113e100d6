"""Subscriptions by WebSocket: what comes, what ends one of them, and what ends all of a client's."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.budgets import HANG_S
from tests.graphql.served import FOLLOW, Served, serving
from tests.graphql.sockets import connected
from tests.serving import Start
from tests.views.folding import STREAMS
from tidelock.definitions import parse_definitions


@pytest.fixture(scope="module")
async def served(start: Start) -> AsyncIterator[Served]:
    async with serving(start) as opened:
        yield opened


def event(operation: str, time: str, k: str, n: int, tenant: str, fields: tuple[str, ...] = ("k", "n")) -> Any:
    row = {"tenant_id": tenant, "k": k, "n": str(n)}
    return {"others": {"operation": operation, "fields": list(fields), "ts_timestamp": time, "data": row}}


def of(tenant: str, **more: Any) -> dict[str, Any]:
    return {"where": {"tenant_id": {"_eq": tenant}, **more}}


async def test_rows_come_first_and_then_what_becomes_of_them(served: Served, tenant: str) -> None:
    first, second = await served.put(tenant, a=1, b=2)
    async with connected(served.url) as socket:
        await socket.subscribe(FOLLOW, **of(tenant))
        assert [await socket.next(), await socket.next()] == [
            event("INSERT", first, "a", 1, tenant),
            event("INSERT", second, "b", 2, tenant),
        ]
        (third,) = await served.put(tenant, a=3)
        assert await socket.next() == event("UPDATE", third, "a", 3, tenant=tenant, fields=("n",))
        (fourth,) = await served.put(tenant, b=None)
        assert await socket.next() == event("DELETE", fourth, "b", 2, tenant=tenant, fields=("k",))


async def test_a_filter_decides_who_hears_of_what(served: Served, tenant: str) -> None:
    async with connected(served.url) as socket:
        await socket.subscribe(FOLLOW, "large", **of(tenant, n={"_gte": "10"}))
        await socket.subscribe(FOLLOW, "small", **of(tenant, n={"_lt": "10"}))
        await served.until("view_subscribers", 2)
        (at,) = await served.put(tenant, a=1)
        assert await socket.next("small") == event("INSERT", at, "a", 1, tenant)
        (at,) = await served.put(tenant, a=11)
        heard = {message["id"]: message["payload"]["data"] for message in [await socket.hear(), await socket.hear()]}
        assert heard == {
            "small": event("DELETE", at, "a", 1, tenant=tenant, fields=("k",)),
            "large": event("INSERT", at, "a", 11, tenant),
        }


async def test_a_client_that_comes_back_continues_where_it_was(served: Served, tenant: str) -> None:
    _, second, third = await served.put(tenant, a=1, b=2, c=3)
    async with connected(served.url) as socket:
        await socket.subscribe(FOLLOW, **of(tenant), after=second)
        assert await socket.next() == event("INSERT", second, "b", 2, tenant)
        assert await socket.next() == event("INSERT", third, "c", 3, tenant)
        (fourth,) = await served.put(tenant, a=4)
        assert await socket.next() == event("UPDATE", fourth, "a", 4, tenant=tenant, fields=("n",))


async def test_a_client_that_completes_hears_no_more_and_leaves_nothing(served: Served, tenant: str) -> None:
    async with connected(served.url) as socket:
        await socket.subscribe(FOLLOW, **of(tenant))
        await served.until("view_subscribers", 1)
        await socket.say("complete", id="1")
        await served.until("view_subscribers", 0)
        await served.put(tenant, a=1)
        assert await socket.silent()
        assert await served.metric("views") == 0


async def test_a_client_that_goes_leaves_nothing(served: Served, tenant: str) -> None:
    async with connected(served.url) as socket:
        for number in range(5):
            await socket.subscribe(FOLLOW, str(number), **of(tenant))
        await served.until("view_subscribers", 5)
        assert await served.metric("views") == 1
        assert await served.metric("live_connections") == 1
    await served.until("view_subscribers", 0)
    await served.until("live_connections", 0)


def nested(depth: int) -> Any:
    where: Any = {"n": {"_eq": "1"}}
    for _ in range(depth):
        where = {"_not": where}
    return where


def inline(where: str) -> str:
    return "subscription { others(where: " + where + ") { operation } }"


BAD: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "not a document": ("subscription {", {}, "parse_failed"),
    "nothing": ("", {}, "parse_failed"),
    "an unknown table": ("subscription { nothing { operation } }", {}, "validation_failed"),
    "an unknown field": ("subscription { others { operation nothing } }", {}, "validation_failed"),
    "an unknown column": ("subscription { others { data { nothing } } }", {}, "validation_failed"),
    "no selection": ("subscription { others }", {}, "validation_failed"),
    "two tables at once": ("subscription { others { operation } things { operation } }", {}, "validation_failed"),
    "two operations, none named": ("query a { __typename } query b { __typename }", {}, "validation_failed"),
    "a filter on ts_timestamp": (inline('{ts_timestamp: {_gt: "1"}}'), {}, "validation_failed"),
    "a variable filter on ts_timestamp": (FOLLOW, {"where": {"ts_timestamp": {"_gt": "1"}}}, "invalid_variables"),
    "a filter of another type": (inline("{n: {_eq: true}}"), {}, "invalid_definition"),
    "a variable of another type": (FOLLOW, {"where": {"n": {"_eq": "one"}}}, "invalid_definition"),
    "a null operand": (FOLLOW, {"where": {"n": {"_eq": None}}}, "invalid_definition"),
    "a time that is none": (FOLLOW, {"after": "yesterday"}, "invalid_argument"),
    "10,000 deep in the document": (inline("{_not: " * 10_000 + "{}" + "}" * 10_000), {}, None),
    "10,000 deep in a variable": (FOLLOW, {"where": nested(10_000)}, None),
    "500 deep in a variable": (FOLLOW, {"where": nested(500)}, None),
    "too long": ("subscription { others { operation } } #" + "x" * 70_000, {}, "limit_exceeded"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_operation_ends_alone(served: Served, tenant: str, name: str) -> None:
    document, variables, code = BAD[name]
    async with connected(served.url) as socket:
        await socket.subscribe(FOLLOW, "good", **of(tenant))
        await served.until("view_subscribers", 1)
        # By hand, because encoders recurse too.
        payload = f'{{"query":{json.dumps(document)},"variables":{deep_json(variables)}}}'
        await socket.connection.send(f'{{"type":"subscribe","id":"bad","payload":{payload}}}')
        message = await socket.hear(10)
        assert (message["type"], message["id"]) == ("error", "bad")
        codes = {error["extensions"]["code"] for error in message["payload"]}
        assert code is None or codes == {code}, message
        assert all(error["message"] for error in message["payload"])
        (at,) = await served.put(tenant, a=1)
        assert await socket.next("good") == event("INSERT", at, "a", 1, tenant)


def deep_json(variables: dict[str, Any]) -> str:
    where = variables.get("where")
    depth = 0
    while isinstance(where, dict) and "_not" in where:
        where, depth = where["_not"], depth + 1
    if not depth:
        return json.dumps(variables)
    return '{"where":' + '{"_not":' * depth + json.dumps(where) + "}" * (depth + 1)


async def test_a_connection_has_a_limited_number_of_operations(start: Start) -> None:
    async with serving(start, live_subscriptions_max=2) as served, connected(served.url) as socket:
        for name in ("a", "b"):
            await socket.subscribe(FOLLOW, name)
        await socket.subscribe(FOLLOW, "c")
        error = await socket.error("c")
        assert error["extensions"]["code"] == "limit_exceeded"
        await socket.say("complete", id="a")
        await socket.subscribe(FOLLOW, "c")
        await served.until("view_subscribers", 2)
        (at,) = await served.put(x=1)
        heard = [await socket.hear(), await socket.hear()]
        assert {message["id"] for message in heard} == {"b", "c"}
        assert {message["payload"]["data"]["others"]["ts_timestamp"] for message in heard} == {at}


async def test_what_is_not_kept_any_more_cannot_be_resumed(start: Start) -> None:
    async with serving(start, changes_retention=15) as served, connected(served.url) as socket:
        (at,) = await served.put(a=1)
        await socket.subscribe(FOLLOW, "kept", after=str(int(at) - 15))
        assert (await socket.next("kept"))["others"]["ts_timestamp"] == at
        # Before that it is refused although nothing was pruned yet: it might be at any moment.
        for name, after in (("older", str(int(at) - 16)), ("oldest", "0")):
            await socket.subscribe(FOLLOW, name, after=after)
            assert (await socket.error(name))["extensions"]["code"] == "resume_expired"
        async with await served.server.ledger.database.connect() as connection:
            await connection.execute("UPDATE changes_pruned SET source_timestamp = %s", [int(at) + 5])
        await socket.subscribe(FOLLOW, after=at)
        assert (await socket.error())["extensions"]["code"] == "resume_expired"


async def test_a_table_that_changes_ends_who_looks_at_it_and_nobody_else(start: Start) -> None:
    async with serving(start) as served, connected(served.url) as socket:
        await served.put(a=1)
        await socket.subscribe(FOLLOW, "changed")
        await socket.next("changed")
        await socket.subscribe("subscription { counters { operation } }", "kept")
        await served.until("view_subscribers", 2)
        columns = {**STREAMS["others"]["columns"], "m": "bigint"}
        changed = {**STREAMS, "others": {**STREAMS["others"], "columns": columns}}
        await served.define(parse_definitions({"streams": changed}))
        assert (await socket.error("changed"))["extensions"]["code"] == "definition_changed"
        assert await socket.silent()
        await socket.subscribe("subscription { others { data { k m } } }", "changed")
        assert await socket.next("changed") == {"others": {"data": {"k": "a", "m": None}}}


async def test_subscribers_go_with_the_server_and_may_come_back(start: Start) -> None:
    async with AsyncExitStack() as clients:
        async with serving(start) as served:
            sockets = [await clients.enter_async_context(connected(served.url)) for _ in range(3)]
            for socket in sockets:
                await socket.subscribe(FOLLOW)
            await served.until("view_subscribers", 3)
            started = time.monotonic()
        assert time.monotonic() - started < HANG_S
        assert [(await socket.closing())[0] for socket in sockets] == [1012] * 3
