"""Explain: why a number is what it is, from the events themselves, now and as of any sequence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import date
from decimal import Decimal
from typing import Any

import httpx
import pytest

from tests.budgets import HANG_S
from tests.fold import folded
from tests.serving import Start
from tidelock.app import Serving
from tidelock.client import AsyncClient, Client
from tidelock.definitions import parse_definitions
from tidelock.errors import RequestError
from tidelock.usage.explain import Part, reason_of
from tidelock.usage.usage import moment

Json = dict[str, Any]

METERS = parse_definitions(
    {
        "streams": {"orders": {"key": "id", "columns": {"id": "bigint", "price": "decimal(18,4)"}}},
        "meters": {
            "calls": {"group_by": ["data.region"]},
            "slow": {"stream": "calls", "aggregation": "count", "where": {"data.ms": {"_gt": 100}}},
            "peak": {"stream": "calls", "aggregation": "max", "period": "day", "lateness": "0s"},
            "mean": {"stream": "calls", "aggregation": "avg", "period": "week"},
            "latest": {"stream": "calls", "aggregation": "last", "period": "hour"},
            "spent": {"stream": "orders", "value": "price"},
        },
    }
)

#: day of January, quantity, data
Call = tuple[str, str | None, Json]
CALLS: list[Call] = [
    ("10T00:00:00Z", "5", {"region": "eu", "ms": 20}),
    ("20T12:00:00Z", "2.5", {"region": "us", "ms": 200}),
    ("10T06:00:00Z", "1", {"region": "eu", "ms": 300}),  # ten days behind: late
    ("20T13:00:00Z", None, {"region": "eu", "ms": 500}),
    ("19T00:00:00Z", "-0.5", {"ms": 120}),
]


@pytest.fixture(scope="module")
async def server(start: Start) -> AsyncIterator[Serving]:
    async with start(definitions=METERS) as serving:
        yield serving


@pytest.fixture(scope="module")
async def connection(server: Serving) -> AsyncIterator[folded.Connection]:
    async with await server.ledger.database.connect() as opened:
        yield opened


async def send(client: httpx.AsyncClient, tenant: str, calls: list[Call], stream: str = "calls") -> list[int]:
    """Record calls of customer c; gives their sequences."""
    events = [
        {"tenantId": tenant, "stream": stream, "customerRef": "c", "ts": f"2026-01-{ts}", "quantity": quantity,
         "data": data, "idempotencyKey": f"{tenant} {stream} {number}"}
        for number, (ts, quantity, data) in enumerate(calls)
    ]  # fmt: skip
    answer = (await client.post("/v1/events", json={"events": events})).json()
    assert answer["rejected"] == 0, answer
    return [result["ingressSequence"] for result in answer["results"]]


async def fold_through(connection: folded.Connection, sequence: int) -> None:
    """As if the fold had come to that sequence."""
    query = "INSERT INTO cursors VALUES ('fold', %s) ON CONFLICT (name) DO UPDATE SET sequence = excluded.sequence"
    await connection.execute(query, [sequence])


async def ask(client: httpx.AsyncClient, path: str, tenant: str, **parameters: str) -> Json:
    asked = {"metric": "calls", "customerRef": "c", "tenantId": tenant, **parameters}
    response = await client.get(path, params=asked)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


async def explain(client: httpx.AsyncClient, tenant: str, **parameters: str) -> Json:
    return await ask(client, "/v1/explain", tenant, **parameters)


@pytest.fixture
async def sequences(client: httpx.AsyncClient, connection: folded.Connection, tenant: str) -> list[int]:
    """A customer's calls, all of them folded."""
    found = await send(client, tenant, CALLS)
    await fold_through(connection, found[-1])
    return found


async def test_a_sum_is_what_came_in_time_and_what_came_late(
    client: httpx.AsyncClient, connection: folded.Connection, tenant: str, sequences: list[int]
) -> None:
    found = await explain(client, tenant)
    assert {name: found[name] for name in ("value", "adjustment", "total", "watermark", "agrees")} == {
        "value": "7", "adjustment": "1", "total": "8", "watermark": "2026-01-20T12:00:00Z", "agrees": False,
    }  # fmt: skip
    assert (found["periodStart"], found["periodEnd"]) == ("2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z")
    first, second, late, broken, last = sequences
    assert found["folded"] == {
        "count": 3, "sum": "7", "max": "5", "min": "-0.5", "last": "2.5", "firstSequence": first, "lastSequence": last,
    }  # fmt: skip
    assert (found["adjusted"]["count"], found["adjusted"]["sum"], found["adjusted"]["lastSequence"]) == (1, "1", late)
    assert found["errors"] == {"count": 1, "codes": {"missing_quantity": 1}}
    assert (found["firstSequence"], found["lastSequence"], found["throughSequence"]) == (first, last, last)
    told = [
        tuple(item[name] for name in ("ingressSequence", "part", "counted", "change", "total"))
        for item in found["items"]
    ]
    assert told == [
        (first, "folded", "5", "5", "5"), (second, "folded", "2.5", "2.5", "7.5"), (late, "adjusted", "1", "1", "8.5"),
        (broken, "error", None, None, None), (last, "folded", "-0.5", "-0.5", "8"),
    ]  # fmt: skip
    assert found["items"][3]["message"].startswith('"quantity" is missing')
    assert "8 comes from 3 events on time, which alone amount to 7, and from 1 event" in found["why"]

    await folded.counter(connection, tenant, "calls", "c", "2026-01-01T00:00:00Z", value="7", total="8")
    await connection.execute("UPDATE tidelock_tables.counters SET watermark_ts = 1768910400000000000")
    assert (await explain(client, tenant))["agrees"] is True


async def test_an_item_is_the_event_as_every_list_has_it(
    client: httpx.AsyncClient, tenant: str, sequences: list[int]
) -> None:
    events = (await client.get("/admin/events", params={"tenantId": tenant, "stream": "calls"})).json()["items"]
    items = (await explain(client, tenant))["items"]
    more = {
        "part", "adjustedReason", "counted", "total", "change", "group", "code", "message", "corrects", "correctedBy",
        "countedText",
    }  # fmt: skip
    assert [{name: value for name, value in item.items() if name not in more} for item in items] == events


async def test_every_aggregation_is_explained(client: httpx.AsyncClient, tenant: str, sequences: list[int]) -> None:
    slow = await explain(client, tenant, metric="slow")
    assert (slow["value"], slow["total"], slow["filtered"]) == ("3", "4", 1)
    assert [item["part"] for item in slow["items"]] == ["filtered", "folded", "adjusted", "folded", "folded"]
    peak = await explain(client, tenant, metric="peak", period="2026-01-10")
    assert (peak["value"], peak["total"], peak["folded"]["count"]) == ("5", "5", 2)
    mean = await explain(client, tenant, metric="mean", period="2026-01-19")
    assert (mean["periodStart"], mean["value"]) == ("2026-01-19T00:00:00Z", "1")
    latest = await explain(client, tenant, metric="latest")
    assert (latest["periodStart"], latest["value"]) == ("2026-01-20T12:00:00Z", "2.5")


async def test_a_group_has_its_own_events_and_the_counters_decisions(
    client: httpx.AsyncClient, tenant: str, sequences: list[int]
) -> None:
    found = await explain(client, tenant, group="eu")
    assert (found["group"], found["value"], found["total"], found["watermark"]) == (
        "eu",
        "5",
        "6",
        "2026-01-10T00:00:00Z",
    )
    assert [item["ingressSequence"] for item in found["items"]] == [sequences[0], sequences[2], sequences[3]]
    none = await explain(client, tenant, groupNull="true")
    assert (none["group"], none["total"], len(none["items"])) == (None, "-0.5", 1)
    items = (await ask(client, "/v1/usage", tenant, groupBy="true", asOf=str(sequences[-1])))["items"]
    assert [(item["group"], item["total"]) for item in items] == [(None, "-0.5"), ("eu", "6"), ("us", "2.5")]


async def test_usage_as_of_a_sequence_is_what_was_shown_then(
    client: httpx.AsyncClient, tenant: str, sequences: list[int]
) -> None:
    shown = [await ask(client, "/v1/usage", tenant, asOf=str(sequence)) for sequence in sequences]
    told = [[(item["value"], item["adjustment"], item["total"]) for item in usage["items"]] for usage in shown]
    assert told == [
        [("5", "0", "5")], [("7.5", "0", "7.5")], [("7.5", "1", "8.5")], [("7.5", "1", "8.5")], [("7", "1", "8")],
    ]  # fmt: skip
    assert [usage["throughSequence"] for usage in shown] == sequences
    assert shown[0]["items"][0]["watermark"] == "2026-01-10T00:00:00Z"
    if sequences[0] > 1:
        assert (await ask(client, "/v1/usage", tenant, asOf=str(sequences[0] - 1)))["items"] == []
    as_of = await explain(client, tenant, asOf=str(sequences[1]))
    assert (as_of["total"], as_of["pending"], as_of["agrees"], len(as_of["items"])) == ("7.5", 3, None, 2)


async def correct(client: httpx.AsyncClient, tenant: str, op: str, number: int, **said: Any) -> int:
    """Of the call with that number; gives the correction's sequence."""
    event = {"tenantId": tenant, "stream": "calls", "op": op, "target": f"{tenant} calls {number}", **said}
    answer = (await client.post("/v1/events", json=event)).json()
    assert answer["accepted"] == 1, answer
    sequence: int = answer["results"][0]["ingressSequence"]
    return sequence


async def test_a_corrected_event_stands_beside_its_correction(
    client: httpx.AsyncClient, connection: folded.Connection, tenant: str, sequences: list[int]
) -> None:
    first, second, late, broken, last = sequences
    void = await correct(client, tenant, "void", 4, reason="tried out")
    amended = await correct(client, tenant, "amend", 1, quantity="4", data={"region": "eu"})
    too_late = await correct(client, tenant, "void", 0)
    nothing = await correct(client, tenant, "void", 3)
    await fold_through(connection, nothing)
    found = await explain(client, tenant)
    # The first call is older than the lateness by now, so the value keeps it.
    assert {name: found[name] for name in ("value", "adjustment", "total")} == {
        "value": "9", "adjustment": "-4", "total": "5",
    }  # fmt: skip
    assert {name: (found[name]["count"], found[name]["sum"]) for name in ("folded", "adjusted", "withdrawn")} == {
        "folded": (2, "9"), "adjusted": (1, "1"), "withdrawn": (1, "5"),
    }  # fmt: skip
    assert found["corrections"] == {"voids": 2, "amendments": 1, "adjusted": 1, "uncounted": 1}
    names = ("ingressSequence", "part", "adjustedReason", "counted", "change", "total", "corrects", "correctedBy")
    assert [tuple(item[name] for name in names) for item in found["items"]] == [
        (first, "folded", None, "5", "5", "5", None, too_late),
        (second, "folded", None, "2.5", "2.5", "7.5", None, amended),
        (late, "adjusted", "late", "1", "1", "8.5", None, None),
        (broken, "error", None, None, None, None, None, nothing),
        (last, "folded", None, "-0.5", "-0.5", "8", None, void),
        (void, "void", None, None, "0.5", "8.5", last, None),
        (amended, "amend", None, "4", "1.5", "10", second, None),
        (too_late, "void", "void", None, "-5", "5", first, None),
        (nothing, "void", None, None, None, None, broken, None),
    ]  # fmt: skip
    assert found["why"].startswith(
        "5 comes from 2 events on time, which alone amount to 9, and from 1 event that arrived too late, without 1 "
        "event that was corrected too late. 2 events were voided and 1 event was amended, 1 of them too late. "
        "1 correction was of events that are not counted here."
    )
    eu, us = await explain(client, tenant, group="eu"), await explain(client, tenant, group="us")
    assert (eu["total"], us["value"], us["total"]) == ("5", "0", "0")
    assert us["why"].startswith("0: nothing is counted here any more.")
    assert await windows(client, tenant, "day") == [
        ["01-10T00", None, "5", "1"], ["01-19T00", None, "0", "0"], ["01-20T00", None, "4", "4"],
    ]  # fmt: skip
    before = await explain(client, tenant, asOf=str(last))
    assert (before["total"], before["items"][1]["correctedBy"], len(before["items"])) == ("8", None, 5)
    assert (await explain(client, tenant, asOf=str(amended)))["total"] == "10"
    peak = await explain(client, tenant, metric="peak", period="2026-01-10")
    assert (peak["value"], peak["total"]) == ("5", "1")
    assert [item["total"] for item in peak["items"]] == ["5", "5", "1"]


async def windows(client: httpx.AsyncClient, tenant: str, window: str, **parameters: str) -> list[list[str | None]]:
    items = (await ask(client, "/v1/usage", tenant, window=window, **parameters))["items"]
    return [[item["periodStart"][5:13], item["group"], item["value"], item["total"]] for item in items]


def test_a_total_of_which_corrections_left_nothing_has_no_value_in_words() -> None:
    folded = Part(count=2, sum="9", max="7", min="2", last="2", first_sequence=1, last_sequence=2)
    none = Part(count=0, sum="0", max=None, min=None, last=None, first_sequence=None, last_sequence=None)
    assert reason_of("7", None, [folded, none, folded]) == (
        "Nothing is left of the total: 2 events on time, which alone amount to 7, were corrected too late."
    )


async def test_usage_by_other_periods_has_the_decisions_of_the_meters_own(
    client: httpx.AsyncClient, tenant: str, sequences: list[int]
) -> None:
    days = [["01-10T00", None, "5", "6"], ["01-19T00", None, "-0.5", "-0.5"], ["01-20T00", None, "2.5", "2.5"]]
    assert await windows(client, tenant, "day") == days
    assert (await ask(client, "/v1/usage", tenant, window="day"))["period"] == "month"
    hours = await windows(client, tenant, "hour")
    assert [row[0] for row in hours] == ["01-10T00", "01-10T06", "01-19T00", "01-20T12"]
    # The sixth hour has but the late event, which no hour before it would call late.
    assert hours[1] == ["01-10T06", None, "0", "1"]
    weeks = [["01-05T00", None, "5", "6"], ["01-19T00", None, "2", "2"]]
    assert await windows(client, tenant, "week") == weeks
    # Days decide by themselves: the meter of days calls nothing late, so its month has all of it.
    assert await windows(client, tenant, "month", metric="peak") == [["01-01T00", None, "5", "5"]]
    assert await windows(client, tenant, "week", metric="latest") == [
        ["01-05T00", None, "1", "1"], ["01-19T00", None, "2.5", "2.5"],
    ]  # fmt: skip
    groups = await windows(client, tenant, "day", groupBy="true")
    assert groups == [
        ["01-10T00", "eu", "5", "6"], ["01-19T00", None, "-0.5", "-0.5"], ["01-20T00", "us", "2.5", "2.5"],
    ]  # fmt: skip
    before = {"from": "2026-01-10T23:00:00Z", "to": "2026-01-19T00:00:00.000000001Z", "asOf": str(sequences[1])}
    assert await windows(client, tenant, "day", **before) == [["01-10T00", None, "5", "5"]]
    within = {"from": "2026-01-10T23:00:00Z", "to": "2026-01-19T00:00:00.000000001Z"}
    assert await windows(client, tenant, "day", **within) == days[:2]
    assert await windows(client, tenant, "day", **{"from": "2026-01-20T00:00:00Z"}) == days[2:]
    assert await windows(client, tenant, "week", to="2026-01-06T00:00:00Z") == weeks[:1]


async def test_usage_by_other_periods_is_csv_too(client: httpx.AsyncClient, tenant: str, sequences: list[int]) -> None:
    asked = {"metric": "calls", "customerRef": "c", "tenantId": tenant, "window": "week"}
    told = (await client.get("/v1/usage", params=asked, headers={"accept": "text/csv"})).text
    assert told.splitlines()[1] == "c,2026-01-05T00:00:00Z,2026-01-12T00:00:00Z,,5,1,6,2026-01-10T00:00:00Z"


async def test_more_windows_than_an_answer_holds_are_refused(start: Start) -> None:
    async with (
        start(definitions=METERS, usage_items_max=2) as server,
        httpx.AsyncClient(base_url=server.url) as client,
        await server.ledger.database.connect() as connection,
    ):
        await fold_through(connection, (await send(client, "t", CALLS))[-1])
        assert len(await windows(client, "t", "week")) == 2
        asked = {"metric": "calls", "customerRef": "c", "tenantId": "t", "window": "day"}
        refused = await client.get("/v1/usage", params=asked)
        assert (refused.status_code, refused.json()["error"]["field"]) == (400, "from")
        assert "more than 2 items" in refused.json()["error"]["message"]


async def test_only_what_the_fold_has_come_to_is_explained(
    client: httpx.AsyncClient, connection: folded.Connection, tenant: str, sequences: list[int]
) -> None:
    await fold_through(connection, sequences[1])
    found = await explain(client, tenant)
    assert (found["total"], found["pending"], found["throughSequence"]) == ("7.5", 3, sequences[1])
    assert "3 events were recorded later" in found["why"]


async def test_what_does_not_fit_its_columns_is_told(
    client: httpx.AsyncClient, connection: folded.Connection, tenant: str
) -> None:
    prices = ["1.5", "1.23456", 2, None]
    orders: list[Call] = [("10T00:00:00Z", None, {"id": id_, "price": price}) for id_, price in enumerate(prices)]
    await fold_through(connection, (await send(client, tenant, orders, "orders"))[-1])
    found = await explain(client, tenant, metric="spent")
    assert (found["total"], found["errors"]) == (
        "3.5",
        {"count": 2, "codes": {"invalid_column": 1, "missing_quantity": 1}},
    )
    assert found["items"][1]["message"] == 'column "price" must be decimal(18,4)'


async def test_the_events_come_in_pages(client: httpx.AsyncClient, tenant: str, sequences: list[int]) -> None:
    seen: list[int] = []
    asked = {"limit": "2"}
    while True:
        page = await explain(client, tenant, **asked)
        assert page["total"] == "8"
        seen += [item["ingressSequence"] for item in page["items"]]
        if page["next"] is None:
            break
        asked["cursor"] = page["next"]
    assert seen == sequences
    assert len(page["items"]) == 1


async def test_a_period_is_any_of_its_instants_and_the_latest_by_default(
    client: httpx.AsyncClient, tenant: str, sequences: list[int]
) -> None:
    for period in ("2026-01-20", "2026-01-20T00:00:00Z", "2026-01-20T23:59:59.999999999Z", "1768867200000"):
        assert (await explain(client, tenant, metric="peak", period=period))["total"] == "2.5"
    assert (await explain(client, tenant, metric="peak"))["periodStart"] == "2026-01-20T00:00:00Z"
    empty = await explain(client, tenant, metric="peak", period="2026-01-01")
    assert (empty["value"], empty["total"], empty["items"], empty["agrees"]) == (None, None, [], True)
    assert empty["why"] == "Nothing is counted here."


@pytest.mark.parametrize(
    ("path", "changed", "status", "field"),
    [
        ("explain", {"metric": None}, 400, "metric"), ("explain", {"metric": "nothing"}, 404, "metric"),
        ("explain", {"customerRef": None}, 400, "customerRef"), ("explain", {"customerRef": "x"}, 404, "customerRef"),
        ("explain", {"period": "soon"}, 400, "period"), ("explain", {"metric": "peak", "group": "a"}, 400, "group"),
        ("explain", {"group": "a", "groupNull": "true"}, 400, "groupNull"), ("explain", {"asOf": "0"}, 400, "asOf"),
        ("explain", {"asOf": "999999999"}, 400, "asOf"), ("explain", {"cursor": "x"}, 400, "cursor"),
        ("usage", {"asOf": "0"}, 400, "asOf"), ("usage", {"asOf": "-1"}, 400, "asOf"),
        ("usage", {"asOf": "999999999"}, 400, "asOf"), ("usage", {"asOf": "now"}, 400, "asOf"),
    ],
)  # fmt: skip
async def test_what_cannot_be_explained_is_told_by_name(
    client: httpx.AsyncClient, path: str, changed: dict[str, str | None], status: int, field: str
) -> None:
    asked = {"metric": "calls", "customerRef": "c", **changed}
    response = await client.get(f"/v1/{path}", params={n: v for n, v in asked.items() if v is not None})
    error = response.json()["error"]
    assert (response.status_code, error["field"]) == (status, field)
    assert status == 404 or error["code"] == "invalid_request"


async def test_what_takes_too_long_is_refused_with_the_setting_that_says_so(connection: folded.Connection) -> None:
    with pytest.raises(RequestError, match=r"more events than can be read within 20ms \(setting explain_timeout\)"):
        async with moment(connection, 20_000_000):
            await connection.execute("SELECT pg_sleep(30)")


async def test_the_queries_of_a_request_share_its_time(connection: folded.Connection) -> None:
    done = []

    async def look() -> None:
        async with moment(connection, 300_000_000) as now:
            for number in range(9):
                await now.execute(b"SELECT pg_sleep(0.1)")
                done.append(number)

    with pytest.raises(RequestError, match="more events than can be read within 300ms"):
        await look()
    assert len(done) < 3, "each alone has the time"


async def blocked(connection: folded.Connection) -> int:
    """How many of the connections that requests read with wait for a lock."""
    names = "('tidelock explain', 'tidelock lists')"
    query = f"SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name IN {names}"
    row = await (await connection.execute(query.encode())).fetchone()
    assert row is not None
    return int(row[0])


async def test_nobody_waits_for_explanations_but_who_asks_for_one(
    client: httpx.AsyncClient, server: Serving, connection: folded.Connection, tenant: str, sequences: list[int]
) -> None:
    asked: list[tuple[str, dict[str, str]]] = [("/v1/usage", {"asOf": str(sequences[-1])}), *[("/v1/explain", {})] * 8]
    async with (
        asyncio.timeout(60),
        asyncio.TaskGroup() as tasks,
        await server.ledger.database.connect() as holding,
        holding.transaction(),
    ):
        await holding.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        explaining = [tasks.create_task(ask(client, path, tenant, **more)) for path, more in asked]
        while await blocked(connection) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for path in ("/v1/usage", "/v1/counters"):
            await asyncio.wait_for(ask(client, path, tenant), HANG_S)
        assert await blocked(connection) == 2
    assert all(found.result()["throughSequence"] == sequences[-1] for found in explaining)


async def test_the_client_explains_in_exact_numbers(server: Serving, tenant: str, sequences: list[int]) -> None:
    async with AsyncClient(server.url) as client:
        found = await client.explain("calls", "c", tenant=tenant, period=date(2026, 1, 31))
        assert (found.value, found.total, found.folded.sum, found.errors) == (7, 8, 7, {"missing_quantity": 1})
        assert (found.items[2].part, found.items[2].change, found.items[2].event["data"]["region"]) == (
            "adjusted",
            1,
            "eu",
        )
        then = await client.usage("calls", "c", tenant=tenant, as_of=sequences[1])
        assert (then.items[0].total, then.through_sequence) == (Decimal("7.5"), sequences[1])
        days = await client.usage("calls", "c", tenant=tenant, window="day")
        assert (days.window, days.period, [item.total for item in days.items]) == (
            "day",
            "month",
            [6, Decimal("-0.5"), Decimal("2.5")],
        )

    def waiting() -> None:
        with Client(server.url) as client:
            page = client.explain("calls", "c", tenant=tenant, group="eu", as_of=sequences[-1], limit=1)
            after = client.explain("calls", "c", tenant=tenant, group="eu", limit=9, cursor=page.next)
            assert [event.ingress_sequence for event in (*page.items, *after.items)] == [
                sequences[n] for n in (0, 2, 3)
            ]
            assert client.usage("calls", "c", tenant=tenant, as_of=sequences[0]).items[0].total == 5
            assert client.explain("calls", "c", tenant=tenant, no_group=True).total == Decimal("-0.5")

    await asyncio.to_thread(waiting)
