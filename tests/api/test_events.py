"""Reading the ledger back: lists both ways, and the events of one run with what caused what."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.serving import Start

Json = dict[str, Any]


async def record(client: httpx.AsyncClient, tenant: str, *events: Json) -> list[int]:
    answer = (
        await client.post("/v1/events", json=[{"tenantId": tenant, "stream": "s", **event} for event in events])
    ).json()
    assert answer["accepted"] == len(events), answer
    return [result["ingressSequence"] for result in answer["results"]]


async def listed(client: httpx.AsyncClient, path: str = "/admin/events", **parameters: Any) -> list[Json]:
    """Every item of a list, page by page."""
    items: list[Json] = []
    cursor: str | None = None
    while True:
        response = await client.get(path, params={**parameters, **({} if cursor is None else {"cursor": cursor})})
        assert response.status_code == 200, response.text
        page = response.json()
        assert list(page) == ["items", "next"]
        items += page["items"]
        cursor = page["next"]
        if cursor is None:
            return items
        assert len(page["items"]) == parameters.get("limit", 100)


def sequences(items: list[Json]) -> list[int]:
    return [item["ingressSequence"] for item in items]


async def test_events_sent_out_of_order_come_back_in_one_order_both_ways(
    client: httpx.AsyncClient, tenant: str
) -> None:
    days = [3, 1, 2, 5, 4]
    recorded: list[int] = []
    for day in days:
        recorded += await record(client, tenant, {"ts": f"2026-01-0{day}T00:00:00Z"})
    assert sequences(await listed(client, tenantId=tenant)) == recorded
    assert sequences(await listed(client, tenantId=tenant, order="desc")) == recorded[::-1]


async def test_events_are_found_by_who_sent_them_and_by_what_they_belong_to(
    client: httpx.AsyncClient, tenant: str
) -> None:
    one, two, three = await record(
        client,
        tenant,
        {"correlationId": "c-1", "source": "sdk"},
        {"correlationId": "c-1", "source": "batch"},
        {"correlationId": "", "source": "sdk"},
    )
    for asked, found in (
        ({"correlationId": "c-1"}, [one, two]), ({"source": "sdk"}, [one, three]), ({"correlationId": ""}, [three]),
        ({"correlationId": "c-1", "source": "sdk"}, [one]), ({"source": "nobody"}, []),
        ({"source": "sdk", "order": "desc", "limit": 1}, [three, one]),
    ):  # fmt: skip
        assert sequences(await listed(client, tenantId=tenant, **asked)) == found, asked


@pytest.mark.parametrize(
    "path", ["/admin/events", "/v1/causality/k", "/v1/counters", "/v1/errors", "/v1/statements", "/v1/triggers"]
)
async def test_an_empty_cursor_is_the_first_page(client: httpx.AsyncClient, path: str) -> None:
    asked = {} if path == "/v1/triggers" else {"limit": 1}
    first, empty = [await client.get(path, params={**asked, **more}) for more in ({}, {"cursor": ""})]
    assert (empty.status_code, empty.json()) == (200, first.json())


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 1000])
async def test_pages_put_together_are_the_list(client: httpx.AsyncClient, tenant: str, order: str, limit: int) -> None:
    recorded = await record(client, tenant, *({"data": number} for number in range(7)))
    found = sequences(await listed(client, tenantId=tenant, order=order, limit=limit))
    assert found == (recorded if order == "asc" else recorded[::-1])


async def test_a_page_has_a_hundred_items_by_default(client: httpx.AsyncClient, tenant: str) -> None:
    await record(client, tenant, *({"data": number} for number in range(101)))
    page = (await client.get("/admin/events", params={"tenantId": tenant})).json()
    assert len(page["items"]) == 100
    assert page["next"]


async def test_a_full_last_page_has_no_next(client: httpx.AsyncClient, tenant: str) -> None:
    await record(client, tenant, {}, {})
    page = (await client.get("/admin/events", params={"tenantId": tenant, "limit": 2})).json()
    assert len(page["items"]) == 2
    assert page["next"] is None


@pytest.fixture(scope="module")
async def narrow(start: Start) -> AsyncIterator[httpx.AsyncClient]:
    """A server whose pages hold few bytes."""
    async with start(page_bytes_max=2048) as server, httpx.AsyncClient(base_url=server.url) as opened:
        yield opened


async def pages(client: httpx.AsyncClient, path: str, **parameters: Any) -> list[list[Json]]:
    """Every page of a list."""
    found: list[list[Json]] = []
    cursor: str | None = None
    while cursor is not None or not found:
        page = (await client.get(path, params={**parameters, **({} if cursor is None else {"cursor": cursor})})).json()
        found.append(page["items"])
        cursor = page["next"]
    return found


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_page_ends_where_its_bytes_do_and_the_next_one_continues(
    narrow: httpx.AsyncClient, tenant: str, order: str
) -> None:
    sizes = [900, 900, 900, 5000, 1, 1, 900, 5000, 5000]
    recorded = await record(narrow, tenant, *({"data": "x" * size} for size in sizes))
    expected = [[0, 1], [2], [3], [4, 5, 6], [7], [8]] if order == "asc" else [[8], [7], [6, 5, 4], [3], [2, 1], [0]]
    found = await pages(narrow, "/admin/events", tenantId=tenant, order=order, limit=1000)
    assert [sequences(items) for items in found] == [[recorded[at] for at in page] for page in expected]


async def test_a_runs_pages_end_where_their_bytes_do(narrow: httpx.AsyncClient, tenant: str) -> None:
    events = [{"causalityKey": tenant, "idempotencyKey": f"{at}", "data": "x" * 900} for at in range(5)]
    recorded = await record(narrow, tenant, *({**event, "causationId": "0"} for event in events))
    found = await pages(narrow, f"/v1/causality/{tenant}")
    assert [len(items) for items in found] == [2, 2, 1]
    assert sequences([item for items in found for item in items]) == recorded
    assert {item["parent"] for items in found for item in items} == {recorded[0]}


async def test_a_page_of_large_events_is_not_in_memory_as_a_page_of_rows(start: Start) -> None:
    async with start(page_bytes_max=2**20) as server, httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        for _ in range(20):
            await record(client, "t", *({"data": "x" * 10**6} for _ in range(10)))
        await client.get("/admin/events", params={"limit": 1})
        tracemalloc.start()
        try:
            page = (await client.get("/admin/events", params={"limit": 1000})).json()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(page["items"]) == 1
        assert page["next"]
        assert peak < 60 * 10**6, f"{peak:,} bytes for a page of one MiB, of 200"


async def test_filters_narrow_together(client: httpx.AsyncClient, tenant: str) -> None:
    await record(
        client, tenant,
        {"stream": "a", "customerRef": "x", "causalityKey": "run"},
        {"stream": "a", "customerRef": "y", "causalityKey": "run"},
        {"stream": "b", "customerRef": "x"},
        {"stream": "b", "customerRef": ""},
        {"stream": "b"},
    )  # fmt: skip

    async def count(**filters: str) -> int:
        return len(await listed(client, tenantId=tenant, **filters))

    assert await count(stream="a") == 2
    assert await count(customerRef="x") == 2
    assert await count(stream="a", customerRef="x") == 1
    assert await count(causalityKey="run") == 2
    assert await count(causalityKey="run", customerRef="y", stream="a") == 1
    assert await count(customerRef="") == 1
    assert await count(stream="c") == 0


async def test_times_are_half_open_and_exact_to_the_nanosecond(client: httpx.AsyncClient, tenant: str) -> None:
    instants = ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000000001Z", "2026-01-01T00:00:01Z"]
    recorded = await record(client, tenant, *({"ts": ts} for ts in instants))
    found = await listed(client, tenantId=tenant, **{"from": instants[0], "to": instants[1]})
    assert sequences(found) == recorded[:1]
    found = await listed(client, tenantId=tenant, **{"from": "2026-01-01T01:00:00.000000001+01:00"})
    assert sequences(found) == recorded[1:]
    assert [item["occurredAt"] for item in found] == instants[1:]


async def test_times_are_epoch_milliseconds_too(client: httpx.AsyncClient, tenant: str) -> None:
    recorded = await record(client, tenant, {"ts": -1}, {"ts": 0}, {"ts": 1767225600000}, {"ts": 1767225600001})
    found = await listed(client, tenantId=tenant, **{"from": "0", "to": "1767225600001"})
    assert sequences(found) == recorded[1:3]
    assert sequences(await listed(client, tenantId=tenant, to="0")) == recorded[:1]


@pytest.mark.parametrize("fraction", ["", ".5"])
async def test_a_plus_that_became_a_space_is_understood(client: httpx.AsyncClient, tenant: str, fraction: str) -> None:
    recorded = await record(
        client, tenant, {"ts": f"2026-01-01T00:59:59{fraction}Z"}, {"ts": f"2026-01-01T01:00:00{fraction}Z"}
    )
    for plus in ("+", "%2B"):
        response = await client.get(f"/admin/events?tenantId={tenant}&from=2026-01-01T03:00:00{fraction}{plus}02:00")
        assert sequences(response.json()["items"]) == recorded[1:], response.text


async def test_a_cursor_continues_in_its_own_order(client: httpx.AsyncClient, tenant: str) -> None:
    recorded = await record(client, tenant, {}, {}, {})
    first = (await client.get("/admin/events", params={"tenantId": tenant, "limit": 1, "order": "desc"})).json()
    rest = await client.get("/admin/events", params={"tenantId": tenant, "cursor": first["next"]})
    assert sequences(first["items"] + rest.json()["items"]) == recorded[::-1]
    other = await client.get("/admin/events", params={"tenantId": tenant, "cursor": first["next"], "order": "asc"})
    assert "other order" in other.json()["error"]["message"]


async def test_sequence_bounds_are_exclusive_and_go_with_cursors(client: httpx.AsyncClient, tenant: str) -> None:
    recorded = await record(client, tenant, *({"data": number} for number in range(6)))
    bounds: dict[str, Any] = {"after": recorded[0], "before": recorded[5]}
    assert sequences(await listed(client, tenantId=tenant, **bounds, limit=2)) == recorded[1:5]
    assert sequences(await listed(client, tenantId=tenant, **bounds, limit=3, order="desc")) == recorded[1:5][::-1]


@pytest.mark.parametrize(
    ("parameters", "field", "hint"),
    [
        ({"limit": "0"}, "limit", "1 to 1000"),
        ({"limit": "1001"}, "limit", "1 to 1000"),
        ({"limit": "ten"}, "limit", "1 to 1000"),
        ({"limit": "1e2"}, "limit", "1 to 1000"),
        ({"after": "-1"}, "after", "whole number"),
        ({"after": "9" * 30}, "after", "whole number"),
        ({"before": ""}, "before", "whole number"),
        ({"order": "up"}, "order", "asc or desc"),
        ({"from": "yesterday"}, "from", "RFC 3339"),
        ({"to": "2026-01-01"}, "to", "RFC 3339"),
        ({"cursor": "nonsense"}, "cursor", "does not belong to this list"),
        ({"cursor": "YXNjOjk5OTk5OTk5OTk5OTk5OTk5OTk"}, "cursor", "does not belong to this list"),
        ({"cursor": "ä"}, "cursor", "does not belong to this list"),
        ({"cursor": "ZGVzYzox", "order": "asc"}, "cursor", "other order"),
        ({"from": "9" * 19}, "from", "1678 to 2261"),
        ({"from": "2026-01-01 01:00"}, "from", "RFC 3339"),
        ({"tenantId": ""}, "tenantId", "empty"),
        ({"stream": "a\0b"}, "stream", "NUL"),
        ({"customerref": "x"}, "customerref", "customerRef"),
        ({"strem": "x"}, "strem", "did you mean stream?"),
    ],
)
async def test_a_parameter_that_makes_no_sense_is_named(
    client: httpx.AsyncClient, parameters: dict[str, str], field: str, hint: str
) -> None:
    response = await client.get("/admin/events", params=parameters)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["field"]) == ("invalid_request", field)
    assert hint in error["message"]


async def test_a_parameter_given_twice_is_refused(client: httpx.AsyncClient) -> None:
    response = await client.get("/admin/events?stream=a&stream=b")
    assert response.json()["error"]["field"] == "stream"


async def test_data_comes_back_as_the_text_that_was_sent(client: httpx.AsyncClient, tenant: str) -> None:
    data = '{"z": 1.10, "a":1e2,"z":12345678901234567890.123,  "t":"\\u00e4\\ud83d\\ude00/\\/"}'
    body = f'{{"tenantId":"{tenant}","stream":"s","data":{data}}}'
    await client.post("/v1/events", content=body, headers={"content-type": "application/json"})
    response = await client.get("/admin/events", params={"tenantId": tenant})
    assert data in response.text


async def test_control_events_are_for_readers_of_every_tenant_only(start: Start) -> None:
    async with start() as server, httpx.AsyncClient(base_url=server.url) as client:
        await record(client, "t", {})
        await server.ledger.sequencer.control({"type": "drain"})
        found = await listed(client)
        assert [item["tenantId"] for item in found] == ["t", "_tidelock"]
        assert found[1]["data"] == {"type": "drain"}
        assert len(await listed(client, tenantId="t")) == 1


async def test_a_runs_events_come_in_total_order_with_their_parents(client: httpx.AsyncClient, tenant: str) -> None:
    run = {"causalityKey": f"run-{tenant}"}
    recorded = await record(
        client, tenant,
        {**run, "stream": "orders", "idempotencyKey": "order", "ts": "2026-01-03T00:00:00Z"},
        {**run, "stream": "payments", "idempotencyKey": "payment", "causationId": "order", "ts": 1767225600000},
        {"stream": "noise"},
        {**run, "stream": "mails", "causationId": "payment"},
        {**run, "stream": "mails", "causationId": "unknown"},
    )  # fmt: skip
    await record(client, f"{tenant}-other", {**run, "idempotencyKey": "x", "causationId": "order"})
    items = await listed(client, f"/v1/causality/run-{tenant}", tenantId=tenant)
    assert sequences(items) == [recorded[0], recorded[1], recorded[3], recorded[4]]
    assert [item["parent"] for item in items] == [None, recorded[0], recorded[1], None]
    assert [item["stream"] for item in items] == ["orders", "payments", "mails", "mails"]
    paged = await listed(client, f"/v1/causality/run-{tenant}", tenantId=tenant, limit=1)
    assert paged == items
    everybody = await listed(client, f"/v1/causality/run-{tenant}")
    assert [item["parent"] for item in everybody] == [None, recorded[0], recorded[1], None, None]


async def test_a_derived_key_can_be_a_parent(client: httpx.AsyncClient, tenant: str) -> None:
    sent = {"tenantId": tenant, "stream": "s", "ts": "2026-01-01T00:00:00Z"}
    parent = (await client.post("/v1/events", json=sent)).json()["results"][0]
    await record(client, tenant, {"causalityKey": tenant, "causationId": parent["idempotencyKey"]})
    (item,) = await listed(client, f"/v1/causality/{tenant}")
    assert item["parent"] == parent["ingressSequence"]


@pytest.mark.parametrize("key", ["a/b", "/", "a%2Fb", "ä ö?&=#", "line\nend\n", "..", "a//b", "100%"])
async def test_a_run_may_be_called_anything(client: httpx.AsyncClient, tenant: str, key: str) -> None:
    await record(client, tenant, {"causalityKey": key})
    escaped = quote(key, safe="").replace(".", "%2E")
    items = await listed(client, f"/v1/causality/{escaped}", tenantId=tenant)
    assert [item["causalityKey"] for item in items] == [key]


async def test_an_unknown_run_has_no_events(client: httpx.AsyncClient) -> None:
    assert await listed(client, "/v1/causality/nobody") == []
    assert (await client.get("/v1/causality/a%00b")).status_code == 400
