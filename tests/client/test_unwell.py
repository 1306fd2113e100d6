"""The Python client against a server that is unwell: what can be tried again is, what cannot is told as it is."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from tests.budgets import HANG_S
from tests.client.scripted import Answer, page, says, scripted, streams
from tidelock.client import AsyncClient, NoAnswer, Refused, Update

_SHAPE = {
    "data": {
        "__type": {"fields": [{"name": "id"}, {"name": "price"}]},
        "__schema": {"queryType": {"fields": [{"name": "trades_by_pk", "args": [{"name": "id"}]}]}},
    }
}


def error(code: str) -> dict[str, Any]:
    return {"errors": [{"message": f"it is {code}", "extensions": {"code": code}}]}


def change(number: int) -> dict[str, Any]:
    row = {"tenant_id": "default", "id": number, "price": "1"}
    told = {"operation": "INSERT", "fields": ["price"], "ts_timestamp": str(number), "data": row}
    return {"data": {"update": told}}


async def followed(url: str, count: int, *, tries: int = 3) -> list[Update]:
    """The first updates of a table."""
    found: list[Update] = []
    async with (
        asyncio.timeout(HANG_S),
        AsyncClient(url, tries=tries) as client,
        aclosing(client.subscribe("trades")) as told,
    ):
        while len(found) < count:
            found.append(await anext(told))
    return found


@pytest.mark.parametrize("code", ["slow_subscriber", "unavailable", "closed", "internal_error", "overloaded"])
async def test_a_subscription_that_the_server_ends_continues_where_it_was(code: str) -> None:
    answers = [says(_SHAPE), streams(change(1), change(2), error(code)), streams(change(2), change(3))]
    async with scripted(answers) as (url, asked):
        found = await followed(url, 3)
    assert [update.data["id"] for update in found] == [1, 2, 3]
    assert [request["variables"]["after"] for request in asked[1:]] == [None, "2"]


async def test_a_subscription_that_cannot_continue_says_why() -> None:
    answers = [says(_SHAPE), streams(change(1), error("resume_expired")), streams(change(9), error("forbidden"))]
    async with scripted(answers) as (url, asked):
        found = await followed(url, 3)
        assert [update.operation for update in found] == ["INSERT", "RESET", "INSERT"]
        assert asked[2]["variables"]["after"] is None
    async with scripted([says(_SHAPE), streams(error("forbidden"))]) as (url, _):
        with pytest.raises(Refused, match="forbidden"):
            await followed(url, 1)


@pytest.mark.parametrize("busy", [says(error("unavailable"), 503), page(502)])
async def test_a_subscription_waits_for_a_server_that_is_busy_at_first(busy: Answer) -> None:
    async with scripted([busy, says(_SHAPE), busy, streams(change(1))]) as (url, asked):
        assert [update.data["id"] for update in await followed(url, 1)] == [1]
        assert len(asked) == 4
    async with scripted([busy, busy]) as (url, _):
        with pytest.raises(NoAnswer, match=r"2 tries: it responded with 50[23]"):
            await followed(url, 1, tries=2)


async def test_a_refused_subscription_gets_the_reason_and_nothing_about_a_missing_table() -> None:
    unknown = {"error": {"code": "unauthorized", "message": "this key is not known"}}
    for answer, told in (
        (says(unknown, 401), "this key is not known"),
        (says(error("invalid_request")), "it is invalid_request"),
        (page(200), "Bad gateway"),
        (says({"data": {"__type": None, "__schema": {"queryType": {"fields": []}}}}), "there is no table 'trades'"),
    ):
        async with scripted([answer]) as (url, _):
            with pytest.raises(Refused, match=told):
                await followed(url, 1)


def test_a_subscription_may_be_left_in_the_middle() -> None:
    """Also without closing it, as one does at first: nothing is left behind that complains."""
    complaints: list[dict[str, Any]] = []

    async def leave() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
        answers = [says(_SHAPE), streams(change(1), change(2))]
        async with scripted(answers) as (url, _), AsyncClient(url) as client:
            async for update in client.subscribe("trades"):
                assert update.data["id"] == 1
                break

    asyncio.run(leave())
    assert complaints == []
