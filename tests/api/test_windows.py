"""Windows over HTTP and on the command line: how far they are, and what came too late for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.api.test_events import listed
from tests.api.test_health import away, sample
from tests.budgets import HANG_S
from tests.cli.commandline import json_lines, run
from tests.cli.test_cli import fill
from tests.fold import folded
from tests.http.test_access import bearer, make_key
from tests.serving import Start
from tidelock.app import Serving
from tidelock.definitions import parse_definitions
from tidelock.instants import format_instant, parse_rfc3339
from tidelock.postgres.database import Database
from tidelock.postgres.embedded import EmbeddedPostgres

NINE, TEN, ELEVEN = (f"2026-03-01T{hour}:00:00.5Z" for hour in ("09", "10", "11"))
STATE = {
    "closed_through": parse_rfc3339(NINE), "buffer_size": 3, "late_dropped_count": 2, "watermark_emitted_count": 7,
    "max_timestamp_seen": parse_rfc3339(ELEVEN),
}  # fmt: skip
HEALTH = {
    "watermark": TEN, "closedThrough": NINE, "bufferSize": 3, "lateDroppedCount": 2, "watermarkEmittedCount": 7,
    "maxTimestampSeen": ELEVEN,
}  # fmt: skip


@pytest.fixture
async def opened(start: Start) -> AsyncIterator[tuple[Serving, httpx.AsyncClient, folded.Connection]]:
    async with (
        start(windows_told_max=3, key_cache_s=0) as server,
        httpx.AsyncClient(base_url=server.url) as client,
        await server.ledger.database.connect() as connection,
    ):
        yield server, client, connection


async def windows(client: httpx.AsyncClient, **parameters: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.get("/admin/event-health", params=parameters)).json()["windows"]
    return found


async def test_late_rows_are_a_list_of_their_own(start: Start) -> None:
    async with (
        start() as server,
        httpx.AsyncClient(base_url=server.url) as client,
        await server.ledger.database.connect() as connection,
    ):
        await folded.late_row(connection, "acme", "volume", 7, NINE)
        await folded.late_row(connection, "acme", "volume", 8, TEN, reason="drained")
        await folded.late_row(connection, "acme", "trades_ordered", 7, TEN)
        await folded.late_row(connection, "zeta", "volume", 9, NINE)
        row = {
            "tenant_id": "acme", "window": "volume", "ingress_sequence": 7, "event_time": NINE, "watermark": TEN,
            "reason": "late",
        }  # fmt: skip
        for chosen in (
            {"window": "volume", "reason": "late"},
            {"window": "volume", "to": TEN},
            {"window": "volume", "limit": "1"},
            {"where": '{"event_time": {"_lt": "2026-03-01T10:00:00Z"}}'},
        ):
            (item,) = (await client.get("/v1/late", params={"tenantId": "acme", **chosen})).json()["items"]
            assert item == row
        (item,) = await listed(client, "/v1/late", tenantId="acme", reason="drained")
        assert item["ingress_sequence"] == 8
        pages = await listed(client, "/v1/late", limit=1)
        found = [(item["tenant_id"], item["window"], item["ingress_sequence"]) for item in pages]
        assert found == [("acme", "trades_ordered", 7), ("acme", "volume", 7), ("acme", "volume", 8),
                         ("zeta", "volume", 9)]  # fmt: skip
        assert await listed(client, "/v1/late", window="nothing") == []
        assert (await client.get("/v1/late?stream=x")).json()["error"]["field"] == "stream"


async def test_health_shows_how_far_each_window_of_each_tenant_is(
    opened: tuple[Serving, httpx.AsyncClient, folded.Connection],
) -> None:
    _, client, connection = opened
    assert await windows(client) == []
    await folded.watermark(connection, "acme", "volume", TEN, **STATE)
    await folded.watermark(connection, "acme", "orders", TEN)
    await folded.watermark(connection, "zeta", "volume", NINE)
    assert [(each["tenantId"], each["window"]) for each in await windows(client)] == [
        ("acme", "orders"), ("acme", "volume"), ("zeta", "volume")
    ]  # fmt: skip
    (found,) = await windows(client, tenantId="acme", window="volume")
    assert found == {"window": "volume", "tenantId": "acme", **HEALTH}
    (found,) = await windows(client, window="orders")
    assert (found["closedThrough"], found["maxTimestampSeen"]) == (None, None)
    assert (await client.get("/admin/event-health?windows=x")).json()["error"]["field"] == "windows"


async def test_a_window_by_arrival_is_as_far_as_the_fold(
    opened: tuple[Serving, httpx.AsyncClient, folded.Connection],
) -> None:
    _, client, connection = opened
    await folded.watermark(connection, "acme", "arrivals", None, max_timestamp_seen=5)
    (found,) = await windows(client)
    assert (found["watermark"], found["maxTimestampSeen"]) == (None, "1970-01-01T00:00:00.000000005Z")
    for _ in range(3):
        answer = (await client.post("/v1/events", json=[{"stream": "s"}, {"stream": "s"}])).json()["results"][0]
    at = format_instant(int(answer["sourceTimestamp"]))
    await connection.execute("INSERT INTO cursors VALUES ('fold', 2)")
    (found,) = await windows(client)
    assert found["watermark"] is not None
    assert found["watermark"] < at
    await connection.execute("UPDATE cursors SET sequence = 6")
    (found,) = await windows(client)
    assert found["watermark"] == at


async def test_no_more_windows_are_told_of_than_allowed_and_that_is_reported(
    opened: tuple[Serving, httpx.AsyncClient, folded.Connection],
) -> None:
    _, client, connection = opened
    for number in range(3):
        await folded.watermark(connection, f"tenant-{number}", "volume", TEN)
    health = (await client.get("/admin/event-health")).json()
    assert (len(health["windows"]), "windowsCut" in health) == (3, False)
    assert await sample(client, "tidelock_windows_cut") == 0
    await folded.watermark(connection, "tenant-9", "volume", TEN, buffer_size=1)
    health = (await client.get("/admin/event-health")).json()
    assert (len(health["windows"]), health["windowsCut"]) == (3, True)
    assert await sample(client, "tidelock_windows_cut") == 1
    assert await sample(client, "tidelock_watermark_emitted_total") == 3
    (found,) = await windows(client, tenantId="tenant-9")
    assert found["bufferSize"] == 1


async def test_a_tenants_key_sees_its_own_windows(
    opened: tuple[Serving, httpx.AsyncClient, folded.Connection],
) -> None:
    server, client, connection = opened
    for tenant in ("acme", "zeta"):
        await folded.watermark(connection, tenant, "volume", TEN)
    own, every = await make_key(server, "acme", ["read"]), await make_key(server, "*", ["read"])

    async def tenants(key: str, **parameters: str) -> list[str] | int:
        response = await client.get("/admin/event-health", params=parameters, headers=bearer(key))
        if response.status_code != 200:
            return response.status_code
        return [each["tenantId"] for each in response.json()["windows"]]

    assert await tenants(own) == ["acme"]
    assert await tenants(own, tenantId="zeta") == 403
    assert await tenants(every) == ["acme", "zeta"]
    assert await tenants(every, tenantId="zeta") == ["zeta"]


async def test_metrics_have_each_window_of_each_tenant(
    opened: tuple[Serving, httpx.AsyncClient, folded.Connection], postgres: EmbeddedPostgres
) -> None:
    server, client, connection = opened
    await folded.watermark(connection, "acme", "volume", TEN, **STATE)
    await folded.watermark(connection, 'ze"\\\nta', "volume", TEN)
    for name, value in (
        ("buffer_size", 3),
        ("late_dropped_total", 2),
        ("watermark_emitted_total", 7),
        ("max_timestamp_seen_seconds", parse_rfc3339(ELEVEN) / 1e9),
        # Deprecated names of the same.
        ("late_dropped_count", 2),
        ("watermark_emitted_count", 7),
        ("max_timestamp_seen", parse_rfc3339(ELEVEN) / 1e9),
    ):
        assert await sample(client, f"tidelock_{name}", window="volume", tenant="acme") == value
    assert await sample(client, "tidelock_watermark_emitted_total", tenant='ze"\\\nta') == 1
    text = (await client.get("/metrics")).text
    assert "# TYPE tidelock_late_dropped_total counter" in text
    assert (
        "# HELP tidelock_late_dropped_count Deprecated, gone in the next version: use tidelock_late_dropped_total"
        in text
    )
    async with away(postgres, server):
        assert await sample(client, "tidelock_buffer_size", window="volume", tenant="acme") == 3
    async with await server.ledger.database.connect() as again:
        await again.execute("DELETE FROM tidelock_tables.watermarks")
    async with asyncio.timeout(HANG_S):
        while "volume" in (await client.get("/metrics")).text:  # noqa: ASYNC110  (what is gone is gone)
            await asyncio.sleep(0.01)


def test_status_reports_windows_and_how_long_readers_have_waited(database: Database) -> None:
    async def prepare() -> None:
        async with await database.connect() as connection:
            await connection.execute("INSERT INTO cursors VALUES ('fold', 1)")
            await folded.watermark(connection, "default", "volume", TEN, **STATE)

    fill(database, {}, {})
    asyncio.run(prepare())
    (found,) = json_lines(run(database, "status", "--json"))
    assert found["windows"] == [{"window": "volume", "tenantId": "default", **HEALTH}]
    assert found["windowsCut"] is False
    (reader,) = found["readers"]
    assert reader.pop("lagSeconds") > 0
    assert reader == {"name": "fold", "ingressSequence": 1, "lagSequences": 1}
    shown = run(database, "status").stdout.splitlines()
    assert shown[-1].split() == ["volume", TEN, NINE, "3", "2"]

    async def catch_up() -> None:
        async with await database.connect() as connection:
            await connection.execute("UPDATE cursors SET sequence = 2")
            await folded.watermark(connection, "acme", "volume", None)

    asyncio.run(catch_up())
    (found,) = json_lines(run(database, "status", "--json", env={"TIDELOCK_WINDOWS_TOLD_MAX": "1"}))
    assert (found["readers"][0]["lagSeconds"], len(found["windows"]), found["windowsCut"]) == (0.0, 1, True)
    assert "tenant" in run(database, "status").stdout


OPENED = parse_definitions(
    {
        "streams": {"trades": {"columns": {"symbol": "string", "price": "decimal(10,2)", "day": "date"}}},
        "windows": {
            "volume": {
                "stream": "trades", "window": {"tumbling": "1m"}, "group_by": ["symbol", "day"],
                "select": {
                    "n": "count(*)", "mean": "avg(price)", "kinds": "unique_count(symbol)", "open": "first(price)",
                },
            },
            "threes": {"stream": "trades", "window": {"count": 3}, "select": {"total": "sum(price)"}},
        },
    }
)  # fmt: skip


async def test_windows_that_are_open_are_listed_and_marked_as_they_would_be_if_they_closed_now(start: Start) -> None:
    async with (
        start(definitions=OPENED) as server,
        httpx.AsyncClient(base_url=server.url) as client,
        await server.ledger.database.connect() as connection,
    ):
        path = "/v1/tables/volume"
        assert (await client.get(path, params={"open": "true"})).json() == {"items": [], "next": None}
        tables = await folded.define(connection, OPENED)
        for table in tables.values():
            if table.name.partition("$")[0] in OPENED.windows:
                await folded.create(connection, table)
        begin, end = parse_rfc3339("2026-03-01T10:00:00Z"), parse_rfc3339("2026-03-01T10:01:00Z")
        for number in range(70):
            row = {
                "$group": "[]", "group_0": f"S{number:02}", "group_1": "2026-03-01", "window_start": begin,
                "window_end": end, "count_0": number, "sum_1": "7", "count_1": 3, "texts_2": "a", "value_3": "1.50",
                "time_3": begin, "sequence_3": 1,
            }  # fmt: skip
            await folded.put(connection, tables["volume$open"], "acme" if number % 2 else "beta", f"{number:03}", row)
        rows = await listed(client, path, open="true", tenantId="acme", limit=17)
        assert [row["symbol"] for row in rows] == [f"S{number:02}" for number in range(1, 70, 2)]
        assert rows[0] == {
            "tenant_id": "acme", "symbol": "S01", "day": "2026-03-01", "window_start": "2026-03-01T10:00:00Z",
            "window_end": "2026-03-01T10:01:00Z", "n": 1, "mean": "2.333333333", "kinds": 1,
            # The window's own column of that name goes before the mark.
            "open": "1.5",
        }  # fmt: skip
        assert len(await listed(client, path, open="true", where='{"n": {"_gte": 60}}', limit=3)) == 10
        assert await listed(client, path) == await listed(client, path, open="false") == []
        for rows_so_far in (0, 2):
            state = {"$group": "[]", "window_ordinal": 4, "rows": rows_so_far, "sum_0": "3", "window_start": begin}
            key = f"threes {rows_so_far}"
            await folded.put(connection, tables["threes$open"], "acme", key, state | {"window_end": end})
        (three,) = await listed(client, "/v1/tables/threes", open="true")
        assert (three["window_ordinal"], three["total"], three["open"]) == (4, "3", True)
        refused = await client.get("/v1/tables/counters", params={"open": "true"})
        assert (refused.status_code, refused.json()["error"]["field"]) == (400, "open")
        first = (await client.get(path, params={"open": "true", "limit": 1})).json()["next"]
        assert (await client.get(path, params={"cursor": first})).status_code == 400
