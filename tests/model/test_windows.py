"""The reference model's windows, by the worked cases of the contract and by examples of what they leave out."""

import json
from decimal import Decimal
from typing import Any

import pytest

from tests.model import fold
from tests.model.eventtime_cases import (
    WINDOW,
    WINDOW_CASES,
    Case,
    case_events,
    closed_windows,
    late_reasons,
    window_collections,
    window_definitions,
)
from tests.model.operators import Metrics
from tests.model.samples import DRAIN, TICK, alone, at, closed, late, recorded, timed, windowed
from tests.model.values import text


@pytest.mark.parametrize("case", WINDOW_CASES, ids=[case["name"] for case in WINDOW_CASES])
def test_a_case_of_the_contract(case: Case) -> None:
    state = fold(case_events(window_collections(case)), window_definitions(case))
    table, times = state.table(WINDOW), state.source_timestamps.get(WINDOW, {})
    assert {key: (times[key], row) for key, row in table.items()} == closed_windows(case)
    found = {(tenant, row["ingress_sequence"]): row["reason"] for (tenant, _), row in state.table("late_rows").items()}
    assert found == late_reasons(case)
    assert not state.table("error_rows")


# What a window says of its rows

EVERYTHING = {
    "all": "count(*)",
    "n": "count(q)",
    "total": "sum(q)",
    "low": "min( q )",
    "high": "MAX(q)",
    "mean": "avg(q)",
    "one": "first(q)",
    "other": "last(q)",
}


def aggregates(rows: list[dict[str, Any]], stream: dict[str, Any], select: dict[str, str]) -> list[Any]:
    """What one window has of the rows of a collection."""
    window = {"stream": "s", "window": {"tumbling": "1h"}, "eventtime": {"enabled": True}, "select": select}
    streams = {"s": stream | {"eventtime": {"column": "occurred_at"}}}
    state = fold(
        recorded([{"occurred_at": 5, **row} for row in rows], [DRAIN]), {"streams": streams, "windows": {"w": window}}
    )
    (row,) = state.table("w").values()
    return [row[name] for name in select]


def test_nulls_count_as_rows_and_for_nothing_else() -> None:
    rows = [{"data": {"q": q}} for q in (None, 5, -2, None)]
    found = aggregates(rows, {"columns": {"q": "bigint"}}, EVERYTHING)
    assert found == [4, 2, 3, -2, 5, Decimal("1.5"), 5, -2]


def test_of_nothing_but_nulls_all_but_the_counts_is_null() -> None:
    assert aggregates([{}], {"columns": {"q": "bigint"}}, EVERYTHING) == [1, 0, *[None] * 6]


def test_a_percentile_is_the_middle_of_the_bucket_that_has_its_rank() -> None:
    values = [0, -3, 1, 100, 1000]
    select = {name: f"{name}(q)" for name in ("p50", "p90")}
    found = aggregates([{"data": {"q": q}} for q in values], {"columns": {"q": "bigint"}}, select)
    # Of five the third and the fifth: buckets of one have the width 2^-7, those of a thousand 2^-7 * 512.
    assert found == [1 + 2**-8, 1000 + 2]
    assert aggregates([{"data": {"q": 0}}], {"columns": {"q": "double"}}, {"p": "p99(q)"}) == [0.0]
    assert aggregates([{"data": {"q": -1}}], {"columns": {"q": "int"}}, {"p": "p50(q)"}) == [-1 - 2**-8]
    assert aggregates([{}], {"columns": {"q": "int"}}, {"p": "p50(q)", "n": "unique_count(q)"}) == [None, 0]


def test_values_are_unique_by_their_texts() -> None:
    texts = ["1", "1.0", '"1"', '"1.0"', "null", '""', "2"]
    rows = [{"data": {"q": json.loads(text)}} for text in texts]
    assert aggregates(rows, {}, {"n": "unique_count(data.q)"}) == [4]
    assert aggregates(rows[:2], {"columns": {"q": "decimal(5,2)"}}, {"n": "unique_count(q)"}) == [1]


def test_a_double_has_one_text_in_plain_notation() -> None:
    texts = {1e16: "10000000000000000", 1.0: "1", 0.1: "0.1", 1e-7: "0.0000001", -2.5e3: "-2500", -0.0: "0"}
    assert {number: text("double", number) for number in texts} == texts
    rows = [{"data": {"q": q}} for q in (1e16, 10**16, "1e16", -0.0, 0, 0.1, 0.1 + 1e-18, 0.30000000000000004, None)]
    assert aggregates(rows, {"columns": {"q": "double"}}, {"n": "unique_count(q)"}) == [4]


def test_a_number_that_a_sum_has_no_place_for_is_an_error_row_and_left_out() -> None:
    window = {"stream": "s", "window": {"tumbling": "1h"}, "select": {"total": "sum(data.q)", "p": "p50(data.r)"}}
    rows: list[dict[str, Any]] = [
        {"data": {"q": 1}},
        {"data": {"q": 10**19}},
        {"data": {"q": "x"}},
        {"data": {"r": "1e400"}},
    ]
    events = recorded([{"occurred_at": 5, **row} for row in rows], [TICK])
    found = fold(events, {"streams": {"s": {}}, "windows": {"w": window}}).table("error_rows")
    assert {row["ingress_sequence"]: (row["source"], row["code"], row["message"]) for row in found.values()} == {
        2: (
            "w",
            "value_out_of_range",
            'column "data.q" has no number below 10^19 with at most nine decimals, so sum(data.q) leaves it out',
        ),
        4: (
            "w",
            "value_out_of_range",
            'column "data.r" has no number that a double holds, so p50(data.r) leaves it out',
        ),
    }


def test_first_and_last_are_by_time_and_then_by_sequence() -> None:
    rows = [{"occurred_at": time, "data": {"q": q}} for time, q in ((7, 1), (6, 2), (7, 3), (6, 4), (5, None))]
    select = {"one": "first(q)", "other": "last(q)"}
    assert aggregates(rows, {"columns": {"q": "bigint"}}, select) == [2, 3]


@pytest.mark.parametrize(
    ("type_", "values", "low", "high"),
    [
        ("string", ["b", "B", "é", "a"], "B", "é"),
        ("timestamp", ["1970-01-01T00:00:00Z", "1970-01-01T00:00:00+01:00"], at("1969-12-31T23:00:00Z"), 0),
        ("boolean", [True, False], False, True),
        ("decimal(5,2)", ["1.50", "-2"], Decimal(-2), Decimal("1.5")),
        ("double", [0.5, -0.25], -0.25, 0.5),
    ],
)
def test_extremes_have_the_columns_type(type_: str, values: list[Any], low: Any, high: Any) -> None:
    rows = [{"data": {"x": value}} for value in values]
    assert aggregates(rows, {"columns": {"x": type_}}, {"low": "min(x)", "high": "max(x)"}) == [low, high]


def test_sums_are_exact_and_doubles_are_rounded_first() -> None:
    rows = [{"data": {"x": x, "y": "9999999999999999999.5"}} for x in (0.1, 0.2, 1e-10, 1e300)]
    stream = {"columns": {"x": "double", "y": "decimal(38,9)"}}
    found = aggregates(rows, stream, {"x": "sum(x)", "y": "sum(y)", "mean": "avg(x)"})
    assert found == [Decimal("0.3"), Decimal("39999999999999999998"), Decimal("0.1")]


def test_paths_are_texts_and_their_numbers_can_be_summed() -> None:
    rows = [{"data": json.dumps({"a": {"b": value}})} for value in (10, "9", None, "x", [1], 1e30)]
    select = {"n": "count(data.a.b)", "total": "sum(data.a.b)", "low": "min(data.a.b)", "high": "max(data.a.b)"}
    assert aggregates(rows, {}, select) == [5, 19, "10", "x"]


def test_a_window_may_use_the_envelope_and_calculated_columns() -> None:
    stream = {"key": "id", "columns": {"id": "int"}, "calculated": {"twice": "id * 2"}}
    window = {
        "stream": "s",
        "window": {"count": 2},
        "group_by": ["twice", "customer_ref"],
        "select": {"total": "sum(twice)", "amount": "sum(quantity)"},
    }
    events = alone(*({"data": {"id": n}, "quantity": Decimal(n)} for n in (1, 2, 1)))
    definitions = {"streams": {"s": stream}, "windows": {"w": window}}
    state = fold(events, definitions, {("s", "twice"): lambda row: row["id"] * 2})
    assert state.table("w") == {
        ("default", '["2","c","1"]'): {
            "twice": 2, "customer_ref": "c", "window_ordinal": 1, "window_start": 100, "window_end": 300,
            "total": 4, "amount": 2,
        }
    }  # fmt: skip


# Groups and keys


def test_null_is_a_group_of_its_own() -> None:
    events = recorded([timed(1, g="a"), timed(2), timed(3, g=""), timed(4)], [DRAIN])
    state = windowed(events, {"window": {"tumbling": "10ns"}, "group_by": "g"})
    start = "1970-01-01T00:00:00Z"
    keys = [f'["a","{start}"]', f'[null,"{start}"]', f'["","{start}"]']
    assert [(key, row["g"], row["n"]) for (_, key), row in state.table("w").items()] == list(
        zip(keys, ["a", None, ""], [1, 2, 1], strict=True)
    )


def test_without_groups_the_key_is_the_start_or_the_ordinal() -> None:
    events = recorded([timed(-1)], [DRAIN])
    for window, key in (({"session": "5ns"}, "1969-12-31T23:59:59.999999999Z"), ({"count": 3}, "1")):
        assert list(windowed(events, {"window": window}).table("w")) == [("default", key)]


def test_a_group_too_long_for_an_index_is_whole_in_its_column_and_cut_in_its_key() -> None:
    group = "g" * 2000
    state = windowed(recorded([timed(1, g=group)], [DRAIN]), {"window": {"count": 3}, "group_by": ["g"]})
    (((_, key), row),) = state.table("w").items()
    assert (len(key), row["g"]) == (200 + 3 + 64, group)


def test_windows_begin_at_the_epoch_before_it_too() -> None:
    state = windowed(recorded([timed(-1), timed(0)], [DRAIN]), {"window": {"hopping": ["10ns", "4ns"]}})
    starts = [(start, n) for _, start, _, n in closed(state)]
    assert starts == [(-8, 2), (-4, 2), (0, 1)]


# Closing


def test_an_open_window_can_be_seen_as_if_it_was_closed_now() -> None:
    events = recorded([timed(1, q=2), timed(12, q=3)], [timed(11, q=4)])
    state = windowed(events, {"window": {"tumbling": "10ns"}, "select": {"total": "sum(q)"}}, late_tolerance="5ns")
    assert state.open_windows["w", "default"] == {
        "1970-01-01T00:00:00Z": {"window_start": 0, "window_end": 10, "total": 2},
        "1970-01-01T00:00:00.00000001Z": {"window_start": 10, "window_end": 20, "total": 7},
    }
    assert state.metrics["w", "default"].buffer_size == 0


def test_a_count_window_counts_what_is_released_and_holds_the_rest() -> None:
    events = recorded([timed(2), timed(1), timed(9)], [timed(12), timed(6)])
    state = windowed(events, {"window": {"count": 2}}, late_tolerance="5ns")
    assert closed(state) == [(100, 1, 2, 2)]
    assert state.held["w", "default"] == [3, 4]
    assert state.open_windows["w", "default"] == {
        "2": {"window_ordinal": 2, "window_start": 6, "window_end": 6, "n": 1}
    }


def test_a_drained_partial_window_is_numbered_and_the_next_begins_after_it() -> None:
    events = recorded([timed(1, g="a"), timed(2, g="b"), timed(5, g="b")], [DRAIN], [timed(5, g="a"), timed(6, g="a")])
    state = windowed(events, {"window": {"count": 2}, "group_by": "g"})
    assert [key for _, key in state.table("w")] == ['["b","1"]', '["a","1"]']
    assert late(state) == [(5, 5, "late")]
    # The window it closed ended at 1; what had been closed before is below the watermark anyway.
    assert state.metrics["w", "default"].closed_through == 2
    assert state.open_windows["w", "default"]['["a","2"]']["window_start"] == 6


def test_a_second_drain_never_lowers_what_is_closed_through() -> None:
    events = recorded([timed(1)], [DRAIN], [timed(15)], [DRAIN], [timed(19), timed(20)])
    state = windowed(events, {"window": {"tumbling": "10ns"}}, late_tolerance="20ns")
    assert closed(state) == [(200, 0, 10, 1), (400, 10, 20, 1)]
    assert late(state) == [(5, -5, "drained")]
    assert state.metrics["w", "default"].closed_through == 20


def test_sessions_of_other_groups_are_drained_too_and_bound_all_groups() -> None:
    events = recorded([timed(1, g="a"), timed(8, g="b")], [DRAIN], [timed(17, g="a"), timed(18, g="a")])
    state = windowed(events, {"window": {"session": "10ns"}, "group_by": "g"}, late_tolerance="50ns")
    assert [row[:3] for row in closed(state)] == [(200, 1, 11), (200, 8, 18)]
    assert late(state) == [(4, -42, "drained")]


def test_an_idle_window_is_drained_by_a_tick_and_an_empty_one_is_left_alone() -> None:
    events = recorded([timed(1)], [timed(10)], [TICK], [TICK], [timed(19)])
    state = windowed(events, {"window": {"tumbling": "10ns"}}, idle_timeout="100ns")
    assert closed(state) == [(200, 0, 10, 1), (300, 10, 20, 1)]
    assert late(state) == [(5, 10, "drained")]


def test_a_window_that_is_not_live_has_rows_and_no_changes() -> None:
    window = {"stream": "s", "window": {"count": 1}, "select": {"n": "count(*)"}, "live": False}
    state = fold(alone({}), {"windows": {"w": window}})
    assert state.table("w")
    assert not state.changes


def test_a_closed_window_is_one_new_row_at_the_source_timestamp_of_its_closing() -> None:
    state = windowed(recorded([timed(1)], [timed(10)]), {"window": {"tumbling": "10ns"}})
    (change,) = [change for change in state.changes if change.table == "w"]
    assert (change.source_timestamp, change.key, change.old) == (200, "1970-01-01T00:00:00Z", None)
    assert change.new == {"window_start": 0, "window_end": 10, "n": 1}


# Windows by arrival


def by_arrival(window: dict[str, Any], *collections: list[dict[str, Any]]) -> Any:
    return windowed(recorded(*collections), {"window": window, "eventtime": {"enabled": False}})


@pytest.mark.parametrize(
    "other",
    [
        {"stream": "unknown"},
        {"stream": "s", "tenant_id": "other", "data": {"ts": 1}},
        {"stream": "s", "data": {"ts": "x"}},
        {"stream": "s", "op": "delete"},
        TICK,
        DRAIN,
        TICK | {"data": {"type": "definition"}},
    ],
)
def test_whatever_is_recorded_next_closes_what_has_ended(other: dict[str, Any]) -> None:
    state = by_arrival({"tumbling": "150ns"}, [timed(7)], [other])
    assert [row for row in closed(state) if row[1] == 0] == [(200, 0, 150, 1)]


def test_what_has_not_ended_stays_open_under_drains() -> None:
    state = by_arrival({"tumbling": "1s"}, [timed(7)], [DRAIN])
    assert not state.table("w")
    assert state.open_windows["w", "default"]


def test_rows_have_the_time_of_their_collection_and_none_is_late() -> None:
    state = by_arrival({"session": "150ns"}, [timed(900)], [timed(1), timed(2)], [], [timed(None)])
    assert closed(state) == [(400, 100, 350, 3)]
    assert state.metrics["w", "default"] == Metrics(
        watermark=400, closed_through=None, buffer_size=0, late_dropped_count=0, watermark_emitted_count=3,
        max_timestamp_seen=400, last_row_at=400, released=0,
    )  # fmt: skip


def test_a_count_window_by_arrival_closes_with_its_last_row() -> None:
    state = by_arrival({"count": 2}, [timed(9), timed(8), timed(7)], [timed(6)])
    assert closed(state) == [(100, 100, 100, 2), (200, 100, 200, 2)]
    assert state.held["w", "default"] == []
