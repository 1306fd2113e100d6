"""Batches over HTTP: who may list, preview and revert, in pages; and the client that follows them to the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.fold import folded
from tests.http.test_access import bearer, make_key
from tests.serving import Start
from tidelock.api import batches
from tidelock.app import Serving
from tidelock.client import AsyncClient, Client
from tidelock.definitions import parse_definitions
from tidelock.sources import reverting

Json = dict[str, Any]

METERS = parse_definitions(
    {
        "meters": {
            "calls": {"period": "month"},
            "regions": {"stream": "calls", "period": "day", "group_by": ["data.region"]},
            "peak": {"stream": "calls", "aggregation": "max"},
        }
    }
)
DAY = "2026-03-05T00:00:00Z"


@pytest.fixture(scope="module")
async def server(start: Start) -> AsyncIterator[Serving]:
    async with start(definitions=METERS, key_cache_s=0) as serving:
        yield serving


async def sent(client: httpx.AsyncClient, *events: Json) -> None:
    answer = (await client.post("/v1/events", json=[{"stream": "calls", **event} for event in events])).json()
    assert answer["rejected"] == 0, answer


async def _as_folded(server: Serving, tenant: str) -> None:
    """The fold by hand: three events of one customer, of which the last is late."""
    async with await server.ledger.database.connect() as connection:
        for metric, value, total in (("calls", "3", "6"), ("peak", "2", "3")):
            await folded.counter(connection, tenant, metric, "c", "2026-03-01T00:00:00Z", value=value, total=total)
        row = await (await connection.execute("SELECT ingress_sequence FROM ledger_head")).fetchone()
        assert row is not None
        last = int(row[0])
        for metric in ("calls", "peak"):
            await folded.adjustment(connection, tenant, metric, "c", last)
        await connection.execute(b"UPDATE tidelock_tables.adjustments SET period_start = %s", [1_772_323_200 * 10**9])
        await connection.execute(
            b"INSERT INTO cursors (name, sequence) VALUES ('fold', %s) "
            b"ON CONFLICT (name) DO UPDATE SET sequence = excluded.sequence", [last],
        )  # fmt: skip


async def test_a_preview_has_every_counter_before_and_after(
    server: Serving, client: httpx.AsyncClient, tenant: str
) -> None:
    of = {"tenantId": tenant, "customerRef": "c", "ts": DAY}
    await sent(client, *({**of, "resourceId": str(n), "quantity": n, "batchId": f"b{n % 2}"} for n in (2, 1, 3)))
    behind = await client.get("/v1/batches/preview", params={"batchId": "b1", "tenantId": tenant})
    assert (behind.status_code, behind.json()["error"]["code"]) == (503, "unavailable")
    await _as_folded(server, tenant)
    found = (await client.get("/v1/batches/preview", params={"batchId": "b1", "tenantId": tenant})).json()
    assert (found["voids"], found["events"], found["duplicates"], found["leftCount"]) == (2, 2, 0, 0)
    month = {"tenantId": tenant, "customerRef": "c", "periodStart": "2026-03-01T00:00:00Z",
             "periodEnd": "2026-04-01T00:00:00Z", "events": 2}  # fmt: skip
    assert found["counters"] == [
        month | {"metric": "calls", "value": "3", "valueAfter": "2", "total": "6", "totalAfter": "2"},
        month | {"metric": "peak", "value": "2", "valueAfter": "2", "total": "3", "totalAfter": "2"},
    ]

    def by_program() -> Json:
        with Client(server.url) as program:
            return {**program.preview_revert("b1", tenant=tenant)}

    assert await asyncio.to_thread(by_program) == found


async def test_a_revert_goes_on_with_its_cursor_and_a_repeat_finds_all_of_it_void(
    client: httpx.AsyncClient, server: Serving, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_EVENTS_MAX", 4)
    monkeypatch.setattr(batches, "PAGE", 2)
    monkeypatch.setattr(reverting, "PAGE", 2)
    await sent(client, *({"tenantId": tenant, "ts": DAY, "customerRef": str(n), "batchId": "x"} for n in range(5)))
    await sent(client, {"tenantId": tenant, "batchId": "x"})
    body = {"batchId": "x", "tenantId": tenant, "reason": "a test"}
    first = (await client.post("/v1/batches/revert", json=body)).json()
    assert (first["voided"], first["leftCount"]) == (4, 0)
    rest = (await client.post("/v1/batches/revert", json={**body, "cursor": first["next"]})).json()
    assert (rest["voided"], rest["left"][0]["code"], rest["next"]) == (1, "no_key", None)
    found = (await client.get("/admin/events", params={"tenantId": tenant})).json()["items"]
    voids = [event for event in found if event["op"] == "void"]
    assert {event["reason"] for event in voids} == {"a test"}
    target = voids[0]["targetSequence"]
    (one,) = (await client.get("/admin/events", params={"targetSequence": target})).json()["items"]
    assert one["ingressSequence"] == voids[0]["ingressSequence"]
    batch = (await client.get("/admin/events", params={"batchId": "x", "tenantId": tenant})).json()["items"]
    assert len(batch) == 6
    async with AsyncClient(server.url) as program:
        again = await program.revert("x", tenant=tenant)
        assert (again.voided, again.duplicates, again.left_count) == (0, 5, 1)
        assert [each["batchId"] async for each in program.batches(tenant=tenant)] == ["x"]


async def test_pages_of_batches_lead_to_the_next(client: httpx.AsyncClient, tenant: str) -> None:
    for number in range(3):
        await sent(client, {"tenantId": tenant, "ts": DAY, "customerRef": str(number), "batchId": f"page {number}"})
    pages, cursor = [], None
    while True:
        asked = {"tenantId": tenant, "limit": "1", "cursor": cursor or ""}
        found = (await client.get("/v1/batches", params=asked)).json()
        pages += [each["batchId"] for each in found["items"]]
        cursor = found["next"]
        if cursor is None:
            break
    assert pages == ["page 2", "page 1", "page 0"]


async def test_what_is_asked_wrongly_is_refused_in_words(client: httpx.AsyncClient) -> None:
    for body, status, said in (
        ({"batchId": "nowhere"}, 404, "no event has the batchId"),
        ({}, 400, "the body is"),
        ({"batchId": ""}, 400, "batchId has 1 to 255 characters"),
        ({"batchId": "a", "reason": "x\0"}, 400, "reason has 1 to 255 characters"),
        ({"batchId": "a", "cursor": "x"}, 400, "cursor"),
    ):
        answer = await client.post("/v1/batches/revert", json=body)
        assert (answer.status_code, said in answer.json()["error"]["message"]) == (status, True), answer.text
    assert (await client.get("/v1/batches/preview")).status_code == 400


async def test_only_admins_revert_and_nobody_sees_another_tenants_batches(
    start: Start,
) -> None:
    async with start(definitions=METERS, key_cache_s=0) as serving:
        async with httpx.AsyncClient(base_url=serving.url) as open_client:
            for name in ("acme", "beta"):
                await sent(open_client, {"tenantId": name, "ts": DAY, "batchId": "both"})
        admin = await make_key(serving, "acme", ["admin"])
        reader = await make_key(serving, "acme", ["read"])
        async with httpx.AsyncClient(base_url=serving.url) as client:
            body = {"batchId": "both"}
            refused = await client.post(
                "/v1/batches/revert", json=body, headers=bearer(await make_key(serving, "*", ["admin"]))
            )
            assert (refused.status_code, refused.json()["error"]["field"]) == (400, "tenantId")
            assert '"acme", "beta"' in refused.json()["error"]["message"]
            assert (await client.post("/v1/batches/revert", json=body, headers=bearer(reader))).status_code == 403
            listed = (await client.get("/v1/batches", headers=bearer(reader))).json()["items"]
            assert [(each["tenantId"], each["events"]) for each in listed] == [("acme", 1)]
            done = (await client.post("/v1/batches/revert", json=body, headers=bearer(admin))).json()
            assert (done["voided"], done["next"]) == (1, None)
            other = {**body, "tenantId": "beta"}
            assert (await client.post("/v1/batches/revert", json=other, headers=bearer(admin))).status_code == 403
