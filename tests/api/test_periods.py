"""Closing periods over HTTP: who may, what is answered, and what is stated; by hand and by the clock."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.fold import folded
from tests.http.test_access import bearer, make_key
from tests.model.samples import at
from tests.serving import Start
from tests.triggers.receiver import receiving
from tidelock.app import Serving
from tidelock.client import AsyncClient, Client
from tidelock.definitions import parse_definitions
from tidelock.fold.rangefold import RangeFold
from tidelock.fold.ranges import ledger_end, next_range
from tidelock.fold.store import Store
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark
from tidelock.tables import SCHEMA

Json = dict[str, Any]

METERS = parse_definitions(
    {
        "meters": {
            "calls": {"period": "month", "group_by": "data.region"},
            "daily": {"stream": "calls", "period": "day", "aggregation": "max"},
            "invoiced": {"period": "month"},
            "timed": {"stream": "clocked", "close": "72h"},
            "hourly": {"stream": "clocked", "period": "hour", "close": "30m", "statements": False},
        }
    }
)


class Ledger:
    """A server whose clock is the test's, and the fold of its ledger, by hand."""

    def __init__(self, serving: Serving, spark: Spark, clock: list[int]) -> None:
        self.serving = serving
        self.url = serving.url
        self.database: Database = serving.ledger.database
        self.clock = clock
        self._spark = spark

    async def fold(self) -> None:
        await asyncio.to_thread(self._fold)

    def _fold(self) -> None:
        with closing(Store(self.database, SCHEMA, "fold")) as store:
            range_fold = RangeFold(self._spark, store, self.database, METERS)
            position, end = store.position(), ledger_end(store)
            while position < end:
                found = next_range(store, position, 1000)
                assert found is not None
                store.rollback()
                if found.control is None:
                    range_fold.apply(found.lo, found.hi)
                else:
                    range_fold.control(found)
                position = found.hi


@pytest.fixture(scope="module")
async def ledger(start: Start, spark: Spark) -> AsyncIterator[Ledger]:
    clock = [at("2026-04-10T12:00:00Z")]
    reads: Callable[[int], int] = lambda _: clock[0]  # noqa: E731
    async with start(definitions=METERS, clock=reads, webhook_allow_private=True) as serving:
        yield Ledger(serving, spark, clock)


@pytest.fixture(scope="module")
async def api(ledger: Ledger) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=ledger.url, timeout=60) as client:
        yield client


async def record(api: httpx.AsyncClient, *events: Json) -> None:
    answer = await api.post("/v1/events", json=list(events))
    assert answer.json()["accepted"] == len(events), answer.text


def call(ts: str, quantity: int = 1, customer: str = "c", stream: str = "calls", **more: Any) -> Json:
    return {"stream": stream, "customerRef": customer, "ts": ts, "quantity": quantity, **more}


async def close(api: httpx.AsyncClient, through: str, **more: Any) -> Any:
    answer = await api.post("/v1/periods/close", json={"through": through, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["ingressSequence"]


async def get(api: httpx.AsyncClient, path: str, **parameters: Any) -> Any:
    answer = await api.get(path, params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def refused(api: httpx.AsyncClient, body: Any) -> tuple[int, str, str | None]:
    answer = await api.post("/v1/periods/close", json=body)
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["field"]


async def test_nothing_can_be_closed_before_anything_was_folded(api: httpx.AsyncClient) -> None:
    assert await refused(api, {"through": "2026-03-01"}) == (503, "unavailable", None)
    assert (await get(api, "/v1/periods"))["items"] == []


async def test_a_closed_value_does_not_move_and_its_statement_says_by_how_much_the_total_did(
    api: httpx.AsyncClient, ledger: Ledger
) -> None:
    async with await ledger.database.connect() as connection:
        await folded.define(connection, METERS)
    await record(api, call("2026-03-20T00:00:00Z", 5, data={"region": "eu"}), call("2026-03-31T22:00:00Z", 7))
    # In a backlog too: what is closed is what the ledger has by then.
    sequence = await close(api, "2026-04-01T00:00:00Z", metric="calls")
    assert await close(api, "2026-04-01", metric="calls") is None, "twice is once"
    await record(api, call("2026-03-31T23:00:00Z", 1), call("2026-03-02T00:00:00Z", 4, "new"))
    await ledger.fold()
    assert await close(api, "2026-03-15", metric="calls") is None, "what ends before is closed"

    (usage,) = (await get(api, "/v1/usage", metric="calls", customerRef="c"))["items"]
    assert (usage["value"], usage["adjustment"], usage["total"]) == ("12", "1", "13")
    (stated,) = (await get(api, "/v1/statements", metric="calls", period="2026-03"))["items"]
    assert {name: stated[name] for name in ("customer_ref", "value", "total", "event_count", "closed_sequence")} == {
        "customer_ref": "c",
        "value": "12",
        "total": "12",
        "event_count": 2,
        "closed_sequence": sequence,
    }
    assert (stated["period_start"], stated["period_end"]) == ("2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z")
    assert (stated["adjustmentSince"], stated["restated"], stated["adjustmentCount"]) == ("1", "0", 1)
    (adjustment,) = stated["adjustments"]
    assert (adjustment["amount"], adjustment["reason"]) == ("1", "closed")

    explained = await get(api, "/v1/explain", metric="calls", customerRef="c", period="2026-03-01")
    assert (explained["agrees"], explained["closedSequence"]) == (True, sequence)
    assert [event["adjustedReason"] for event in explained["items"]] == [None, None, "closed"]
    assert explained["why"].endswith(f"Its period was closed at sequence {sequence:,}.")
    new = await get(api, "/v1/explain", metric="calls", customerRef="new")
    assert (new["agrees"], new["value"], new["total"], new["watermark"]) == (True, "0", "4", None)
    before = await get(api, "/v1/usage", metric="calls", customerRef="c", asOf=sequence + 1)
    assert [(each["value"], each["total"]) for each in before["items"]] == [("12", "13")]

    (row,) = (await get(api, "/v1/periods", metric="calls"))["items"]
    assert (row["closedThrough"], row["closedSequence"], row["open"]) == ("2026-04-01T00:00:00Z", sequence, [])
    march = {"periodStart": "2026-03-01T00:00:00Z", "periodEnd": "2026-04-01T00:00:00Z", "counters": 2}
    assert row["closed"] == [march], "also counters that began after the close"
    assert (await get(api, "/v1/statements", period="2026-02"))["items"] == []
    tables = await get(api, "/v1/tables/statements", where='{"customer_ref": {"_eq": "c"}, "metric": {"_eq": "calls"}}')
    assert [each["value"] for each in tables["items"]] == ["12"]
    said = await api.post("/graphql", json={"query": "{ statements { metric value closed_sequence } }"})
    assert {"metric": "calls", "value": "12", "closed_sequence": str(sequence)} in said.json()["data"]["statements"]

    # What adjusts a counter of other periods that begins where the statement does is not about the statement.
    by_day = replace(METERS, meters={**METERS.meters, "calls": replace(METERS.meters["calls"], period="day")})
    async with await ledger.database.connect() as connection:
        await folded.define(connection, by_day, version=2)
    (stated,) = (await get(api, "/v1/statements", metric="calls", period="2026-03"))["items"]
    assert [stated[name] for name in ("value", "adjustmentSince", "restated")] == ["12", None, None]
    assert (stated["adjustmentCount"], stated["adjustments"]) == (0, [])


async def test_usage_of_all_customers_comes_in_order_and_in_pages(api: httpx.AsyncClient, ledger: Ledger) -> None:
    names = ["b", "a b", "a", "a!", 'a"', "é", "B"]
    days = ("2026-04-02T00:00:00Z", "2026-04-01T00:00:00Z")
    sent = [call(ts, n, name, tenantId="many") for n, name in enumerate(names, start=1) for ts in days]
    await record(api, *sent, call(days[0], 1, "b", tenantId="many", data={"region": "eu"}, resourceId="r"))
    await ledger.fold()
    asked = {"metric": "daily", "tenantId": "many"}
    whole = await get(api, "/v1/usage", **asked)
    places = [(item["customerRef"], item["periodStart"]) for item in whole["items"]]
    assert places == sorted(places)
    assert len(places) == 14
    assert (whole["metric"], whole["aggregation"], whole["period"], whole["next"]) == ("daily", "max", "day", None)
    items: list[Json] = []
    cursor: str | None = None
    while cursor is not None or not items:
        page = await get(api, "/v1/usage", limit=3, **asked, **({"cursor": cursor} if cursor else {}))
        items, cursor = [*items, *page["items"]], page["next"]
    assert items == whole["items"]
    groups = (await get(api, "/v1/usage", metric="calls", tenantId="many", groupBy="true", limit=2))["items"]
    assert [item["group"] for item in groups] == [None, None]
    april = await get(api, "/v1/usage", **asked, **{"from": "2026-04-02T00:00:00Z"})
    assert {item["periodStart"] for item in april["items"]} == {"2026-04-02T00:00:00Z"}
    failed = await api.get("/v1/usage", params={"metric": "daily", "asOf": 1})
    assert (failed.status_code, failed.json()["error"]["field"]) == (400, "asOf")
    failed = await api.get("/v1/usage", params={"metric": "daily", "customerRef": "a", "limit": 1})
    assert (failed.status_code, failed.json()["error"]["field"]) == (400, "limit")


@pytest.mark.parametrize("path", ["/v1/usage", "/v1/counters", "/v1/statements", "/v1/adjustments"])
async def test_lists_are_given_as_csv_with_the_next_page_in_a_link(api: httpx.AsyncClient, path: str) -> None:
    asked: Json = {"metric": "calls", "limit": 1}
    json_items = (await get(api, path, metric="calls"))["items"]
    rows: list[dict[str, str]] = []
    url: str | None = f"{path}?metric=calls&limit=1"
    while url is not None:
        answer = await api.get(url, headers={"accept": "text/csv"})
        assert answer.headers["content-type"].startswith("text/csv")
        rows += csv.DictReader(io.StringIO(answer.text))
        url = answer.links["next"]["url"] if "next" in answer.links else None
    assert len(rows) == len(json_items) >= 1
    for row, item in zip(rows, json_items, strict=True):
        assert row == {name: "" if item[name] is None else str(item[name]) for name in row}
    either = await api.get(path, params=asked, headers={"accept": "text/csv;q=0.5, application/json"})
    assert either.headers["content-type"] == "application/json"


async def test_the_client_follows_exports_to_their_end(api: httpx.AsyncClient, ledger: Ledger) -> None:
    async with AsyncClient(ledger.url) as client:
        found = [each async for each in client.usage_of_all("daily", tenant="many")]
        stated = [each async for each in client.statements(metric="calls", period="2026-03")]
        again = await client.close_periods("2026-04-01", metric="calls")
    assert len(found) == 14
    assert found[0].customer_ref == "B"
    assert [each["customer_ref"] for each in stated] == ["c"]
    assert again is None

    def waiting() -> tuple[int, int, int | None]:
        with Client(ledger.url) as waiting_client:
            every = len(list(waiting_client.usage_of_all("daily", tenant="many")))
            months = len(list(waiting_client.statements(metric="calls")))
            return every, months, waiting_client.close_periods("2026-04-01", metric="calls")

    assert await asyncio.to_thread(waiting) == (14, 1, None)


async def test_meters_that_have_a_time_are_closed_by_one_event_when_it_has_come(
    api: httpx.AsyncClient, ledger: Ledger
) -> None:
    await record(api, call("2026-04-10T11:30:00Z", stream="clocked"), call("2026-03-30T00:00:00Z", stream="clocked"))
    await ledger.fold()
    # March was over 72 h ago, and what happened in that hour of March as well; the hour until noon is not yet.
    await asyncio.wait_for(_closed(api, "timed"), 30)
    await ledger.fold()
    periods = {each["metric"]: each for each in (await get(api, "/v1/periods"))["items"]}
    assert periods["timed"]["closedThrough"] == "2026-04-01T00:00:00Z"
    assert periods["timed"]["closedSequence"] == periods["hourly"]["closedSequence"]
    assert periods["hourly"]["closedThrough"] == "2026-04-10T11:00:00Z"
    (open_,) = periods["hourly"]["open"]
    assert open_ == {
        "periodStart": "2026-04-10T11:00:00Z",
        "periodEnd": "2026-04-10T12:00:00Z",
        "counters": 1,
        "closesAt": "2026-04-10T12:30:00Z",
    }
    ledger.clock[0] = at("2026-04-10T12:30:00Z")
    await asyncio.wait_for(_closed(api, "hourly", "2026-04-10T12:00:00Z"), 30)
    await ledger.fold()
    statements = (await get(api, "/v1/statements"))["items"]
    assert "hourly" not in {each["metric"] for each in statements}, "it is declared without statements"


async def _closed(api: httpx.AsyncClient, metric: str, through: str | None = None) -> None:
    while True:
        (found,) = (await get(api, "/v1/periods", metric=metric))["items"]
        if found["closedThrough"] is not None and through in (None, found["closedThrough"]):
            return
        await asyncio.sleep(0.05)


async def test_a_close_starts_an_invoice_run_by_a_trigger_on_statements(api: httpx.AsyncClient, ledger: Ledger) -> None:
    secret = "whsec_" + "c2VjcmV0" * 4
    given = {"name": "invoices", "table": "statements", "match": {"metric": {"_eq": "invoiced"}}, "secrets": [secret]}
    async with receiving() as receiver:
        made = await api.post("/v1/triggers", json={**given, "webhook": receiver.url})
        assert made.status_code == 201, made.text
        sent = [call("2026-03-20T00:00:00Z", n, f"c{n}", stream="invoiced") for n in (1, 2)]
        await record(api, *sent)
        sequence = await close(api, "2026-04-01", metric="invoiced")
        await ledger.fold()
        await receiver.until(lambda: len(receiver.accepted) == 2, 60)
        told = [json.loads(request.body) for request in receiver.accepted]
        assert (await api.delete("/v1/triggers/invoices")).status_code == 204
    assert {each["event_type"] for each in told} == {"MATCH"}
    rows = sorted(
        (each["data"]["customer_ref"], each["data"]["value"], each["data"]["closed_sequence"]) for each in told
    )
    assert rows == [("c1", "1", sequence), ("c2", "2", sequence)]


async def test_one_of_many_who_close_at_once_does(api: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(*(close(api, "2026-03-01T00:00:00Z", metric="daily") for _ in range(8)))
    assert sorted(answer is not None for answer in answers) == [False] * 7 + [True]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"through": "2026-05-01"}, (422, "period_not_over", "through")),
        ({"through": "2026-04-10T13:00:00Z"}, (422, "period_not_over", "through")),
        ({"through": "2026-03-01", "metric": "cals"}, (404, "not_found", "metric")),
        ({"through": "2026-03-01", "tenantId": "nobody"}, (404, "not_found", "tenantId")),
        ({"through": "2026-03-01", "tenantId": "_tidelock"}, (404, "not_found", "tenantId")),
        ({"through": "March"}, (400, "invalid_request", "through")),
        ({"through": "2026-03-01", "metric": ""}, (400, "invalid_request", "metric")),
        ({}, (400, "invalid_request", None)),
        ({"through": 5}, (400, "invalid_request", None)),
        ({"through": "2026-03-01", "tenant": "x"}, (400, "invalid_request", None)),
        ([], (400, "invalid_request", None)),
    ],
)
async def test_what_cannot_be_closed_is_said(api: httpx.AsyncClient, body: Any, told: Any) -> None:
    assert await refused(api, body) == told


async def test_an_instant_that_ends_nothing_closes_what_ends_before_it(api: httpx.AsyncClient) -> None:
    assert await close(api, "2026-03-10T07:00:00Z", metric="daily") is not None
    (found,) = (await get(api, "/v1/periods", metric="daily"))["items"]
    assert found["closedThrough"] == "2026-03-10T00:00:00Z"


async def test_a_maximum_of_nothing_counted_on_time_has_no_adjustment_but_a_total(
    api: httpx.AsyncClient, ledger: Ledger
) -> None:
    await record(api, call("2026-03-02T00:00:00Z", 4, "eve"))
    sequence = await close(api, "2026-03-11T00:00:00Z", metric="daily")
    await record(api, call("2026-03-02T01:00:00Z", 6, "eve"))
    await ledger.fold()
    asked = {"metric": "daily", "customerRef": "eve"}
    for more in ({}, {"asOf": sequence + 1}):
        (usage,) = (await get(api, "/v1/usage", **asked, **more))["items"]
        assert (usage["value"], usage["adjustment"], usage["total"], usage["watermark"]) == (None, None, "6", None)
    first, second = (await get(api, "/v1/adjustments", **asked))["items"]
    assert [(each["amount"], each["reason"]) for each in (first, second)] == [("4", "closed"), ("2", "closed")]
    (stated,) = (await get(api, "/v1/statements", **asked))["items"]
    assert (stated["value"], stated["total"], stated["adjustmentSince"], stated["restated"]) == (None, "4", "2", "0")


async def test_a_key_closes_periods_of_its_own_tenant_with_the_scope_for_it(
    api: httpx.AsyncClient, ledger: Ledger
) -> None:
    await record(api, call("2026-03-20T00:00:00Z", tenantId="acme"))
    reading = await make_key(ledger.serving, "acme", ["read"])
    closing_ = await make_key(ledger.serving, "acme", ["admin"])
    body = {"through": "2026-03-21", "metric": "daily"}
    assert (await api.post("/v1/periods/close", json=body, headers=bearer(reading))).status_code == 403
    other = await api.post("/v1/periods/close", json=body | {"tenantId": "default"}, headers=bearer(closing_))
    assert other.status_code == 403
    answer = await api.post("/v1/periods/close", json=body, headers=bearer(closing_))
    assert answer.json()["ingressSequence"] is not None
    await ledger.fold()
    (own,) = (await api.get("/v1/periods", params={"metric": "daily"}, headers=bearer(reading))).json()["items"]
    assert (own["tenantId"], own["closedThrough"]) == ("acme", "2026-03-21T00:00:00Z")
    found = (await api.get("/v1/statements", headers=bearer(reading))).json()["items"]
    assert {(each["tenant_id"], each["metric"]) for each in found} == {("acme", "daily")}
