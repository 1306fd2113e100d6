"""Distinct texts in counters and groups, against a count of sets, on random entries cut at random."""

from __future__ import annotations

import os
from collections.abc import Iterator
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.fold.kernel.entries import ENTRIES, Memory, Toml, kernel_meters
from tests.model.values import key_text
from tidelock.fold.kernel.counters import count
from tidelock.fold.kernel.distinct import Owners, Texts
from tidelock.instants import format_instant
from tidelock.tables import ADJUSTMENTS, COUNTER_GROUPS, COUNTERS, DISTINCT, KEY

pytestmark = pytest.mark.check

TOML: Toml = {
    "meters": {
        "seen": {"aggregation": "unique_count", "lateness": "5ns", "group_by": ["region"]},
        "sums": {"aggregation": "sum", "lateness": "0s"},
        "users": {"aggregation": "unique_count", "lateness": "1000h", "live": False},
    }
}
LATENESS = (5, 0, 10**18)
TEXTS = ["", "a", "b", "c", 'q"\\\n', "é😀", "x" * 2_000, "x" * 2_000 + "y", "1", "null"]


def test_values_and_totals_are_the_sizes_of_the_sets_however_entries_are_cut() -> None:
    seed = int(os.environ.get("LAW_SEED", "4242"))
    print(f"LAW_SEED={seed}")
    chance = Random(seed)
    for size in (60, 120):
        rows = list(entries(chance, size))
        found = [folded(rows, cut) for cut in (range(len(rows)), [0], sorted(chance.sample(range(len(rows)), 12)))]
        for memory in found:
            wanted = Counted(rows)
            for table in (COUNTERS, COUNTER_GROUPS):
                kept = {key: row for (_, key), row in memory.state(table).items() if row["metric"] != "sums"}
                assert {key: (row["value"], row["total"]) for key, row in kept.items()} == {
                    key: (len(wanted.value.get(key, ())), len(seen))
                    for key, seen in wanted.total.items()
                    if (len(key.split("Z")[-1]) > 2) == (table is COUNTER_GROUPS)
                }
                for row in kept.values():
                    assert [row[f"agg_{name}"] for name in ("sum", "max", "min", "last")] == [None] * 4
            amounts = memory.state(ADJUSTMENTS).values()
            own = {row["ingress_sequence"]: row for row in amounts if row["metric"] == "seen"}
            assert {sequence: row["amount"] for sequence, row in own.items()} == wanted.amounts
            assert {row["quantity"] for row in own.values()} <= {None}
            texts = memory.state(DISTINCT).values()
            assert sum(row["in_total"] for row in texts) == sum(map(len, wanted.total.values()))
            assert sum(row["in_value"] for row in texts) == sum(map(len, wanted.value.values()))
        sums = [row for row in found[0].state(COUNTERS).values() if row["metric"] == "sums"]
        assert {row["value"] == row["agg_sum"] for row in sums} == {True}
        assert stored(found[0]) == stored(found[1]) == stored(found[2]), "whatever the cuts"


def test_a_change_is_made_where_the_number_of_events_or_of_texts_has_changed() -> None:
    rows = [
        entry(1, 10, "a"),
        entry(2, 10, "a"),
        entry(3, 4, "a"),
        entry(4, 4, "b"),
        entry(5, 4, "b"),
        entry(6, 9, "b"),
    ]
    memory = folded(rows, [0, 3])
    seen = [
        (row["source_timestamp"], row["new"]["value"], row["new"]["total"], row["new"]["agg_count"])
        for table, row in memory.changes
        if table == "counters"
    ]
    # The third and the fifth are late and bring nothing new.
    assert seen == [(1, 1, 1, 1), (2, 1, 1, 2), (4, 1, 2, 2), (6, 2, 2, 3)]
    amounts = {row["ingress_sequence"]: row["amount"] for row in memory.state(ADJUSTMENTS).values()}
    assert amounts == {3: 0, 4: 1, 5: 0}


def test_a_counter_can_be_given_the_texts_it_has_now() -> None:
    memory = folded([entry(1, 10, "a"), entry(2, 10, "b"), entry(3, 1, "c")], [0])
    ((_, key),) = memory.state(COUNTERS)
    members = pa.array([key[1:-1]])
    owners = Owners(pa.array(["t"]), pa.array(["seen"]), members)
    texts, times = pa.array(["c", "d", "b", "a"]), np.array([7, 7, 7, 7])
    settling = Texts(owners, np.zeros(4, np.int64), texts, memory.stored)
    flags = np.array([True, True, False, True]), np.array([True, False, False, True])
    altered = np.array([True, True, True, False])
    memory.apply(settling.settled(*flags, altered, times))
    found = {row[KEY].removeprefix(key[:-1]): row for row in memory.state(DISTINCT).values()}
    own = {text: (row["in_value"], row["in_total"], row["source_timestamp"]) for text, row in found.items()}
    assert {text: row for text, row in own.items() if text.startswith(",")} == {
        ',"a"]': (True, True, 1), ',"c"]': (True, True, 7), ',"d"]': (True, False, 7), ',"eu","a"]': (True, True, 1),
        ',"eu","b"]': (True, True, 2), ',"eu","c"]': (False, True, 3),
    }  # fmt: skip


class Counted:
    """What counters and groups are worth, entry by entry."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.value: dict[str, set[str]] = {}
        self.total: dict[str, set[str]] = {}
        self.amounts: dict[int, int] = {}
        latest: dict[str, int] = {}
        for row in rows:
            name = list(TOML["meters"])[row["meter"]]
            if name == "sums":
                continue
            members = [name, row["customer_ref"], format_instant(row["period_start"])]
            counter = key_text(members)
            late = row["occurred_at"] < latest.get(counter, -(10**18)) - LATENESS[row["meter"]]
            latest[counter] = max(latest.get(counter, -(10**18)), row["occurred_at"]) if not late else latest[counter]
            for key in [counter, *([key_text([*members, row["group_key"]])] if name == "seen" else [])]:
                before = len(self.total.setdefault(key, set()))
                self.total[key].add(row["text"])
                if not late:
                    self.value.setdefault(key, set()).add(row["text"])
                elif key == counter and name == "seen":
                    self.amounts[row["ingress_sequence"]] = len(self.total[key]) - before


def entry(sequence: int, occurred_at: int, text: str | None, **more: Any) -> dict[str, Any]:
    return {
        "ingress_sequence": sequence, "source_timestamp": sequence, "tenant_id": "t", "customer_ref": "c", "meter": 0,
        "occurred_at": occurred_at, "period_start": 0, "quantity": None, "group_key": "eu", "text": text, **more,
    }  # fmt: skip


def entries(chance: Random, count: int) -> Iterator[dict[str, Any]]:
    time = 0
    for sequence in range(1, count + 1):
        time += chance.choice([0, 1])
        meter = chance.choice([0, 0, 1, 2])
        yield entry(
            sequence, chance.randrange(20), None if meter == 1 else chance.choice(TEXTS), source_timestamp=time,
            customer_ref=chance.choice(["c", 'd"']), meter=meter, quantity=Decimal(3) if meter == 1 else None,
            group_key=chance.choice(["eu", "us", "", None]),
        )  # fmt: skip


def folded(rows: list[dict[str, Any]], starts: Any) -> Memory:
    """In ranges that begin at some rows. A collection is never cut."""
    memory, meters = Memory(), kernel_meters(TOML)
    times = [row["source_timestamp"] for row in rows]
    bounds = [start for start in starts if start and times[start] != times[start - 1]]
    for lo, hi in zip([0, *bounds], [*bounds, len(rows)], strict=True):
        for outcome in count(pa.Table.from_pylist(rows[lo:hi], ENTRIES), meters, memory.stored):
            memory.apply(outcome)
    return memory


def stored(memory: Memory) -> list[dict[tuple[str, str], dict[str, Any]]]:
    return [memory.state(table) for table in (COUNTERS, COUNTER_GROUPS, ADJUSTMENTS, DISTINCT)]
