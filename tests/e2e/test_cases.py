"""The worked examples of the contract, through the public API."""

import json

import httpx
import pytest

from tests.faults.servers import ROOT
from tests.serving import Start

IDENTITY = json.loads((ROOT / "tests" / "cases" / "identity.json").read_text())


async def test_derived_keys_are_those_of_the_worked_examples(start: Start) -> None:
    cases = IDENTITY["idempotency_keys"]
    events = [
        {name: case[name] for name in ("tenantId", "stream", "customerRef", "resourceId", "ts")} for case in cases
    ]
    async with start(salt=IDENTITY["salt"]) as server, httpx.AsyncClient(base_url=server.url) as client:
        answer = (await client.post("/v1/events", json=events)).json()
    assert [result["idempotencyKey"] for result in answer["results"]] == [case["idempotencyKey"] for case in cases]
    assert {result["keySource"] for result in answer["results"]} == {"derived"}


@pytest.mark.parametrize("follow", ["after=0", "after=0&stream=s&tenantId=default"])
async def test_out_of_order_events_follow_in_the_one_order_that_the_lists_have(start: Start, follow: str) -> None:
    from websockets.asyncio.client import connect

    async with start() as server, httpx.AsyncClient(base_url=server.url) as client:
        for second in (30, 10, 20, 59, 0):
            sent = [{"stream": "s", "ts": f"2026-01-01T00:00:{second:02d}Z"}, {"stream": "s", "ts": 1000 - second}]
            assert (await client.post("/v1/events", json=sent)).json()["accepted"] == 2
        listed = (await client.get("/admin/events")).json()["items"]
        async with connect(f"{server.url.replace('http', 'ws')}/ws?{follow}") as tail:
            followed = [json.loads(await tail.recv()) for _ in listed]
    assert followed == listed
    assert [event["ingressSequence"] for event in listed] == list(range(1, 11))
    assert [event["occurredAt"] for event in listed] != sorted(event["occurredAt"] for event in listed)
