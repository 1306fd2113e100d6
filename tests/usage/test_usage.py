"""Usage: what a customer is told of their periods, and through which event that is complete."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.fold import folded
from tests.http.test_access import bearer, make_key
from tests.serving import Start
from tidelock.app import Serving
from tidelock.definitions import parse_definitions

Json = dict[str, Any]

METERS = parse_definitions(
    {
        "meters": {
            "calls": {"aggregation": "sum", "period": "month", "group_by": ["data.region"]},
            "peak": {"aggregation": "max", "period": "hour"},
            "weekly": {"period": "week"},
        }
    }
)


@pytest.fixture(scope="module")
async def server(start: Start) -> AsyncIterator[Serving]:
    async with start(definitions=METERS) as serving:
        yield serving


@pytest.fixture(scope="module")
async def connection(server: Serving) -> AsyncIterator[folded.Connection]:
    async with await server.ledger.database.connect() as opened:
        yield opened


async def usage(client: httpx.AsyncClient, tenant: str, **parameters: str) -> Json:
    asked = {"metric": "calls", "customerRef": "c", "tenantId": tenant, **parameters}
    response = await client.get("/v1/usage", params=asked)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


async def starts(client: httpx.AsyncClient, tenant: str, **parameters: str) -> list[str]:
    return [item["periodStart"] for item in (await usage(client, tenant, **parameters))["items"]]


async def test_usage_has_value_adjustment_and_total_exactly(
    client: httpx.AsyncClient, connection: folded.Connection, tenant: str
) -> None:
    huge = "12345678901234567890.123456789"
    await folded.counter(connection, tenant, "calls", "c", "2026-03-01T00:00:00Z", value="15.50", total="25.000000001")
    await folded.counter(connection, tenant, "calls", "c", "2024-02-01T00:00:00Z", value=huge, total="0")
    assert await usage(client, tenant) == {
        "metric": "calls",
        "customerRef": "c",
        "aggregation": "sum",
        "period": "month",
        "window": "month",
        "items": [
            {
                "periodStart": "2024-02-01T00:00:00Z", "periodEnd": "2024-03-01T00:00:00Z", "group": None,
                "value": huge, "adjustment": f"-{huge}", "total": "0", "watermark": "2024-02-01T00:00:00Z",
            },
            {
                "periodStart": "2026-03-01T00:00:00Z", "periodEnd": "2026-04-01T00:00:00Z", "group": None,
                "value": "15.5", "adjustment": "9.500000001", "total": "25.000000001",
                "watermark": "2026-03-01T00:00:00Z",
            },
        ],
        "throughSequence": 0,
    }  # fmt: skip


async def test_groups_come_by_period_then_group_and_what_is_not_there_is_null(
    client: httpx.AsyncClient, connection: folded.Connection, tenant: str
) -> None:
    for month, group in (("03", "us"), ("03", None), ("02", "us"), ("03", "eu"), ("03", "é")):
        start = f"2026-{month}-01T00:00:00Z"
        await folded.counter(
            connection, tenant, "calls", "c", start, value=None if group == "eu" else "1", group_key=group
        )
    items = (await usage(client, tenant, groupBy="true"))["items"]
    assert [(item["periodStart"][5:7], item["group"]) for item in items] == [
        ("02", "us"), ("03", None), ("03", "eu"), ("03", "us"), ("03", "é")
    ]  # fmt: skip
    assert [items[2][name] for name in ("value", "adjustment", "total")] == [None, None, None]
    assert await starts(client, tenant) == await starts(client, tenant, groupBy="false") == []


async def test_from_and_to_choose_the_periods_they_overlap(
    client: httpx.AsyncClient, connection: folded.Connection, tenant: str
) -> None:
    months = [f"2026-{month:02}-01T00:00:00Z" for month in (1, 2, 3, 4)]
    for month in months:
        await folded.counter(connection, tenant, "calls", "c", month, value="1")

    async def found(since: str | None, until: str | None) -> list[str]:
        asked = {"from": since, "to": until}
        return await starts(client, tenant, **{name: value for name, value in asked.items() if value is not None})

    assert await found(None, None) == months
    assert await found("2026-02-01T00:00:00Z", None) == months[1:]
    assert await found("2026-02-28T23:59:59.999999999Z", None) == months[1:]
    assert await found("2026-01-31T23:59:59.999999999Z", "2026-03-01T00:00:00Z") == months[:2]
    assert await found(None, "2026-03-01T00:00:00.000000001Z") == months[:3]
    assert await found("2026-03-15T00:00:00Z", "2026-03-16T00:00:00Z") == months[2:3]
    assert await found("2026-03-15T00:00:00Z", "2026-03-01T00:00:00Z") == []
    assert await found("2030-01-01T00:00:00Z", None) == []
    assert await found(None, "1970-01-01T00:00:00Z") == []


async def test_an_hour_and_an_iso_week_end_where_the_next_begins(
    client: httpx.AsyncClient, connection: folded.Connection, tenant: str
) -> None:
    await folded.counter(connection, tenant, "peak", "c", "2026-02-28T23:00:00Z", value="1")
    await folded.counter(connection, tenant, "weekly", "c", "2026-12-28T00:00:00Z", value="1")
    for metric, end in (("peak", "2026-03-01T00:00:00Z"), ("weekly", "2027-01-04T00:00:00Z")):
        (item,) = (await usage(client, tenant, metric=metric))["items"]
        assert item["periodEnd"] == end
    assert len(await starts(client, tenant, metric="weekly", **{"from": "2027-01-03T23:00:00Z"})) == 1
    assert len(await starts(client, tenant, metric="weekly", **{"from": "2027-01-04T00:00:00Z"})) == 0


@pytest.mark.parametrize("customer", ["", "c", 'q"', "\\", "\n", "é", "\U0001f600", "%s", "a,b", "\x7f", "\ud7ff", "]"])
async def test_customers_of_any_name_have_their_own_rows_only(
    client: httpx.AsyncClient, connection: folded.Connection, tenant: str, customer: str
) -> None:
    for other in {customer, customer + "x", customer + '"', "x" + customer}:
        await folded.counter(connection, tenant, "calls", other, "2026-03-01T00:00:00Z", value=str(len(other)))
    items = (await usage(client, tenant, customerRef=customer))["items"]
    assert [item["value"] for item in items] == [str(len(customer))]


@pytest.mark.parametrize(
    ("changed", "status", "field"),
    [
        ({"metric": None}, 400, "metric"), ({"cursor": "x"}, 400, "cursor"), ({"metric": ""}, 400, "metric"),
        ({"metric": "nothing"}, 404, "metric"), ({"window": "fortnight"}, 400, "window"),
        ({"metric": "peak", "groupBy": "true"}, 400, "groupBy"), ({"groupBy": "yes"}, 400, "groupBy"),
        ({"from": "soon"}, 400, "from"), ({"limit": "5"}, 400, "limit"),
        ({"customerRef": None, "window": "day"}, 400, "window"),
    ],
)  # fmt: skip
async def test_what_cannot_be_answered_is_told_by_name(
    client: httpx.AsyncClient, changed: dict[str, str | None], status: int, field: str
) -> None:
    asked = {"metric": "calls", "customerRef": "c", **changed}
    response = await client.get("/v1/usage", params={n: v for n, v in asked.items() if v is not None})
    assert (response.status_code, response.json()["error"]["field"]) == (status, field)


async def test_the_meters_own_period_may_be_asked_for(client: httpx.AsyncClient, tenant: str) -> None:
    assert (await usage(client, tenant, window="month"))["period"] == "month"


async def test_through_which_event_it_is_complete_is_the_folds_cursor(
    client: httpx.AsyncClient, connection: folded.Connection, tenant: str
) -> None:
    await connection.execute("INSERT INTO cursors VALUES ('fold', 42), ('kafka', 7)")
    assert (await usage(client, tenant))["throughSequence"] == 42
    await connection.execute("DELETE FROM cursors")


async def test_the_definition_is_the_one_that_made_the_rows(start: Start) -> None:
    async with (
        start(definitions=METERS) as server,
        httpx.AsyncClient(base_url=server.url) as client,
        await server.ledger.database.connect() as connection,
    ):
        await folded.define(connection, parse_definitions({"meters": {"calls": {"aggregation": "avg"}}}))
        assert (await usage(client, "t"))["aggregation"] == "avg"
        await folded.define(connection, parse_definitions({"meters": {"calls": {"aggregation": "last"}}}), 2)
        assert (await usage(client, "t"))["aggregation"] == "last"


async def test_more_than_an_answer_holds_is_refused_not_cut(start: Start) -> None:
    async with (
        start(definitions=METERS, usage_items_max=2) as server,
        httpx.AsyncClient(base_url=server.url) as client,
        await server.ledger.database.connect() as connection,
    ):
        for month in (1, 2):
            await folded.counter(connection, "t", "calls", "c", f"2026-{month:02}-01T00:00:00Z", value="1")
        assert len(await starts(client, "t")) == 2
        await folded.counter(connection, "t", "calls", "c", "2026-03-01T00:00:00Z", value="1")
        refused = await client.get("/v1/usage", params={"metric": "calls", "customerRef": "c", "tenantId": "t"})
        assert refused.status_code == 400
        assert len(await starts(client, "t", **{"from": "2026-02-01T00:00:00Z"})) == 2


async def test_usage_is_of_the_keys_tenant_and_of_default_without(start: Start) -> None:
    async with (
        start(definitions=METERS, key_cache_s=0) as server,
        httpx.AsyncClient(base_url=server.url) as client,
        await server.ledger.database.connect() as connection,
    ):
        for tenant, total in (("default", "1"), ("acme", "2")):
            await folded.counter(connection, tenant, "calls", "c", "2026-03-01T00:00:00Z", value=total)

        async def value(key: str | None = None, **parameters: str) -> str | int:
            asked = {"metric": "calls", "customerRef": "c", **parameters}
            response = await client.get("/v1/usage", params=asked, headers=bearer(key) if key else {})
            if response.status_code != 200:
                return response.status_code
            return str(response.json()["items"][0]["value"])

        assert await value() == "1"
        assert await value(tenantId="acme") == "2"
        own, every = await make_key(server, "acme", ["read"]), await make_key(server, "*", ["read"])
        writer = await make_key(server, "acme", ["ingest"])
        assert await value(own) == await value(own, tenantId="acme") == await value(every, tenantId="acme") == "2"
        assert await value(own, tenantId="default") == 403
        assert await value(writer) == 403
        assert await value() == 401
