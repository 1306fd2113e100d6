"""The parts of windows that need no Spark: watermarks, raises, stretches and sessions."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from tidelock.definitions.windows import Aggregate
from tidelock.fold.tables import GROUP
from tidelock.fold.windows.raises import arrived, raises_of, reached
from tidelock.fold.windows.states import merged, results
from tidelock.fold.windows.stretches import FIRST, LAST, earlier, floored, later, sessions
from tidelock.fold.windows.watermarks import (
    EARLIEST,
    Collection,
    Standing,
    eventtime_watermark,
    process_time_watermark,
)


def collections(*times: tuple[int, int]) -> list[Collection]:
    return [Collection(number * 100, 2, *bounds) for number, bounds in enumerate(times, start=1)]


def numbers(values: list[int]) -> pa.Array:
    return pa.array(values, pa.int64())


def test_a_watermark_is_raised_by_what_is_later_than_all_before() -> None:
    course = eventtime_watermark(Standing(), collections((1, 5), (2, 5), (4, 9), (7, 8)), 2)
    assert course.raises == [(100, 3), (300, 7)]
    assert course.before == [None, 3, 3, 7]
    assert course.standing == Standing(7, 9, None, 400, watermark_emitted_count=2)


def test_rows_before_what_was_drained_move_no_time() -> None:
    course = eventtime_watermark(Standing(3, 5, 20), collections((6, 19), (6, 20)), 2)
    assert course.raises == [(200, 18)]
    assert course.standing.threshold(3) == 19


def test_a_watermark_does_not_fall_out_of_time() -> None:
    course = eventtime_watermark(Standing(), collections((-(10**18), -(10**18))), 2**63 - 1)
    assert course.standing.watermark == EARLIEST


def test_by_arrival_every_collection_moves_time_and_no_watermark_is_kept() -> None:
    course = process_time_watermark(Standing(), collections((1, 1), (9, 9)))
    assert course.raises == [(100, 100), (200, 200)]
    assert course.standing == Standing(None, 200, None, 200, watermark_emitted_count=2)


def test_a_moment_is_reached_by_the_first_raise_to_it_or_beyond() -> None:
    raises = raises_of({"a": [(100, 5), (200, 9)], "b": [(150, 7)], "c": []})
    tenants = pa.array(["a", "a", "a", "a", "b", "b", "c", "d"])
    found = reached(raises, tenants, numbers([5, 6, 9, 10, -3, 8, 0, 0]))
    assert found.to_pylist() == [100, 200, 200, None, 150, None, None, None]
    assert reached(raises, tenants.slice(0, 0), numbers([])).to_pylist() == []


def test_what_ends_by_arrival_ends_with_the_next_collection() -> None:
    assert arrived(numbers([10, 20]), numbers([5, 10, 11, 21])).to_pylist() == [10, 10, 20, None]


def test_multiples_lie_at_or_before_an_instant_and_never_outside_of_time() -> None:
    assert floored(numbers([0, 9, 10, -1, -10, -11]), 10).to_pylist() == [0, 0, 10, -10, -10, -20]
    assert floored(numbers([FIRST + 3]), 10).to_pylist() == [FIRST]
    assert later(numbers([LAST - 3, 1]), 10).to_pylist() == [LAST, 11]
    assert earlier(numbers([FIRST + 3, 1]), 10).to_pylist() == [FIRST, -9]


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
    groups = pa.table(
        {
            "tenant_id": ["t"] * len(spans) + ["u"],
            GROUP: ["[]"] * len(spans) + ["[]"],
            "window_start": numbers([*starts, 0]),
            "window_end": numbers([*ends, 10]),
        }
    )
    found = sessions(groups)
    assert found["session"].to_pylist() == [*wanted, wanted[-1] + 1]


def test_averages_are_rounded_once_and_half_away_from_zero() -> None:
    select = {"mean": Aggregate("avg", "x")}
    sums = [Decimal("0.000000001"), Decimal("-0.000000001"), None, Decimal("9" * 29)]
    states = pa.table({"sum_0": pa.array(sums, pa.decimal128(38, 9)), "count_0": numbers([2, 2, 0, 3])})
    wanted = [Decimal("0.000000001"), Decimal("-0.000000001"), None, Decimal("3" * 29)]
    assert results(select, states)["mean"].to_pylist() == wanted


def test_the_first_and_last_values_are_those_of_rows_that_have_one() -> None:
    pieces = pa.table(
        {
            "value_0": ["b", None, "a", "c"],
            "time_0": pa.array([5, None, 4, 4], pa.int64()),
            "sequence_0": pa.array([1, None, 3, 2], pa.int64()),
        }
    )
    for function, wanted in (("first", "c"), ("last", "b")):
        found = merged(pieces, numbers([0, 0, 0, 0]), [Aggregate(function, "x")], {})
        assert found["value_0"].to_pylist() == [wanted]
