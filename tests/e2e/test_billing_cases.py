"""The worked examples of billing, through the API: events, closes and corrections are posted one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest

from tests.e2e.test_meter_cases import chosen, definition, full, metric
from tests.model.billing_cases import CASES
from tests.running import folding_beside
from tests.serving import Start
from tidelock.definitions import parse_definitions
from tidelock.spark.runtime import Spark

Json = dict[str, Any]


@pytest.fixture(scope="module")
async def client(start: Start, spark: Spark) -> AsyncIterator[httpx.AsyncClient]:
    """Everything is folded; a meter and a stream for every case, because cases share names of customers."""
    definitions = parse_definitions({"meters": {metric(n): definition(dict(case)) for n, case in enumerate(CASES)}})
    async with (
        start(definitions=definitions) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as opened,
        folding_beside(spark, server.ledger.database, definitions) as fold,
    ):
        sequence = 0
        for number, case in enumerate(CASES):
            case["sequences"] = {}  # type: ignore[index]
            for place, step in enumerate(case["steps"], start=1):
                sequence = await _take(opened, number, step)
                case["sequences"][sequence] = place
        await asyncio.to_thread(fold.wait, sequence)
        yield opened


async def _take(client: httpx.AsyncClient, number: int, step: Mapping[str, Any]) -> int:
    """The sequence that it got."""
    if "close" in step:
        asked = {"through": step["close"], "tenantId": step["tenantId"], "metric": metric(number)}
        answer = await client.post("/v1/periods/close", json=asked)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["ingressSequence"])
    keys = {name: f"{number}/{step[name]}" for name in ("idempotencyKey", "target") if name in step}
    sent = {**step, **keys, "stream": metric(number)}
    (result,) = (await client.post("/v1/events", json=sent)).json()["results"]
    assert result["status"] == "accepted", result
    return int(result["ingressSequence"])


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case["name"] for case in CASES])
@pytest.mark.parametrize("table", ["counters", "adjustments", "statements"])
async def test_a_case_has_its_rows(client: httpx.AsyncClient, number: int, table: str) -> None:
    case = CASES[number]
    answer = await client.get(f"/v1/{table}", params={"metric": metric(number)})
    items = [
        {
            name: case["sequences"][value] if name in ("ingress_sequence", "closed_sequence") else value
            for name, value in item.items()
        }
        for item in answer.json()["items"]
    ]
    wanted = [{name: value for name, value in full(row).items() if name != "tenantId"} for row in case[table]]
    assert chosen(items, wanted[0] if wanted else ()) == (chosen(wanted, wanted[0]) if wanted else [])
