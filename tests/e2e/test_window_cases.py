"""The worked examples of event time through the API: requests and control events, then tables, late rows and health.

Once with a clock of the test's own, when every source timestamp is as the example says; and once by the real clock,
when a closing is compared by its place among the collections.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Start
from tests.e2e.test_reads import listed
from tests.faults.servers import ROOT
from tests.running import RunningFold, folding_beside
from tidelock.app import Serving
from tidelock.definitions import parse_definitions
from tidelock.fold.session import Spark
from tidelock.instants import SECOND, format_instant, parse_rfc3339

Json = dict[str, Any]

ORDERED: list[Json] = json.loads((ROOT / "tests" / "cases" / "eventtime.json").read_text())
WINDOWS: list[Json] = json.loads((ROOT / "tests" / "cases" / "windows.json").read_text())
BASE = parse_rfc3339("2026-02-01T00:00:00Z")
HOUR = 3_600 * SECOND
UNITS = {"s": SECOND, "ms": SECOND // 1000}


def nanoseconds(seconds: float) -> int:
    return int(Decimal(str(seconds)) * SECOND)


def definitions() -> Json:
    """A stream and a window, or an ordered output, for every case."""
    streams: Json = {}
    windows: Json = {}
    eventtime = {"column": "t", "type": "unixtimestamp_ns"}
    for number, case in enumerate(ORDERED):
        waits = {"late_tolerance": f"{case['late_tolerance']}{case['unit']}"}
        streams[f"line_{number}"] = {"columns": {"t": "bigint"}, "eventtime": eventtime | waits, "ordered": True}
    for number, case in enumerate(WINDOWS):
        streams[f"rows_{number}"] = {
            "columns": {"t": "bigint", "g": "string", "q": "int"}, "eventtime": eventtime
        }  # fmt: skip
        ((kind, size),) = case["window"].items()
        frame = [f"{each}s" for each in size] if isinstance(size, list) else size if kind == "count" else f"{size}s"
        by_event_time = {"enabled": True, "late_tolerance": f"{case['late_tolerance']}s"}
        windows[f"window_{number}"] = {
            "stream": f"rows_{number}", "window": {kind: frame}, "group_by": ["g"],
            "eventtime": by_event_time if case["time"] == "event" else {"enabled": False},
            "select": {"rows": "count(*)", "total": "sum(q)"},
        }  # fmt: skip
    return {"streams": streams, "windows": windows}


class Place:
    """A server and its fold. The clock shows what a case says, or is the real one."""

    def __init__(self, *, exact: bool) -> None:
        self.exact = exact
        self.now = 0
        #: cases take place one after another, each in an hour of its own
        self.base = BASE

    def clock(self, reading: int) -> int:
        return self.now if self.exact else reading

    def serve(self, server: Serving, client: httpx.AsyncClient, fold: RunningFold) -> None:
        self.server, self.client, self.fold = server, client, fold

    async def send(self, stream: str, rows: list[Json]) -> tuple[int, list[int]]:
        """Record a request; gives its source timestamp and the sequences."""
        sent = [{"stream": stream, "tenantId": row.pop("tenant", "default"), "data": row} for row in rows]
        answer = (await self.client.post("/v1/events", json=sent)).json()
        assert answer["accepted"] == len(sent), answer
        sequences = [result["ingressSequence"] for result in answer["results"]]
        return int(answer["results"][0]["sourceTimestamp"]), sequences

    async def control(self, **data: str) -> tuple[int, list[int]]:
        recorded = await self.server.ledger.sequencer.control(data)
        return int(recorded.source_timestamp), [recorded.ingress_sequence]

    async def folded(self, sequences: list[int]) -> None:
        await asyncio.to_thread(self.fold.wait, sequences[-1])

    async def times(self, table: str) -> dict[tuple[str, str], int]:
        """The source timestamp of every row."""
        async with await self.server.ledger.database.connect() as connection:
            found = await connection.execute(
                f'SELECT tenant_id, "$key", source_timestamp FROM tidelock_tables."{table}"'.encode()
            )
            return {(tenant, key): time for tenant, key, time in await found.fetchall()}


@pytest.fixture(scope="module", params=[True, False], ids=["by the case's clock", "by the real clock"])
async def place(request: pytest.FixtureRequest, start: Start, spark: Spark) -> AsyncIterator[Place]:
    parsed = parse_definitions(definitions())
    opened = Place(exact=request.param)
    async with (
        start(definitions=parsed, clock=opened.clock) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
        folding_beside(spark, server.ledger.database, parsed) as fold,
    ):
        opened.serve(server, client, fold)
        yield opened


@pytest.mark.parametrize("number", range(len(WINDOWS)), ids=[case["name"] for case in WINDOWS])
async def test_windows_close_where_the_example_says(place: Place, number: int) -> None:
    case, window = WINDOWS[number], f"window_{number}"
    by_arrival = case["time"] == "processing"
    if by_arrival and not place.exact:
        pytest.skip("by arrival, the windows are those of the clock")
    place.base += HOUR
    recorded: dict[int, int] = {}
    sequences: list[int] = []
    for collection in case["collections"]:
        place.now = place.base + nanoseconds(collection["at"])
        if "rows" in collection:
            rows = [
                {"q": 1, **row, "t": place.base + nanoseconds(row["t"])} for row in collection["rows"]
            ]  # fmt: skip
            time, taken = await place.send(f"rows_{number}", rows)
        elif collection["control"] == "tick" and by_arrival:
            await place.folded(sequences)
            tick = await place.server.ledger.sequencer.tick()
            assert tick is not None, "it is due"
            time, taken = int(tick.source_timestamp), [tick.ingress_sequence]
        else:
            more = {"window": window} if collection["control"] == "drain" else {}
            time, taken = await place.control(type=collection["control"], **more)
        assert not place.exact or time == place.now
        recorded[nanoseconds(collection["at"])] = time
        sequences += taken
    await place.folded(sequences)
    times = await place.times(window)
    found = []
    for row in await listed(place.client, f"/v1/tables/{window}"):
        ordinal = row.get("window_ordinal")
        key = json.dumps([row["g"], row["window_start"] if ordinal is None else str(ordinal)], separators=(",", ":"))
        found.append(
            (
                row["tenant_id"], row["g"], ordinal, row["window_start"], row["window_end"], row["rows"], row["total"],
                times[row["tenant_id"], key],
            )
        )  # fmt: skip
    wanted = [
        (
            row["tenant"], row["g"], row.get("window_ordinal"), shown(place, row["start"]),
            shown(place, end(case, row)), row["count"], row["sum"], recorded[nanoseconds(row["closed_at"])],
        )
        for row in case["closed"]
    ]  # fmt: skip
    assert sorted(found) == sorted(wanted)
    late = await listed(place.client, "/v1/late", window=window)
    assert sorted((row["tenant_id"], row["ingress_sequence"], row["reason"]) for row in late) == sorted(
        (row["tenant"], sequences[row["ingress_sequence"] - 1], row["reason"]) for row in case["late"]
    )


def end(case: Json, row: Json) -> float:
    ((kind, size),) = case["window"].items()
    if "end" in row:
        return float(row["end"])
    return float(row["start"]) + (size[0] if kind == "hopping" else size)


def shown(place: Place, seconds: float) -> str:
    return format_instant(place.base + nanoseconds(seconds))


@pytest.mark.parametrize("number", range(len(ORDERED)), ids=[case["name"] for case in ORDERED])
async def test_rows_are_released_where_the_example_says(place: Place, number: int) -> None:
    case, stream = ORDERED[number], f"line_{number}"
    unit = UNITS[case["unit"]]
    place.base += HOUR
    place.now = place.base
    sequences: list[int] = []
    released: dict[int, int] = {}
    late: list[int] = []
    for collection, step in zip(case["collections"], case["steps"], strict=True):
        if collection:
            place.now += SECOND
            time, taken = await place.send(stream, [{"t": t * unit} for t in collection])
            sequences += taken
            released |= {sequences[row["ingress_sequence"] - 1]: time for row in step["released"]}
            late += [sequences[row["ingress_sequence"] - 1] for row in step["late"]]
        # Step by step by the one clock, all at once by the other.
        if place.exact or step is case["steps"][-1]:
            await place.folded(sequences)
            rows = await listed(place.client, f"/v1/tables/{stream}_ordered")
            assert [row["ingress_sequence"] for row in sorted(rows, key=lambda row: row["position"])] == [*released]
            times = await place.times(f"{stream}_ordered")
            assert times == {("default", str(sequence)): time for sequence, time in released.items()}
            rows = await listed(place.client, "/v1/late", window=f"{stream}_ordered")
            assert [row["ingress_sequence"] for row in rows] == late
            params = {"window": f"{stream}_ordered"}
            (health,) = (await place.client.get("/admin/event-health", params=params)).json()["windows"]
            assert health["watermark"] == format_instant(step["watermark"] * unit)
            assert health["lateDroppedCount"] == len(late)
            assert health["bufferSize"] == len(sequences) - len(released) - len(late)
    assert len(case["buffered_at_end"]) == len(sequences) - len(released) - len(late)
