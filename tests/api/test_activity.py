"""What the console asks beside the lists: activity, definitions, and checks of the ledger that run beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.http.test_access import bearer, make_key
from tests.serving import Start
from tidelock.app import Serving
from tidelock.definitions import parse_definitions

DEFINITIONS = parse_definitions(
    {
        "streams": {"trades": {"key": "trade_id", "columns": {"trade_id": "bigint", "price": "decimal(18,4)"}}},
        "meters": {"api_calls": {"period": "day"}},
        "windows": {"volume": {"stream": "trades", "window": {"tumbling": "1m"}, "select": {"n": "count(*)"}}},
    }
)


@pytest.fixture(scope="module")
async def server(start: Start) -> AsyncIterator[Serving]:
    async with start(definitions=DEFINITIONS, key_cache_s=0) as serving:
        yield serving


async def verified(client: httpx.AsyncClient, **headers: str) -> dict[str, Any]:
    """Start the checks, and wait for their end."""
    begun = await client.post("/admin/verify", headers=headers)
    assert (begun.status_code, begun.json()["state"]) == (202, "running")
    async with asyncio.timeout(60):
        while (state := (await client.get("/admin/verify", headers=headers)).json())["state"] == "running":  # noqa: ASYNC110  (it is the server who knows)
            await asyncio.sleep(0.01)
    return state


async def test_definitions_in_force_are_reported_with_their_tables(client: httpx.AsyncClient) -> None:
    told = (await client.get("/admin/definitions")).json()
    assert told["version"] is None, "nothing was folded here"
    assert told["meters"]["api_calls"]["period"] == "day"
    assert told["streams"]["trades"]["key"] == ["trade_id"]
    tables = {table["name"]: table for table in told["tables"]}
    assert tables["trades"]["columns"] == {"trade_id": "bigint", "price": "decimal(18,4)"}
    assert {"counters", "volume", "late_rows"} <= set(tables)
    assert not any("$" in name for name in tables), "what is the fold's own is not told"
    assert told["changed"] == []


async def test_activity_counts_answers_by_verdict(client: httpx.AsyncClient) -> None:
    event = {"stream": "s", "idempotencyKey": "activity"}
    await client.post("/v1/events", json=[event, event, {"stream": "s", "quantity": "x"}])
    await client.post("/v1/events", json={**event, "customerRef": "another"})
    told = (await client.get("/admin/activity")).json()
    assert told["stepSeconds"] == 2
    assert len(told["items"]) == 300
    sums = {name: sum(step[name] for step in told["items"]) for name in ("accepted", "duplicates", "conflicts")}
    assert sums == {"accepted": 1, "duplicates": 1, "conflicts": 1}
    assert sum(step["rejected"] for step in told["items"]) == 1


async def test_the_ledger_is_checked_beside_everything_else(client: httpx.AsyncClient) -> None:
    assert (await client.get("/admin/verify")).json()["state"] == "none"
    found = await verified(client)
    assert (found["state"], found["ok"], found["first"]) == ("done", True, None), found
    assert {"chain", "density", "order", "content"} <= {check["name"] for check in found["checks"]}
    assert (await client.delete("/admin/verify")).json() == found, "there is nothing to stop any more"


async def test_a_check_can_be_stopped(client: httpx.AsyncClient) -> None:
    await client.post("/admin/verify")
    assert (await client.delete("/admin/verify")).json()["state"] == "stopped"


async def test_a_row_that_was_changed_is_named(client: httpx.AsyncClient, server: Serving) -> None:
    sent = await client.post("/v1/events", json={"stream": "s", "customerRef": "honest"})
    sequence = sent.json()["results"][0]["ingressSequence"]
    async with await server.ledger.database.connect() as connection:
        await connection.execute("SET session_replication_role = replica")
        await connection.execute("UPDATE events SET customer_ref = 'x' WHERE ingress_sequence = %s", (sequence,))
    found = await verified(client)
    assert found["ok"] is False
    assert str(sequence) in found["first"]


async def test_a_tenants_key_sees_its_own_and_checks_nothing(client: httpx.AsyncClient, server: Serving) -> None:
    theirs = bearer(await make_key(server, "acme", ["ingest", "read", "admin"]))
    all_of_it = bearer(await make_key(server, "*", ["read"]))
    await client.post("/v1/events", json={"stream": "s"}, headers=theirs)
    told = (await client.get("/admin/activity", headers=theirs)).json()
    assert sum(step["accepted"] for step in told["items"]) == 1
    assert (await client.get("/admin/activity?tenantId=b", headers=theirs)).status_code == 403
    assert (await client.get("/admin/activity")).status_code == 401
    for method in ("GET", "POST", "DELETE"):
        assert (await client.request(method, "/admin/verify", headers=theirs)).status_code == 403
    assert (await client.post("/admin/verify", headers=all_of_it)).status_code == 403
    assert (await client.get("/admin/verify", headers=all_of_it)).status_code == 200
