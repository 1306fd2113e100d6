"""The parts of windows that need no Spark: watermarks, raises, stretches, sessions and aggregates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model import Event
from tests.model.events import Columns
from tests.model.samples import at
from tests.model.values import text
from tests.model.watermarks import Entry
from tests.model.windows import _percentile
from tests.model.windows import frame as model_frame
from tidelock.definitions import parse_definitions
from tidelock.definitions.windows import PERCENTILES, Aggregate
from tidelock.fold.kernel.aggregates import bits_of, buckets_of, initial, merged, middles_of, results, texts_of
from tidelock.fold.kernel.outputs import Output, outputs_of
from tidelock.fold.kernel.panes import FIRST, LAST, earlier, floored, later, pieces_of, sessions, windows_of
from tidelock.fold.kernel.reorder import Released, by_key, ordered_rows
from tidelock.fold.kernel.watermarks import (
    EARLIEST,
    RAISES,
    Progress,
    Standing,
    advanced,
    arrived,
    judged,
    reached,
)
from tidelock.tables import KEY

pytestmark = pytest.mark.check


def numbers(values: Sequence[int]) -> pa.Array:
    return pa.array(values, pa.int64())


def collections(*times: tuple[int, int] | None, tenant: str = "a") -> pa.Table:
    """The earliest and latest time of each collection; None: its rows have no time."""
    return pa.table(
        {
            "tenant_id": [tenant] * len(times),
            "source_timestamp": numbers([number * 100 for number in range(1, len(times) + 1)]),
            "earliest": pa.array([None if time is None else time[0] for time in times], pa.int64()),
            "latest": pa.array([None if time is None else time[1] for time in times], pa.int64()),
        }
    )


def raises(progress: Progress) -> list[tuple[int, int]]:
    return list(zip(progress.raises["at"].to_pylist(), progress.raises["mark"].to_pylist(), strict=True))


def test_a_watermark_is_raised_by_what_is_later_than_all_before() -> None:
    found = advanced(collections((1, 5), (2, 5), None, (3, 9), (7, 8)), {}, 2)
    assert raises(found) == [(100, 3), (400, 7)]
    assert found.judgements.to_pylist() == [
        {"tenant_id": "a", "at": 200, "threshold": 3, "watermark": 3},
        {"tenant_id": "a", "at": 400, "threshold": 3, "watermark": 3},
        {"tenant_id": "a", "at": 500, "threshold": 7, "watermark": 7},
    ]
    assert found.after == {"a": Standing(7, 9, None, 500, watermark_emitted_count=2)}
    assert found.marks == {"a": (None, 7)}


def test_rows_before_what_was_drained_move_no_time() -> None:
    found = advanced(collections((6, 19), (6, 20)), {"a": Standing(3, 5, 20)}, 2)
    assert raises(found) == [(200, 18)]
    assert found.judgements["threshold"].to_pylist() == [19, 19]
    assert found.judgements["watermark"].to_pylist() == [3, 3]
    assert found.marks == {"a": (3, 18)}


def test_a_watermark_does_not_fall_out_of_time() -> None:
    found = advanced(collections((-(10**18), -(10**18))), {}, 2**63 - 1)
    assert found.after["a"].watermark == EARLIEST
    assert found.after["a"].watermark_emitted_count == 1


def test_by_arrival_every_collection_moves_time_and_no_watermark_is_kept() -> None:
    found = advanced(collections((1, 1), None), {}, None)
    assert raises(found) == [(100, 100), (200, 200)]
    assert found.after == {"a": Standing(None, 200, None, 200, watermark_emitted_count=2)}
    assert not found.judgements.num_rows


def test_tenants_have_watermarks_of_their_own() -> None:
    both = pa.concat_tables([collections((1, 9)), collections((1, 3), (4, 4), tenant="b")])
    found = advanced(both, {"b": Standing(1, 2)}, 1)
    assert {tenant: standing.watermark for tenant, standing in found.after.items()} == {"a": 8, "b": 3}


times = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted).map(tuple), max_size=12)


@given(times, st.integers(0, 6), st.integers(0, 12))
def test_a_range_may_be_cut_anywhere(spans: list[tuple[int, int]], tolerance: int, cut: int) -> None:
    whole = collections(*spans)
    once = advanced(whole, {}, tolerance)
    first = advanced(whole.slice(0, cut), {}, tolerance)
    second = advanced(whole.slice(cut), first.after, tolerance)
    assert raises(once) == raises(first) + raises(second)
    assert once.judgements.to_pylist() == first.judgements.to_pylist() + second.judgements.to_pylist()
    assert dict(once.after) == {**first.after, **second.after}


def test_rows_of_one_collection_are_judged_by_their_tenants_watermark() -> None:
    rows = pa.table(
        {
            "tenant_id": ["a", "b", "a", "a", "c"],
            "source_timestamp": numbers([100, 100, 100, 200, 200]),
            "event_time": numbers([5, 5, 6, 1, 1]),
        }
    )
    judgements = pa.table(
        {
            "tenant_id": ["a", "b", "a"],
            "at": numbers([100, 100, 200]),
            "threshold": numbers([5, 4, 3]),
            "watermark": pa.array([3, 4, None], pa.int64()),
        }
    )
    in_time, late = judged(rows, judgements)
    assert in_time["event_time"].to_pylist() == [5, 6, 1]
    assert late.select(["watermark", "reason"]).to_pylist() == [
        {"watermark": 3, "reason": "drained"},
        {"watermark": None, "reason": "drained"},
    ]


def test_a_moment_is_reached_by_the_first_raise_to_it_or_beyond() -> None:
    rows = [("a", 100, 5), ("a", 200, 9), ("b", 150, 7)]
    table = pa.table([pa.array(values) for values in zip(*rows, strict=True)], schema=RAISES)
    tenants = pa.array(["a", "a", "a", "a", "b", "b", "c", "d"])
    found = reached(table, tenants, numbers([5, 6, 9, 10, -3, 8, 0, 0]))
    assert found.to_pylist() == [100, 200, 200, None, 150, None, None, None]
    assert reached(table, tenants.slice(0, 0), numbers([])).to_pylist() == []


def test_what_ends_by_arrival_ends_with_the_next_collection() -> None:
    assert arrived(numbers([10, 20]), numbers([5, 10, 11, 21])).to_pylist() == [10, 10, 20, None]


def test_multiples_lie_at_or_before_an_instant_and_never_outside_of_time() -> None:
    assert floored(numbers([0, 9, 10, -1, -10, -11]), 10).to_pylist() == [0, 0, 10, -10, -10, -20]
    assert floored(numbers([FIRST + 3]), 10).to_pylist() == [FIRST]
    assert later(numbers([LAST - 3, 1]), 10).to_pylist() == [LAST, 11]
    assert earlier(numbers([FIRST + 3, 1]), 10).to_pylist() == [FIRST, -9]


sequences = st.lists(st.integers(1, 10**16) | st.integers(1, 120), min_size=1, unique=True)


@given(sequences, st.randoms())
def test_rows_are_given_out_in_the_order_of_their_keys_texts(known: list[int], chance: Random) -> None:
    at = [chance.choice([100, 200]) for _ in known]
    wanted = sorted(range(len(known)), key=lambda place: (at[place], str(known[place])))
    assert by_key(np.array(at), np.array(known)).tolist() == wanted


released_rows = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 20), st.sampled_from([100, 200])), min_size=1, max_size=40
)


@given(released_rows)
def test_released_rows_are_stored_by_position_and_change_by_key(drafted: list[tuple[str, int, int]]) -> None:
    # What is released later is later.
    drafted = [(tenant, time + release, release) for tenant, time, release in drafted]
    tenants, times, releases = zip(*drafted, strict=True)
    entries = pa.table(
        {
            "tenant_id": tenants,
            "ingress_sequence": numbers([*range(1, len(drafted) + 1)]),
            "event_time": numbers(times),
            "source_timestamp": numbers([0] * len(drafted)),
        }
    )
    rows, order = ordered_rows(Released(entries, np.arange(len(drafted)), np.array(releases)), {"a": 10})
    found = rows.to_pylist()
    for tenant in "abc":
        own = [row for row in found if row["tenant_id"] == tenant]
        assert own == sorted(own, key=lambda row: (row["event_time"], row["ingress_sequence"]))
        first = 11 if tenant == "a" else 1
        assert [row["position"] for row in own] == [*range(first, first + len(own))]
    assert [tenant for tenant, _ in itertools.groupby(found, lambda row: row["tenant_id"])] == [*dict.fromkeys(tenants)]
    shown = rows.take(order).to_pylist()
    assert shown == sorted(found, key=lambda row: (row["source_timestamp"], row[KEY]))


def output(select: Mapping[str, str]) -> Output:
    window = {"stream": "s", "window": {"session": "10ns"}, "group_by": ["data.g"], "select": dict(select)}
    (found,) = outputs_of(parse_definitions({"streams": {"s": {}}, "windows": {"w": window}}), {})
    return found


@pytest.mark.parametrize(
    ("spans", "wanted"),
    [
        ([(0, 10), (10, 20)], [0, 1]),
        ([(0, 10), (9, 19)], [0, 0]),
        ([(0, 100), (5, 15), (20, 30), (99, 109)], [0, 0, 0, 0]),
        ([(20, 30), (0, 10)], [0, 1]),
    ],
)
def test_sessions_that_touch_are_one(spans: list[tuple[int, int]], wanted: list[int]) -> None:
    starts, ends = zip(*spans, strict=True)
    pieces = pa.table(
        {
            "tenant_id": ["t"] * len(spans) + ["u"],
            "group_0": ["g"] * len(spans) + ["g"],
            "window_start": numbers([*starts, 0]),
            "window_end": numbers([*ends, 10]),
        }
    )
    _, found = sessions(output({"rows": "count(*)"}), pieces)
    assert found.tolist() == [*wanted, wanted[-1] + 1]


def test_averages_are_rounded_once_and_half_away_from_zero() -> None:
    select = {"mean": Aggregate("avg", "x")}
    sums = [Decimal("0.000000001"), Decimal("-0.000000001"), None, Decimal("9" * 29)]
    states = pa.table({"sum_0": pa.array(sums, pa.decimal128(38, 9)), "count_0": numbers([2, 2, 0, 3])})
    wanted = [Decimal("0.000000001"), Decimal("-0.000000001"), None, Decimal("3" * 29)]
    assert results(select, states)["mean"].to_pylist() == wanted
    assert results(select, states.slice(0, 3))["mean"].to_pylist() == wanted[:3]


def test_the_first_and_last_values_are_those_of_rows_that_have_one() -> None:
    pieces = pa.table(
        {
            "value_0": ["b", None, "a", "c"],
            "time_0": pa.array([5, None, 4, 4], pa.int64()),
            "sequence_0": pa.array([1, None, 3, 2], pa.int64()),
        }
    )
    for function, wanted in (("first", "c"), ("last", "b")):
        found = merged(pieces, np.zeros(4, np.int64), [Aggregate(function, "x")], {})
        assert found["value_0"].to_pylist() == [wanted]


def states_of(select: Mapping[str, Aggregate], values: pa.Array) -> pa.Table:
    """The states of single rows, each a second after the one before."""
    rows = numbers(range(len(values)))
    return pa.table(initial(tuple(select.values()), lambda _: values, rows, rows))


def merged_in(pieces: pa.Table, cuts: Sequence[int], chance: Random, select: Mapping[str, Aggregate]) -> pa.Table:
    """One state of all pieces, put together part by part in some order."""
    aggregates = tuple(select.values())
    bounds = [0, *sorted(cuts), pieces.num_rows]
    parts = [pieces.slice(start, stop - start) for start, stop in itertools.pairwise(bounds)]
    parts = [merged(part, np.zeros(part.num_rows, np.int64), aggregates, {}) for part in parts if part.num_rows]
    chance.shuffle(parts)
    while len(parts) > 1:
        both = pa.concat_tables([parts.pop(), parts.pop()]).combine_chunks()
        parts.insert(0, merged(both, np.zeros(both.num_rows, np.int64), aggregates, {}))
    return parts[0]


doubles = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 1.0, 5e-324, -2.5])


@given(st.lists(doubles | st.none(), min_size=1, max_size=60), st.lists(st.integers(0, 60), max_size=4), st.randoms())
def test_percentiles_are_those_of_the_model_and_their_states_the_same_for_any_order(
    values: list[float | None], cuts: list[int], chance: Random
) -> None:
    select = {name: Aggregate(name, "x") for name in PERCENTILES}
    pieces = states_of(select, pa.array(values, pa.float64()))
    cuts = [cut for cut in cuts if cut < len(values)]
    found = merged_in(pieces, cuts, chance, select)
    assert found.equals(merged_in(pieces, [], chance, select))
    known = [value for value in values if value is not None]
    wanted = {name: [_percentile(known, percent)] for name, percent in PERCENTILES.items()}
    assert {name: column.to_pylist() for name, column in results(select, found).items()} == wanted


def test_percentiles_are_within_four_thousandths_of_exact_ones() -> None:
    chance = Random(20)
    select = {name: Aggregate(name, "x") for name in PERCENTILES}
    for draw in (chance.random, lambda: chance.lognormvariate(0, 3), lambda: -chance.expovariate(1e-6)):
        values = [draw() for _ in range(10_000)]
        found = results(select, merged_in(states_of(select, pa.array(values)), [], chance, select))
        for name, percent in PERCENTILES.items():
            exact = sorted(values)[math.ceil(percent * len(values) / 100) - 1]
            assert found[name].to_pylist()[0] == pytest.approx(exact, rel=0.004)


@given(st.lists(doubles, min_size=2))
def test_buckets_are_in_the_order_of_their_values(values: list[float]) -> None:
    ordered = np.sort(np.array(values))
    buckets = buckets_of(ordered)
    assert (buckets[1:] >= buckets[:-1]).all()
    assert (buckets_of(middles_of(buckets)) == buckets).all()


texts = st.text(st.sampled_from("ab\\\x1fs é"), max_size=4)


@given(st.lists(texts | st.none(), min_size=1), st.lists(st.integers(0, 60), max_size=4), st.randoms())
def test_unique_values_are_counted_once_in_any_order(values: list[str | None], cuts: list[int], chance: Random) -> None:
    select = {"n": Aggregate("unique_count", "x")}
    pieces = states_of(select, pa.array(values, pa.string()))
    found = merged_in(pieces, [cut for cut in cuts if cut < len(values)], chance, select)
    assert found.equals(merged_in(pieces, [], chance, select))
    assert results(select, found)["n"].to_pylist() == [len({value for value in values if value is not None})]


@given(st.lists(doubles | st.sampled_from([1e16, 0.1, 1.0]) | st.none(), min_size=1))
def test_doubles_are_counted_by_their_bits_as_by_their_texts(values: list[float | None]) -> None:
    select = {"n": Aggregate("unique_count", "x")}
    pieces = states_of(select, bits_of(pa.array(values, pa.float64())))
    wanted = {text("double", value) for value in values if value is not None}
    assert results(select, merged_in(pieces, [], Random(), select))["n"].to_pylist() == [len(wanted)]


json_texts = st.sampled_from(
    ["1", "1.0", "10e-1", '"1"', '"1.0"', "-0", "0e7", "0.50", "5E-1", "12.5", "-1.20", "1e400", "1e401", "1e0401",
     "1e999999999999", "true", '""', '"\\u0031"', '"\\"1\\n"', '"\\\\"', "[1.0]", "[1]", '{"a": 1}']
)  # fmt: skip


@given(st.lists(json_texts | st.none(), min_size=1))
def test_what_a_path_leads_to_is_counted_as_the_model_does(values: list[str | None]) -> None:
    found = texts_of(pa.array(values, pa.string())).to_pylist()
    data = [f'{{"q": {value}}}' if value is not None else None for value in values]
    events = [Event(1, 0, "s", 0, data=each) for each in data]
    assert found == [Columns(event, {}).distinct_text("data.q") for event in events]


@pytest.mark.parametrize("frame", [{"tumbling": "400d"}, {"hopping": ["300d", "100d"]}, {"hopping": ["7d", "2d"]}])
@pytest.mark.parametrize("time", [at("1678-01-01T00:00:00Z"), at("1678-03-01T00:00:00Z"), at("1970-01-01T00:00:00Z")])
def test_windows_at_the_beginning_of_time_are_those_of_the_model(frame: dict[str, Any], time: int) -> None:
    window = {"stream": "s", "window": frame, "select": {"n": "count(*)"}}
    (own,) = outputs_of(parse_definitions({"streams": {"s": {}}, "windows": {"w": window}}), {})
    row = {"tenant_id": ["t"], "event_time": [time], "ingress_sequence": [1], "source_timestamp": [1], "count_0": [1]}
    found = windows_of(own, pieces_of(own, pa.table(row)))
    modelled = model_frame(frame)
    modelled.take((), Entry(time, 1, Columns(Event(1, 1, "s", time), {})))
    wanted = [(window.start, window.end, len(window.entries)) for window in modelled.open()]
    made = zip(*(found[name].to_pylist() for name in ("window_start", "window_end", "count_0")), strict=True)
    assert sorted(made) == sorted(wanted)
    assert all(start >= FIRST for start, _, _ in wanted)
