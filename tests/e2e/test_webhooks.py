"""From an event to a webhook, by `tidelock up` and a receiver: in order, with ids to rely on, whoever is killed."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.stack import Stack
from tests.triggers.receiver import Receiver, Reply, Request, receiving
from tidelock.triggers.definition import event_id
from tidelock.triggers.signatures import verify

pytestmark = pytest.mark.stack
TENANT = "webhooks"
SECRET = "whsec_" + "c2VjcmV0" * 4
#: quantities of two trades, request by request
STEPS = [(5, 50), (15, 5), (20, 11), (3, 12), (11, 1)]


@pytest.mark.timeout(600)
async def test_receivers_are_told_in_order_and_with_ids_to_rely_on(stack: Stack) -> None:
    refused: set[str] = set()

    def behave(request: Request) -> Reply:
        """Refuses everything the first time."""
        known = request.id in refused
        refused.add(request.id)
        return Reply() if known else Reply(503)

    async with receiving(behave) as receiver, httpx.AsyncClient(base_url=stack.url, timeout=60) as client:
        await make(client, "big", "trades", {"qty": {"_gt": 10}}, receiver)
        await make(client, "used", "counters", {"value": {"_gte": 2}}, receiver)
        times: list[int] = []
        for number, quantities in enumerate(STEPS):
            if number == 3:
                # Killed while there is something to tell, and something to evaluate.
                await asyncio.to_thread(stack.restart_after_a_kill)
            times.append(await send(client, number, quantities))
        await receiver.until(lambda: len({request.id for request in receiver.accepted}) >= 8, 180)
        deliveries = (await client.get("/v1/triggers/big/deliveries")).json()["items"]
        for name in ("big", "used"):
            assert (await client.delete(f"/v1/triggers/{name}")).status_code == 204
    check(receiver, times)
    assert {each["status"] for each in deliveries} == {"delivered"}
    assert all(each["attempts"] >= 2 for each in deliveries)


async def make(client: httpx.AsyncClient, name: str, table: str, match: Any, receiver: Receiver) -> None:
    given = {"name": name, "table": table, "match": match, "webhook": receiver.url, "secrets": [SECRET]}
    response = await client.post("/v1/triggers", json={**given, "tenantId": TENANT})
    assert response.status_code == 201, response.text


async def send(client: httpx.AsyncClient, number: int, quantities: tuple[int, int]) -> int:
    """One request; gives its source timestamp."""
    rows = [{"trade_id": trade, "qty": qty, "price": "1.50"} for trade, qty in enumerate(quantities, start=1)]
    trades = [{"stream": "trades", "data": row, "idempotencyKey": f"{number} {row['trade_id']}"} for row in rows]
    call: dict[str, Any] = {"stream": "calls", "customerRef": "c", "quantity": 1, "ts": "2026-03-01T00:00:00Z"}
    call["idempotencyKey"] = f"call {number}"
    events: list[dict[str, Any]] = [*trades, call]
    events = [event | {"tenantId": TENANT} for event in events]
    answer = (await client.post("/v1/events", json=events)).json()
    assert answer["accepted"] == 3, answer
    return int(answer["results"][0]["sourceTimestamp"])


def check(receiver: Receiver, times: list[int]) -> None:
    wanted = {
        "1": [("MATCH", times[1], 15), ("UNMATCH", times[3], 3), ("MATCH", times[4], 11)],
        "2": [("MATCH", times[0], 50), ("UNMATCH", times[1], 5), ("MATCH", times[2], 11), ("UNMATCH", times[4], 1)],
    }
    bodies = [verify(request.body, request.headers, SECRET) for request in receiver.accepted]
    for key, expected in wanted.items():
        found: dict[str, tuple[str, int, int]] = {}
        for body in bodies:
            if body["trigger_name"] == "big" and str(body["data"]["trade_id"]) == key:
                assert body["event_id"] == event_id("big", key, int(body["source_timestamp"]))
                told = (body["event_type"], int(body["source_timestamp"]), body["data"]["qty"])
                assert found.setdefault(body["event_id"], told) == told, "a repeat says the same"
                assert body["data"] == {"trade_id": int(key), "qty": told[2], "price": "1.5"}
        assert list(found.values()) == expected
    (used,) = {body["event_id"]: body for body in bodies if body["trigger_name"] == "used"}.values()
    assert (used["event_type"], used["data"]["value"], int(used["source_timestamp"])) == ("MATCH", "2", times[1])
