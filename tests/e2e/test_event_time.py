"""Event time from end to end: windows close by later events, by ticks and by drains, and everybody can see why."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from tests.api.test_events import listed
from tests.api.test_health import sample
from tests.cli.commandline import json_lines, run
from tests.running import RunningFold, folding_beside
from tests.serving import Start
from tidelock.app import Serving
from tidelock.definitions import parse_definitions
from tidelock.instants import SECOND, format_instant
from tidelock.spark.runtime import Spark

Json = dict[str, Any]

DEFINITIONS = parse_definitions(
    {
        "streams": {
            "trades": {
                "columns": {"at": "bigint", "symbol": "string", "quantity": "int"},
                "eventtime": {"column": "at", "type": "unixtimestamp_s", "late_tolerance": "2s"},
                "ordered": True,
            },
            "naps": {"eventtime": {"column": "occurred_at"}},
        },
        "windows": {
            "volume": {
                "stream": "trades",
                "window": {"tumbling": "10s"},
                "eventtime": {"enabled": True, "late_tolerance": "5s"},
                "group_by": ["symbol"],
                "select": {"volume": "sum(quantity)", "trades": "count(*)"},
            },
            "arrivals": {"stream": "clicks", "window": {"tumbling": "2s"}, "select": {"clicks": "count(*)"}},
            "sleepy": {
                "stream": "naps",
                "window": {"tumbling": "1h"},
                "eventtime": {"enabled": True, "idle_timeout": "1s"},
                "select": {"naps": "count(*)"},
            },
        },
    }
)


class Place:
    """A server and its fold, and a tenant of the test's own."""

    def __init__(self, server: Serving, client: httpx.AsyncClient, fold: RunningFold, tenant: str) -> None:
        self.server, self.client, self.fold, self.tenant = server, client, fold, tenant

    async def send(self, stream: str, *events: Json) -> Json:
        """Record one request, and wait until it is folded."""
        sent = [{"stream": stream, "tenantId": self.tenant, **event} for event in events]
        answer = (await self.client.post("/v1/events", json=sent)).json()
        assert answer["accepted"] == len(sent), answer
        last: Json = answer["results"][-1]
        await asyncio.to_thread(self.fold.wait, last["ingressSequence"])
        return last

    async def trade(self, *seconds: int) -> Json:
        """Trades at these seconds since 1970, of one each."""
        return await self.send("trades", *({"data": {"at": s, "symbol": "x", "quantity": 1}} for s in seconds))

    async def rows(self, table: str) -> list[Json]:
        return await listed(self.client, f"/v1/tables/{table}", tenantId=self.tenant)

    async def closed(self, window: str) -> list[Json]:
        """Until something of an idle window is closed."""
        deadline = time.monotonic() + 60
        while not (found := await self.rows(window)):
            assert time.monotonic() < deadline, "an idle window closes"
            await asyncio.sleep(0.02)
        return found

    async def health(self, window: str) -> Json:
        params = {"tenantId": self.tenant, "window": window}
        (found,) = (await self.client.get("/admin/event-health", params=params)).json()["windows"]
        return dict(found)

    async def command(self, *arguments: object) -> list[Json]:
        result = await asyncio.to_thread(run, self.server.ledger.database, *arguments, "--json")
        return json_lines(result)

    async def query(self, text: str) -> list[tuple[Any, ...]]:
        async with await self.server.ledger.database.connect() as connection:
            return await (await connection.execute(text.encode())).fetchall()

    async def ticks(self) -> int:
        ((count,),) = await self.query(
            "SELECT count(*) FROM events WHERE tenant_id = '_tidelock' AND data ->> 'type' = 'tick'"
        )
        return int(count)


@pytest.fixture(scope="module")
async def served(start: Start, spark: Spark) -> AsyncIterator[Callable[[str], Place]]:
    async with (
        start(definitions=DEFINITIONS) as server,
        httpx.AsyncClient(base_url=server.url) as client,
        folding_beside(spark, server.ledger.database, DEFINITIONS) as fold,
    ):
        yield lambda tenant: Place(server, client, fold, tenant)


@pytest.fixture
def place(served: Callable[[str], Place], tenant: str) -> Place:
    return served(tenant)


def at(seconds: int) -> str:
    return format_instant(seconds * SECOND)


async def test_a_window_closes_once_and_what_comes_too_late_is_listed_with_the_reason(place: Place) -> None:
    await place.trade(103, 101)
    await place.trade(115)
    closing = await place.query("SELECT max(source_timestamp) FROM events WHERE stream = 'trades'")
    late = await place.trade(110, 109)
    window = {
        "tenant_id": place.tenant, "symbol": "x", "window_start": at(100), "window_end": at(110), "volume": "2",
        "trades": 2,
    }  # fmt: skip
    assert await place.rows("volume") == [window]
    where = f"WHERE tenant_id = '{place.tenant}'"
    assert await place.query(f"SELECT source_timestamp FROM tidelock_tables.volume {where}") == closing
    rows = await listed(place.client, "/v1/late", tenantId=place.tenant, window="volume")
    sequences = [late["ingressSequence"] - 1, late["ingressSequence"]]
    assert [row["ingress_sequence"] for row in rows] == sequences
    assert {(row["reason"], row["watermark"]) for row in rows} == {("late", at(110))}
    assert await place.health("volume") == {
        "window": "volume", "tenantId": place.tenant, "watermark": at(110), "closedThrough": None, "bufferSize": 0,
        "lateDroppedCount": 2, "watermarkEmittedCount": 2, "maxTimestampSeen": at(115),
    }  # fmt: skip
    labels = {"window": "volume", "tenant": place.tenant}
    for name, value in (
        ("late_dropped_total", 2), ("watermark_emitted_total", 2), ("max_timestamp_seen_seconds", 115),
    ):  # fmt: skip
        assert await sample(place.client, f"tidelock_{name}", **labels) == value


async def test_a_drain_releases_and_closes_and_later_rows_below_it_are_drained(place: Place) -> None:
    await place.trade(105, 103)
    assert await place.rows("volume") == []
    assert (await place.health("trades_ordered"))["bufferSize"] == 1
    assert await sample(place.client, "tidelock_buffer_size", window="trades_ordered", tenant=place.tenant) == 1
    (drained,) = await place.command("drain")
    await asyncio.to_thread(place.fold.wait, drained["ingressSequence"])
    (window,) = await place.rows("volume")
    assert (window["window_end"], window["trades"]) == (at(110), 2)
    rows = await place.rows("trades_ordered")
    assert sorted((row["position"], row["event_time"]) for row in rows) == [(1, at(103)), (2, at(105))]
    assert (await place.health("volume"))["closedThrough"] == at(110)
    assert (await place.health("trades_ordered"))["closedThrough"] == format_instant(105 * SECOND + 1)
    times = await place.query(
        f"SELECT source_timestamp::text FROM tidelock_tables.volume WHERE tenant_id = '{place.tenant}'"
    )
    assert times == [(drained["sourceTimestamp"],)]
    await place.trade(106)
    found = await listed(place.client, "/v1/late", tenantId=place.tenant)
    assert [(row["window"], row["reason"]) for row in found] == [("volume", "drained")]


async def test_the_ordered_tail_has_each_watermark_after_the_rows_it_released(place: Place) -> None:
    await place.trade(100)
    await place.trade(104, 101)
    await place.trade(110, 109)
    (drained,) = await place.command("drain", "trades_ordered")
    await asyncio.to_thread(place.fold.wait, drained["ingressSequence"])
    tail = await place.command("tail", "--ordered", "trades", "--tenant", place.tenant, "--after", 0)
    told = [line["row"]["event_time"] if "row" in line else ["watermark", line["watermark"]] for line in tail]
    assert told == [
        ["watermark", at(98)], at(100), at(101), ["watermark", at(102)], at(104), ["watermark", at(108)], at(109),
        at(110),
    ]  # fmt: skip
    assert [line["row"]["position"] for line in tail if "row" in line] == [1, 2, 3, 4, 5]
    assert tail[-1]["sourceTimestamp"] == drained["sourceTimestamp"]


async def test_an_idle_window_by_arrival_closes_within_two_seconds_of_its_end_by_one_tick(place: Place) -> None:
    before = await place.ticks()
    # At the beginning of a window, so that the fold has seen the row before its end.
    ((now,),) = await place.query("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
    await asyncio.sleep((2000 - now % 2000) / 1000 + 0.05)
    sent = await place.send("clicks", {}, {})
    (window,) = await place.closed("arrivals")
    end = (int(sent["sourceTimestamp"]) // (2 * SECOND) + 1) * 2 * SECOND
    assert (window["window_end"], window["clicks"]) == (format_instant(end), 2)
    ((closed_at,),) = await place.query(
        f"SELECT source_timestamp FROM tidelock_tables.arrivals WHERE tenant_id = '{place.tenant}'"
    )
    assert end <= closed_at < end + 60 * SECOND
    # Another tick, for something else, is the next one that is recorded.
    await place.send("naps", {"ts": at(100)})
    await place.closed("sleepy")
    assert await place.ticks() == before + 2, "no tick is recorded when nothing is due"
    health = await place.health("arrivals")
    ((last,),) = await place.query("SELECT source_timestamp FROM ledger_head")
    assert health["watermark"] == format_instant(last), "time goes on with every row of the ledger"
    assert (health["maxTimestampSeen"], health["lateDroppedCount"], health["watermarkEmittedCount"]) == (
        format_instant(int(sent["sourceTimestamp"])), 0, 1
    )  # fmt: skip


async def test_an_idle_timeout_drains_at_a_tick(place: Place) -> None:
    sent = await place.send("naps", {"ts": at(100)})
    (closed,) = await place.closed("sleepy")
    assert closed["naps"] == 1
    ((closed_at, kind),) = await place.query(
        "SELECT event.source_timestamp, event.data ->> 'type' FROM tidelock_tables.sleepy AS closed "
        "JOIN events AS event ON event.source_timestamp = closed.source_timestamp "
        f"WHERE closed.tenant_id = '{place.tenant}'"
    )
    assert kind == "tick"
    assert closed_at - int(sent["sourceTimestamp"]) >= SECOND
    health = await place.health("sleepy")
    assert (health["watermark"], health["closedThrough"]) == (at(100), at(3600))
    await place.send("naps", {"ts": at(200)})
    ((reason,),) = [(row["reason"],) for row in await listed(place.client, "/v1/late", tenantId=place.tenant)]
    assert reason == "drained"


async def test_what_has_no_time_is_an_error_row_and_nobody_waits_for_it(place: Place) -> None:
    ahead = int(time.time()) + 3_700
    bad = [{"data": {"at": s, "symbol": "x", "quantity": 1}} for s in (None, ahead, 56_000 * 31_556_952)]
    await place.send("trades", *bad, {"data": {"at": 100, "symbol": "x", "quantity": 1}})
    found = await listed(place.client, "/v1/errors", tenantId=place.tenant)
    assert [row["code"] for row in found] == ["invalid_event_time", "future_event_time", "future_event_time"]
    assert (await place.health("volume"))["maxTimestampSeen"] == at(100)
    assert json.loads((await place.client.get("/v1/late", params={"tenantId": place.tenant})).text)["items"] == []
