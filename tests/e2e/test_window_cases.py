"""The worked examples of event time through the API: requests and control events, then tables, late rows and health.

All of them in one ledger, in turns, each with tenants of its own: the first requests of all, then the second ones. The
real clock records them, so a closing is compared by its place among the requests. Only the example by arrival needs a
clock that shows what it says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.api.test_events import listed
from tests.model.eventtime_cases import (
    ORDERED_CASES,
    WINDOW_CASES,
    closed_windows,
    late_reasons,
    ordered_collections,
    ordered_held,
    ordered_steps,
    shared_definitions,
    window_collections,
)
from tests.running import RunningFold, folding_beside
from tests.serving import Start
from tidelock.app import Serving
from tidelock.definitions import parse_definitions
from tidelock.instants import format_instant
from tidelock.model import CONTROL
from tidelock.spark.runtime import Spark

Json = dict[str, Any]
DEFINITIONS, WINDOWS, STREAMS = shared_definitions()


class Played:
    """A case that takes place, and where its events are."""

    def __init__(self, name: str, stream: str, output: str, collections: list[tuple[int, list[Json]]]) -> None:
        self.name, self.stream, self.output, self.collections = name, stream, output, collections
        self.sequences: list[int] = []
        #: source timestamps by those of the case
        self.times: dict[int, int] = {}
        #: what could be seen of ordered output after each collection
        self.seen: list[Json] = []

    def tenant(self, name: str = "default") -> str:
        return f"{self.name}-{name}"

    def recorded(self, numbers: list[int]) -> list[int]:
        """The sequences of the case as the ledger has them."""
        return [self.sequences[number - 1] for number in numbers]


class Place:
    """A server and its fold."""

    def __init__(self) -> None:
        #: what the clock shows, if not the time
        self.now: int | None = None

    def clock(self, reading: int) -> int:
        return reading if self.now is None else self.now

    def serve(self, server: Serving, client: httpx.AsyncClient, fold: RunningFold) -> None:
        self.server, self.client, self.fold = server, client, fold

    async def play(self, case: Played, turn: int) -> None:
        """Record the case's collection of this turn."""
        at, drafts = case.collections[turn]
        if not drafts:
            return
        if drafts[0]["stream"] == CONTROL:
            said = json.loads(drafts[0]["data"])
            said |= {"window": case.output} if said["type"] == "drain" else {}
            recorded = await self.server.ledger.sequencer.control(said)
            case.times[at] = int(recorded.source_timestamp)
            case.sequences.append(recorded.ingress_sequence)
            return
        sent = [
            {
                "stream": case.stream,
                "tenantId": case.tenant(d.get("tenant_id", "default")),
                "data": json.loads(d["data"]),
            }
            for d in drafts
        ]
        answer = (await self.client.post("/v1/events", json=sent)).json()
        assert answer["accepted"] == len(sent), answer
        case.times[at] = int(answer["results"][0]["sourceTimestamp"])
        case.sequences += [result["ingressSequence"] for result in answer["results"]]

    async def play_by_arrival(self, case: Played) -> None:
        """At the times that the case says. A tick is recorded because one is due, which the fold must have said."""
        for turn, (at, drafts) in enumerate(case.collections):
            if drafts[0]["stream"] == CONTROL:
                await self.folded(case)
                self.now = at
                # The server may have been faster.
                await self.server.ledger.sequencer.tick()
                ((sequence, case.times[at]),) = await self.query(
                    "SELECT ingress_sequence, source_timestamp FROM events WHERE stream = '_tidelock'"
                )
                case.sequences.append(sequence)
            else:
                self.now = at
                await self.play(case, turn)
            assert case.times[at] == at
        await self.folded(case)
        self.now = None

    async def folded(self, *cases: Played) -> None:
        """Until all that they have recorded is in the tables."""
        await asyncio.to_thread(self.fold.wait, max(case.sequences[-1] for case in cases if case.sequences))

    async def query(self, text: str) -> list[tuple[Any, ...]]:
        async with await self.server.ledger.database.connect() as connection:
            return await (await connection.execute(text.encode())).fetchall()

    async def look(self, case: Played) -> None:
        """See what ordered output has now."""
        whose = {"tenantId": case.tenant(), "window": case.output}
        case.seen.append(
            {
                "rows": await listed(self.client, f"/v1/tables/{case.output}", tenantId=case.tenant()),
                "times": await self.times(case),
                "late": await listed(self.client, "/v1/late", **whose),
                "health": (await self.client.get("/admin/event-health", params=whose)).json()["windows"],
            }
        )

    async def times(self, case: Played) -> dict[tuple[str, str], int]:
        """The source timestamp of every row."""
        found = await self.query(
            f"""SELECT tenant_id, "$key", source_timestamp FROM tidelock_tables."{case.output}"
                WHERE starts_with(tenant_id, '{case.tenant("")}')"""
        )
        return {(tenant, key): time for tenant, key, time in found}


class Examples:
    """Everything has taken place."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.windows = [
            Played(f"window-{n}", DEFINITIONS["windows"][WINDOWS[n]]["stream"], WINDOWS[n], window_collections(case))
            for n, case in enumerate(WINDOW_CASES)
        ]
        self.ordered = [
            Played(f"ordered-{n}", STREAMS[n], f"{STREAMS[n]}_ordered", ordered_collections(case))
            for n, case in enumerate(ORDERED_CASES)
        ]

    async def play(self) -> None:
        (arriving,) = (p for p, case in zip(self.windows, WINDOW_CASES, strict=True) if case["time"] == "processing")
        # Whatever is recorded ends a window by arrival, so that example comes first.
        await self.place.play_by_arrival(arriving)
        cases = [case for case in [*self.windows, *self.ordered] if case is not arriving]
        for turn in range(max(len(case.collections) for case in cases)):
            for case in cases:
                if turn < len(case.collections):
                    await self.place.play(case, turn)
            await self.place.folded(*cases)
            for case in self.ordered:
                if turn < len(case.collections):
                    await self.place.look(case)


@pytest.fixture(scope="module")
async def examples(start: Start, spark: Spark) -> AsyncIterator[Examples]:
    parsed = parse_definitions(DEFINITIONS)
    place = Place()
    async with (
        start(definitions=parsed, clock=place.clock) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
        folding_beside(spark, server.ledger.database, parsed) as fold,
    ):
        place.serve(server, client, fold)
        played = Examples(place)
        await played.play()
        yield played


@pytest.mark.parametrize("number", range(len(WINDOW_CASES)), ids=[case["name"] for case in WINDOW_CASES])
async def test_windows_close_where_the_example_says(examples: Examples, number: int) -> None:
    case, played = WINDOW_CASES[number], examples.windows[number]
    client = examples.place.client
    tenants = sorted({row.get("tenant", "default") for each in case["collections"] for row in each.get("rows", [])})
    found, late = [], []
    for tenant in tenants:
        whose = {"tenantId": played.tenant(tenant)}
        found += [seen(row) for row in await listed(client, f"/v1/tables/{played.output}", **whose)]
        rows = await listed(client, "/v1/late", **whose, window=played.output)
        late += [(tenant, row["ingress_sequence"], row["reason"]) for row in rows]
    closed = closed_windows(case)
    assert sorted(found, key=str) == sorted((wanted(played, t, row) for (t, _), (_, row) in closed.items()), key=str)
    times = {(played.tenant(tenant), key): played.times[at] for (tenant, key), (at, _) in closed.items()}
    assert await examples.place.times(played) == times
    reasons = {(tenant, *played.recorded([n]), reason) for (tenant, n), reason in late_reasons(case).items()}
    assert sorted(late) == sorted(reasons)


def seen(row: Json) -> Json:
    names = ("tenant_id", "g", "window_ordinal", "window_start", "window_end", "rows", "total")
    return {name: row[name] for name in names if name in row}


def wanted(played: Played, tenant: str, row: Json) -> Json:
    instants = {name: format_instant(row[name]) for name in ("window_start", "window_end")}
    return {"tenant_id": played.tenant(tenant), **row, **instants, "total": str(row["total"])}


@pytest.mark.parametrize("number", range(len(ORDERED_CASES)), ids=[case["name"] for case in ORDERED_CASES])
async def test_rows_are_released_where_the_example_says(examples: Examples, number: int) -> None:
    case, played = ORDERED_CASES[number], examples.ordered[number]
    released: dict[int, int] = {}
    late: list[int] = []
    sent = 0
    for (at, drafts), step, found in zip(played.collections, ordered_steps(case), played.seen, strict=True):
        sent += len(drafts)
        # An empty collection is none to the ledger: it has no time, and releases nothing.
        if drafts:
            released |= dict.fromkeys(played.recorded([n for n, _ in step["released"]]), played.times[at])
        late += played.recorded([n for n, _ in step["late"]])
        rows = sorted(found["rows"], key=lambda row: row["position"])
        assert [row["ingress_sequence"] for row in rows] == [*released]
        assert found["times"] == {(played.tenant(), str(sequence)): time for sequence, time in released.items()}
        assert [row["ingress_sequence"] for row in found["late"]] == late
        (health,) = found["health"]
        assert health["watermark"] == format_instant(step["watermark"])
        assert health["lateDroppedCount"] == len(late)
        assert health["bufferSize"] == sent - len(released) - len(late)
    assert len(ordered_held(case)) == sent - len(released) - len(late)
