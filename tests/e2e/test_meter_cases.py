"""The worked examples of meters, through the API: events are posted one by one, rows and usage are read back."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import httpx
import pytest

from tests.faults.servers import ROOT
from tests.running import folding_beside
from tests.serving import Start
from tidelock.definitions import parse_definitions
from tidelock.spark.runtime import Spark

Json = dict[str, Any]

CASES = json.loads((ROOT / "tests" / "cases" / "meters.json").read_text())
DATE = re.compile(r"\d{4}-\d\d-\d\d")


def metric(number: int) -> str:
    return f"case_{number}"


def definition(case: Json) -> Json:
    return {name: case[name] for name in ("aggregation", "period", "lateness", "group_by") if name in case}


def full(row: Mapping[str, Any]) -> Json:
    """As the API would write it: a bare date is its midnight, and no tenant is the default one."""
    written = {name: f"{v}T00:00:00Z" if DATE.fullmatch(str(v)) else v for name, v in row.items()}
    return {"tenantId": "default"} | written


def chosen(rows: Iterable[Json], names: Iterable[str]) -> list[Json]:
    """Columns of rows, in an order of their own."""
    columns = list(names)
    return sorted(({name: row[name] for name in columns} for row in rows), key=str)


@pytest.fixture(scope="module")
async def client(start: Start, spark: Spark) -> AsyncIterator[httpx.AsyncClient]:
    """Everything is folded; a meter and a stream for every case, because cases share names of customers."""
    definitions = parse_definitions({"meters": {metric(n): definition(case) for n, case in enumerate(CASES)}})
    async with (
        start(definitions=definitions) as server,
        httpx.AsyncClient(base_url=server.url) as opened,
        folding_beside(spark, server.ledger.database, definitions) as fold,
    ):
        sequence = 0
        for number, case in enumerate(CASES):
            case["sequences"] = {}
            for place, event in enumerate(case["events"], start=1):
                # With a key of its own: some happen to the same customer at the same time.
                sent = {"stream": metric(number), "idempotencyKey": f"{number}/{place}", **event}
                answer = (await opened.post("/v1/events", json=sent)).json()
                assert answer["accepted"] == 1, answer
                sequence = answer["results"][0]["ingressSequence"]
                case["sequences"][sequence] = place
        await asyncio.to_thread(fold.wait, sequence)
        yield opened


async def listed(client: httpx.AsyncClient, table: str, number: int) -> list[Json]:
    """Rows of a case in the words of the cases; sequences are counted from its first event."""
    answer = await client.get(f"/v1/{table}", params={"metric": metric(number), "limit": "1000"})
    assert answer.status_code == 200, answer.text
    rows = answer.json()["items"]
    for row in rows:
        row |= {"tenantId": row["tenant_id"], "customerRef": row["customer_ref"]}
        if "ingress_sequence" in row:
            row["ingress_sequence"] = CASES[number]["sequences"][int(row["ingress_sequence"])]
    return list(rows)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case["name"] for case in CASES])
async def test_counters_and_adjustments_are_those_of_the_worked_example(client: httpx.AsyncClient, number: int) -> None:
    case = CASES[number]
    for table in ("counters", "adjustments"):
        wanted = [full(row) for row in case[table]]
        found = await listed(client, table, number)
        assert len(found) == len(wanted), table
        columns = wanted[0].keys() if wanted else ()
        assert chosen(found, columns) == chosen(wanted, columns), table


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case["name"] for case in CASES])
async def test_usage_is_that_of_the_worked_example(client: httpx.AsyncClient, number: int) -> None:
    wanted: dict[tuple[str, str], list[Json]] = {}
    for row in map(full, CASES[number]["counters"]):
        wanted.setdefault((row["tenantId"], row["customerRef"]), []).append(row)
    for (tenant, customer), rows in wanted.items():
        usage = await usage_of(client, number, tenant, customer)
        assert usage["throughSequence"] >= max(CASES[number]["sequences"])
        names = {"periodStart": "period_start", "value": "value", "total": "total", "watermark": "watermark_ts"}
        found = [{there: item[here] for here, there in names.items()} for item in usage["items"]]
        given = [name for name in names.values() if name in rows[0]]
        assert chosen(found, given) == chosen(rows, given)


@pytest.mark.parametrize("number", [number for number, case in enumerate(CASES) if "groups" in case])
async def test_usage_of_groups_is_that_of_the_worked_example(client: httpx.AsyncClient, number: int) -> None:
    case = CASES[number]
    usage = await usage_of(client, number, "default", "c", groupBy="true")
    # Sums, so a group's value is its sum; the late event is in its group's total.
    assert case["aggregation"] == "sum"
    wanted = {group["group"]: group["agg_sum"] for group in case["groups"]}
    assert {item["group"]: item["value"] for item in usage["items"]} == wanted
    (late,) = case["adjustments"]
    differing = [item["adjustment"] for item in usage["items"] if item["total"] != item["value"]]
    assert differing == [late["amount"]]
    rows = await client.get(
        "/v1/tables/counter_groups", params={"where": json.dumps({"metric": {"_eq": metric(number)}})}
    )
    counts = {row["group_key"]: (row["agg_sum"], int(row["agg_count"])) for row in rows.json()["items"]}
    assert counts == {group["group"]: (group["agg_sum"], group["agg_count"]) for group in case["groups"]}


async def usage_of(client: httpx.AsyncClient, number: int, tenant: str, customer: str, **more: str) -> Json:
    asked = {"metric": metric(number), "tenantId": tenant, "customerRef": customer, **more}
    answer = await client.get("/v1/usage", params=asked)
    assert answer.status_code == 200, answer.text
    usage: Json = answer.json()
    return usage
