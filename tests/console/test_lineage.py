"""What pages derive by themselves: rows an event touched, its graph, what needs attention, and bounded lists."""

from __future__ import annotations

from typing import Any

import pytest

from tidelock.console import attention
from tidelock.console.lineage import Lookup, lookups
from tidelock.console.pages.event import graph
from tidelock.console.pages.events import ROWS, EventList
from tidelock.console.parts.picture import LastEvents
from tidelock.definitions import parse_definitions
from tidelock.instants import SECOND

Json = dict[str, Any]

DEFINITIONS: Json = parse_definitions(
    {
        "streams": {
            "trades": {
                "key": "id",
                "columns": {"id": "bigint", "symbol": "string", "ts": "bigint"},
                "eventtime": {"column": "ts", "type": "unixtimestamp_ms"},
                "ordered": True,
            }
        },
        "meters": {"calls": {"period": "day", "group_by": ["data.region"]}, "seats": {"stream": "calls"}},
        "windows": {
            "tumbled": {
                "stream": "trades",
                "window": {"tumbling": "1m"},
                "eventtime": {"enabled": True},
                "group_by": ["symbol"],
                "select": {"n": "count(*)"},
            },
            "hopped": {
                "stream": "calls",
                "window": {"hopping": ["10s", "5s"]},
                "group_by": ["data.region"],
                "select": {"n": "count(*)"},
            },
            "counted": {"stream": "calls", "window": {"count": 3}, "select": {"n": "count(*)"}},
            "sessions": {"stream": "calls", "window": {"session": "30s"}, "select": {"n": "count(*)"}},
        },
    }
).canonical()
AT = 1_769_904_007 * SECOND


def recorded(stream: str, data: Any = None, **given: Any) -> Json:
    return {
        "ingressSequence": 7, "stream": stream, "customerRef": "c", "op": "upsert", "data": data,
        "occurredAt": "2026-01-31T23:59:59.5Z", "sourceTimestamp": str(AT), **given,
    }  # fmt: skip


def found(event: Json) -> dict[str, Lookup]:
    return {lookup.name: lookup for lookup in lookups(event, DEFINITIONS)}


def test_an_event_is_looked_up_by_key_and_its_own_time() -> None:
    rows = found(recorded("trades", {"id": 5, "symbol": "X", "ts": 1_769_904_065_000}))
    assert rows["trades"].where == {"id": {"_eq": 5}}
    assert rows["tumbled"].where == {"symbol": {"_eq": "X"}, "window_start": {"_in": ["2026-02-01T00:01:00Z"]}}
    assert rows["trades_ordered"].where == {"ingress_sequence": {"_eq": 7}}
    assert rows["late for trades_ordered"].where["window"] == {"_eq": "trades_ordered"}
    assert rows["error of trades"].tone == "warn"


def test_windows_by_arrival_go_by_the_source_timestamp() -> None:
    rows = found(recorded("calls", {"region": None}))
    starts = ["2026-02-01T00:00:05Z", "2026-02-01T00:00:00Z"]
    assert rows["hopped"].where == {"data_region": {"_is_null": True}, "window_start": {"_in": starts}}
    assert rows["sessions"].where["window_end"] == {"_gt": "2026-02-01T00:00:07Z"}
    assert "counted" not in rows, "a window of rows has no time to be found by"


def test_a_counter_is_that_of_the_customer_and_period() -> None:
    rows = found(recorded("calls"))
    assert rows["calls"].where["period_start"] == {"_eq": "2026-01-31T00:00:00Z"}
    assert rows["seats"].where["period_start"] == {"_eq": "2026-01-01T00:00:00Z"}
    assert not {"calls", "seats"} & found(recorded("calls", customerRef=None)).keys()


def test_a_delete_touches_the_latest_row_only() -> None:
    rows = found(recorded("trades", {"id": 5}, op="delete"))
    assert set(rows) == {"trades", "error of trades"}


@pytest.mark.parametrize("value", [None, "soon", {}, "1e3"])
def test_what_has_no_time_is_looked_up_in_no_window(value: Any) -> None:
    assert "tumbled" not in found(recorded("trades", {"id": 1, "ts": value}))
    assert "tumbled" not in found(recorded("trades", value))


def test_a_graph_has_a_lane_for_each_stream_and_leads_to_its_events() -> None:
    events = [
        {"ingressSequence": 1, "stream": "<orders>", "receivedAt": "x", "parent": None},
        {"ingressSequence": 2, "stream": "paid", "receivedAt": "x", "parent": 1},
        {"ingressSequence": 3, "stream": "<orders>", "receivedAt": "x", "parent": 2},
        {"ingressSequence": 4, "stream": "<orders>", "receivedAt": "x", "parent": 99},
    ]
    drawn = graph(events, 2)
    assert drawn.count('class="tl-lane"') == 2
    assert drawn.count('class="tl-edge"') == 2, "a cause that is not among them has no edge"
    assert 'class="tl-node tl-node-here" href="/events/2"' in drawn
    assert "<orders>" not in drawn


def test_what_needs_somebody_is_reported_with_what_to_do() -> None:
    behind = {"name": "fold", "lagSeconds": 90.0, "lagSequences": 1200}
    (slow,) = attention.of_readers([behind])
    assert (slow.tone, slow.title) == ("bad", "fold is behind: 1,200 events, 90 s")
    assert not list(attention.of_readers([{**behind, "lagSeconds": 1.0}]))
    (none,) = attention.of_readers([])
    assert none.command == "tidelock fold"
    quiet = {"accepted": 1000, "duplicates": 5, "conflicts": 0, "rejected": 2}
    assert not list(attention.of_activity([quiet]))
    assert len(list(attention.of_activity([{**quiet, "conflicts": 1, "rejected": 900}]))) == 2
    assert not list(attention.of_definitions({"changed": ["meters.a"], "version": None}))
    (changed,) = attention.of_definitions({"changed": ["meters.a"], "version": 3})
    assert changed.command == "tidelock replay"


class Ledger:
    """Ten million events of which one in so many matches, as the API pages them; it remembers what was read."""

    def __init__(self, every: int) -> None:
        self.every, self.head, self.widest = every, 10_000_000, 0

    async def get(self, path: str, **given: Any) -> Json:
        if path == "/admin/event-health":
            return {"head": {"ingressSequence": self.head}}
        after, before, limit = given["after"], given.get("before", self.head + 1), given["limit"]
        self.widest = max(self.widest, before - after)
        first = after // self.every * self.every + self.every
        rows = range(first, before, self.every)
        taken = rows[:limit] if given["order"] == "asc" else rows[::-1][:limit]
        items = [{"ingressSequence": sequence} for sequence in taken]
        return {"items": items, "next": "on" if len(rows) > limit else None}


async def test_a_rare_event_is_looked_for_in_stretches_and_found_in_the_end() -> None:
    ledger: Any = Ledger(every=3_000_000)
    events = EventList(ledger, {"stream": "rare"}, narrow=False)
    await events.newest()
    seen = [item["ingressSequence"] for item in events.items]
    while events.more:
        assert events.looked_to is not None
        await events.older()
        seen += [item["ingressSequence"] for item in events.items]
    assert seen == [9_000_000, 6_000_000, 3_000_000]
    assert ledger.widest <= 250_001, "no single query goes further"


async def test_pages_go_back_and_forth_over_the_same_events() -> None:
    ledger: Any = Ledger(every=2)
    events = EventList(ledger, {}, narrow=True)
    await events.newest()
    newest = events.items
    assert len(newest) == ROWS
    await events.older()
    assert events.items[0]["ingressSequence"] == newest[-1]["ingressSequence"] - 2
    await events.newer()
    assert events.items == newest
    assert not await events.follow(), "nothing came"
    ledger.head += 2
    assert await events.follow()
    assert [len(events.items), events.items[0]["ingressSequence"]] == [ROWS, 10_000_002]


async def test_following_what_does_not_come_looks_at_what_is_new_only() -> None:
    ledger: Any = Ledger(every=30_000_000)
    events = EventList(ledger, {"stream": "silent"}, narrow=False)
    await events.newest()
    ledger.widest = 0
    for _ in range(5):
        ledger.head += 1000
        assert not await events.follow()
    assert ledger.widest == 1001


async def test_the_last_events_are_looked_for_once_and_then_among_the_new() -> None:
    ledger: Any = Ledger(every=400_000)
    last = LastEvents(ledger, "quiet", "acme")

    async def read(count: int) -> list[int]:
        ledger.widest = 0
        await last.read(ledger.head, count)
        return [item["ingressSequence"] for item in last.items]

    assert await read(5) == [9_200_000, 9_600_000, 10_000_000]
    assert (last.more, ledger.widest) == (False, 1_000_001)
    assert await read(5) == [9_200_000, 9_600_000, 10_000_000]
    assert ledger.widest == 0, "nothing is new"
    ledger.head += 400_000
    assert await read(3) == [9_600_000, 10_000_000, 10_400_000]
    assert (last.more, ledger.widest) == (True, 400_001)
    ledger.head += 4_000_000
    assert await read(3) == [13_600_000, 14_000_000, 14_400_000]
    assert await read(4) == [13_600_000, 14_000_000, 14_400_000], "more are looked for in the last million again"
