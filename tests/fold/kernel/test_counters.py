"""The kernel's counters against the reference model, on the law's own ledgers, with no Spark and no database."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from tests.budgets import examples
from tests.fold.folding import _texts
from tests.fold.kernel.entries import ENTRIES, Memory, Toml, entries_of, kernel_meters, parted
from tests.law.closings import closes
from tests.law.corrections import Corrections
from tests.law.ledgers import COMPUTED, Ledger, definitions, ledgers
from tests.law.packs import drawn, pack, tenant_of
from tests.model import Event, State, fold
from tests.model.counting import meters_in
from tests.model.meters import period_start
from tidelock.fold.closing import Close, read_close
from tidelock.fold.kernel.corrections import CorrectedSlice, correct
from tidelock.fold.kernel.counters import count
from tidelock.fold.kernel.meters import Meters
from tidelock.model import CONTROL
from tidelock.tables import ADJUSTMENTS, COUNTER_GROUPS, COUNTERS, OPEN_COUNTERS, Table

pytestmark = pytest.mark.check

TABLES = (COUNTERS, COUNTER_GROUPS, ADJUSTMENTS)


def test_counters_groups_and_adjustments_are_the_models_however_ledgers_are_cut() -> None:
    prove(int(os.environ.get("LAW_SEED", "9")), packs=examples(2), size=25)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_counters_are_the_models_for_ten_thousand_ledgers() -> None:
    number = int(os.environ.get("LAW_SEED", str(Random().randrange(10**6))))
    print(f"LAW_SEED={number}", flush=True)
    prove(number, packs=50, size=200)


def prove(number: int, *, packs: int, size: int) -> None:
    started = time.monotonic()
    # Examples that follow each other are alike: of every ten the one with the most meters.
    some = drawn(definitions(), 10 * packs, number)
    tomls = [max(some[place : place + 10], key=lambda toml: len(toml["meters"])) for place in range(0, len(some), 10)]
    pool = drawn(ledgers(), min(packs * size, 1_000), number)
    chance = Random(number)
    # Hypothesis takes its time over long ledgers: several short ones after each other are one.
    many = [[commit for part in chance.sample(pool, 3) for commit in part] for _ in range(packs * size)]
    reasons: set[str] = set()
    counted = sum(
        prove_pack(toml, many[place * size : (place + 1) * size], chance, reasons) for place, toml in enumerate(tomls)
    )
    median = statistics.median(sum(map(len, (c for commit in ledger for c in commit))) for ledger in many)
    taken = time.monotonic() - started
    print(f"{len(many)} ledgers, median of {median:.0f} events, {counted} entries, {taken:.0f} s", flush=True)
    assert reasons == {"late", "closed", "void", "amend"}, "adjustments of every kind"
    assert median >= 30, "ledgers are long enough for state to build up"


def prove_pack(toml: Toml, some: list[Ledger], chance: Random, reasons: set[str]) -> int:
    """Fold a pack in three ways: commit by commit, at once, and cut at random among three workers."""
    tenants = [tenant_of(number, {"tenant_id": own}) for number in range(len(some)) for own in (0, 1)]
    controls = [{"type": "tick"}, *closes(toml, tenants, chance, 40)]
    packed = pack(some, chance, controls=controls, scattered=6, corrections=Corrections(toml, chance))
    wanted = fold(packed.events, toml, COMPUTED)
    reasons |= {row["reason"] for row in wanted.table("adjustments").values()}
    entries = entries_of(packed.events, toml)
    stored = []
    for parts, often in ((1, 0.0), (1, 1.0), (3, 0.5)):
        ranges = packed.cut(partial(_decides, chance, often))
        memory = folded(toml, packed.events, entries, ranges, parts)
        for table in TABLES:
            found = {place: (at, _texts(row)) for place, (at, row) in memory.rows(table).items()}
            assert found == expected_rows(wanted, table), f"{table.name}, {parts} parts, joined {often}"
            assert sorted(_changes(memory, table.name), key=str) == sorted(expected_changes(wanted, table), key=str)
        stored.append([_known(memory.state(table)) for table in TABLES])
    assert stored[0] == stored[1] == stored[2], "what is stored does not depend on cuts and workers"
    return entries.num_rows


def folded(
    toml: Toml, events: Sequence[Event], entries: pa.Table, ranges: Sequence[tuple[int, int]], parts: int
) -> Memory:
    """Ranges with corrections are never cut by customer."""
    memory, meters = Memory(), kernel_meters(toml)
    said = {event.ingress_sequence: event.data for event in events if event.stream == CONTROL}
    corrections = [event for event in events if event.is_correction]
    by = {event.target_sequence: event.ingress_sequence for event in corrections}
    corrected_by = pa.array(map(by.get, entries["ingress_sequence"].to_pylist()), pa.int64())
    sequences = entries["ingress_sequence"].to_numpy()
    for lo, hi in ranges:
        if (close := read_close(json.loads(said.get(hi) or "{}"))) is not None:
            meters = replace(meters, closed=_closed(meters, toml, close))
        start, end = np.searchsorted(sequences, lo, "right"), np.searchsorted(sequences, hi, "right")
        own = entries.slice(start, end - start)
        here = [event for event in corrections if lo < event.ingress_sequence <= hi]
        if here:
            meters = replace(meters, corrected=True)
            history = entries.append_column("corrected_by", corrected_by).slice(0, start)
            given = CorrectedSlice(lo, _corrections(here), own, history, _adjusted(memory, toml))
            outcomes, own = correct(given, meters, memory.stored)
            for outcome in outcomes:
                memory.apply(outcome)
        for part in parted(own, parts) if parts > 1 and not here else [own]:
            for outcome in count(part, meters, memory.stored):
                memory.apply(outcome)
    return memory


def test_of_counters_that_nobody_may_watch_no_change_is_made() -> None:
    toml: Toml = {"meters": {"calls": {"lateness": "0s", "live": False, "group_by": ["region"]}}}
    rows = [
        {"ingress_sequence": number, "source_timestamp": number, "tenant_id": "t", "customer_ref": "c", "meter": 0,
         "occurred_at": -number, "period_start": 0, "quantity": Decimal(1), "group_key": "eu"}
        for number in range(1, 4)
    ]  # fmt: skip
    outcomes = list(count(pa.Table.from_pylist(rows, ENTRIES), kernel_meters(toml), Memory().stored))
    assert [(each.table, each.fresh.num_rows) for each in outcomes] == [
        (OPEN_COUNTERS, 1), (ADJUSTMENTS, 2), (COUNTER_GROUPS, 1)
    ]  # fmt: skip
    assert all(each.changes is None and not each.lanes for each in outcomes)


def expected_rows(wanted: State, table: Table) -> dict[tuple[str, str], tuple[int, dict[str, str]]]:
    return {
        place: (wanted.source_timestamps[table.name][place], _texts(row))
        for place, row in wanted.table(table.name).items()
    }


def expected_changes(wanted: State, table: Table) -> list[object]:
    return [
        (change.source_timestamp, change.key, change.tenant_id, change.old and _texts(change.old),
         change.new and _texts(change.new))
        for change in wanted.changes if change.table == table.name
    ]  # fmt: skip


def _corrections(events: Sequence[Event]) -> pa.Table:
    return pa.table(
        {
            "ingress_sequence": pa.array([event.ingress_sequence for event in events], pa.int64()),
            "source_timestamp": pa.array([event.source_timestamp for event in events], pa.int64()),
            "target_sequence": pa.array([event.target_sequence for event in events], pa.int64()),
            "voids": pa.array([event.op == "void" for event in events], pa.bool_()),
        }
    )


def _adjusted(memory: Memory, toml: Toml) -> pa.Table:
    """The adjustments that are stored, by the numbers of their meters."""
    numbers = {name: number for number, name in enumerate(meters_in(toml))}
    rows = [row for _, row in memory.rows(ADJUSTMENTS).values()]
    return pa.table(
        {
            "meter": pa.array([numbers[row["metric"]] for row in rows], pa.int64()),
            "ingress_sequence": pa.array([row["ingress_sequence"] for row in rows], pa.int64()),
        }
    )


def _closed(meters: Meters, toml: Toml, close: Close) -> Mapping[tuple[int, str], int]:
    """By meter and tenant, where its open periods begin."""
    closed = dict(meters.closed)
    for name, said in close.meters.items():
        place = (meters.names.index(name), close.tenant_id)
        bound = period_start(meters_in(toml)[name]["period"], said.through)
        closed[place] = max(bound, closed.get(place, bound))
    return closed


def _known(state: Mapping[tuple[str, str], Mapping[str, object]]) -> dict[tuple[str, str], dict[str, object]]:
    """Before anything was closed or corrected, what only that needs is not stored; in Postgres it has its default."""

    def said(name: str, value: object) -> bool:
        return (value is not None and value is not False) or not name.startswith(("closed_", "parted"))

    return {place: {name: value for name, value in row.items() if said(name, value)} for place, row in state.items()}


def _decides(chance: Random, often: float) -> bool:
    return chance.random() < often


def _changes(memory: Memory, table: str) -> list[object]:
    return [
        (row["source_timestamp"], row["key"], row["tenant_id"], row["old"] and _texts(row["old"]),
         row["new"] and _texts(row["new"]))
        for name, row in memory.changes if name == table
    ]  # fmt: skip
