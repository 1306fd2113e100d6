"""The reference model's event time and ordered output, by the worked cases of the contract and by example."""

import json
from decimal import Decimal
from typing import Any

import pytest

from tests.model import Event, State, apply, fold
from tests.model.eventtime_cases import (
    ORDERED,
    ORDERED_CASES,
    Case,
    case_events,
    ordered_collections,
    ordered_definitions,
    ordered_held,
    ordered_steps,
)
from tests.model.operators import Metrics
from tests.model.samples import DRAIN, TICK, alone, at, counter, errors, late, recorded, released, timed, windowed

HOUR = 3600 * 10**9
#: any window: these examples are of ordered output
ANY = {"window": {"tumbling": "10ns"}}


@pytest.mark.parametrize("case", ORDERED_CASES, ids=[case["name"] for case in ORDERED_CASES])
def test_a_case_of_the_contract(case: Case) -> None:
    events = case_events(ordered_collections(case))
    place = (ORDERED, "default")
    state = State()
    for (time, _), step in zip(ordered_collections(case), ordered_steps(case), strict=True):
        if collection := [event for event in events if event.source_timestamp == time]:
            apply(state, collection, ordered_definitions(case))
        rows = [change.new for change in state.changes if change.source_timestamp == time and change.new is not None]
        let_go = sorted((row for row in rows if "position" in row), key=lambda row: row["position"])
        too_late = [row for row in rows if row.get("reason") == "late"]
        assert [(row["ingress_sequence"], row["event_time"]) for row in let_go] == step["released"]
        assert [(row["ingress_sequence"], row["event_time"]) for row in too_late] == step["late"]
        assert state.metrics[place].watermark == step["watermark"]
    assert state.held[place] == ordered_held(case)
    positions = [row["position"] for row in state.table(ORDERED).values()]
    assert positions == list(range(1, len(positions) + 1))
    assert state == fold(events, ordered_definitions(case))


# The time of an event


def read_time(value: str, type_: str, declared: str | None = None) -> State:
    """Ordered output of one event that has a JSON text for its time."""
    column, columns = ("data.ts", {}) if declared is None else ("ts", {"ts": declared})
    stream = {"ordered": True, "columns": columns, "eventtime": {"column": column, "type": type_}}
    events = alone({"data": f'{{"ts": {value}}}', "received_at": at("2026-03-10")})
    return fold(events, {"streams": {"s": stream}})


@pytest.mark.parametrize(
    ("type_", "declared", "value", "nanoseconds"),
    [
        ("unixtimestamp_s", None, "1.5", 1_500_000_000),
        ("unixtimestamp", None, '"-1.000000001"', -1_000_000_001),
        ("unixtimestamp_ms", None, "1e3", 10**9),
        ("unixtimestamp_ms", "bigint", "7", 7_000_000),
        ("unixtimestamp_ms", "decimal(20,6)", "0.000001", 1),
        ("unixtimestamp_ms", "double", "0.1", 100_000),
        ("unixtimestamp_us", "string", '"2.001"', 2001),
        ("unixtimestamp_ns", "int", "-3", -3),
        ("unixtimestamp_ns", None, "-9214560000000000000", at("1678-01-01")),
        ("rfc3339", None, '"1970-01-01T00:00:00.000000001Z"', 1),
        ("rfc3339", "string", '"1970-01-01 01:00:00+01:00"', 0),
        ("rfc3339", "timestamp", '"1969-12-31T23:59:59.5Z"', -500_000_000),
    ],
)
def test_a_type_reads_the_time_of_an_event(type_: str, declared: str | None, value: str, nanoseconds: int) -> None:
    state = read_time(value, type_, declared)
    assert [time for _, time, _ in released(state)] == [nanoseconds]
    assert not errors(state)


@pytest.mark.parametrize(
    "type_", ["unixtimestamp_s", "unixtimestamp_ms", "unixtimestamp_us", "unixtimestamp_ns", "rfc3339"]
)
@pytest.mark.parametrize(
    "value",
    [
        *["null", '""', '"x"', "true", "[]", "[1]", "{}", '"NaN"', '"Infinity"', "-1e999999", "-1e-999999", '" 1"'],
        *["1e-10", "-9999999999999999999", "-1e30", "1e-99999999999", "-1e99999999999", '"1e"'],
        *['"2026-02-30T00:00:00Z"', '"2026-01-01"', '"1500-01-01T00:00:00Z"'],
        *['"2026-01-01T00:00:00.1234567890Z"', '"2026-01-01T00:00:60Z"', '"56000-01-01T00:00:00Z"', '"٣"'],
    ],
)
def test_a_bad_value_of_any_type_is_an_error_row_and_moves_no_time(type_: str, value: str) -> None:
    state = read_time(value, type_)
    (error,) = state.table("error_rows").values()
    assert (error["source"], error["code"]) == ("s", "invalid_event_time")
    sent = json.loads(value) if value.startswith('"') else value
    told = "missing" if value == "null" else f'"{sent}"'
    assert error["message"] == f'column "data.ts" must be an instant as {type_}; it is {told}'
    assert not released(state)
    assert not state.metrics


@pytest.mark.parametrize("type_", ["unixtimestamp_s", "unixtimestamp_ms", "unixtimestamp_us", "unixtimestamp_ns"])
@pytest.mark.parametrize(
    ("declared", "value"),
    [
        *[
            (None, number)
            for number in ("9999999999999999999", '"1e30"', "1e308", "1e999999", "1e99999999999999999999")
        ],
        *[("string", "1e400"), ("bigint", str(2**63 - 1)), ("double", "1e300"), ("double", "9.3e18")],
        *[("decimal(38,0)", "9" * 38), ("decimal(38,9)", "9999999999999999999.5e9")],
    ],
)
def test_a_number_beyond_all_instants_lies_in_the_future(type_: str, declared: str | None, value: str) -> None:
    state = read_time(value, type_, declared)
    assert errors(state) == [("s", 1, "future_event_time")]
    assert not state.metrics


@pytest.mark.parametrize(
    ("type_", "value", "code"),
    [
        ("unixtimestamp_s", "9214646400", "future_event_time"),
        ("unixtimestamp_ns", "9214646400000000000", "future_event_time"),
        ("unixtimestamp_s", "1705073548800", "future_event_time"),
        ("unixtimestamp_s", "1705073548800.0000000001", "invalid_event_time"),
        ("unixtimestamp_s", "-9214560000.000000001", "invalid_event_time"),
        ("unixtimestamp_ns", "-9214560000000000001", "invalid_event_time"),
    ],
)
def test_numbers_beside_the_instants_there_are(type_: str, value: str, code: str) -> None:
    stream = {"ordered": True, "eventtime": {"column": "data.ts", "type": type_}}
    events = alone({"data": f'{{"ts": {value}}}', "received_at": at("2261-12-31")})
    late_enough = alone({"data": f'{{"ts": {value}}}', "received_at": at("2261-12-31T23:59:59.999999999Z")})
    for ledger in (events, late_enough):
        assert errors(fold(ledger, {"streams": {"s": stream}})) == [("s", 1, code)]


def test_a_time_that_does_not_fit_its_column_is_no_time_and_the_event_touches_no_table() -> None:
    stream = {
        "key": "k",
        "columns": {"k": "int", "ts": "bigint", "n": "int"},
        "eventtime": {"column": "ts", "type": "unixtimestamp"},
    }
    events = alone(
        {"data": {"k": 1, "ts": "x", "n": "x"}},
        {"data": {"k": 1, "ts": 2**63}, "op": "delete"},
        {"data": {"k": "x", "ts": "x"}},
        {"data": {"k": 1, "ts": 1, "n": "x"}},
        # A message has the time, but the row has no place for its own.
        {"data": {"k": 1, "ts": "x", "messages": [{"stream": "s", "data": {"ts": 1}}]}},
    )
    state = fold(events, {"streams": {"s": stream}, "meters": {"s": {"aggregation": "count"}}})
    codes = ["invalid_event_time", "invalid_event_time", "invalid_column", "invalid_column", "invalid_event_time"]
    assert [code for _, _, code in errors(state)] == codes
    told = [row["message"] for row in state.table("error_rows").values()]
    values = ["x", str(2**63), "x"]
    assert [told[0], told[1], told[4]] == [
        f'column "ts" must be an instant as unixtimestamp_s; it is "{value}"' for value in values
    ]
    assert not state.table("s")
    assert not state.table("counters")


@pytest.mark.parametrize(("type_", "declared"), [("rfc3339", "bigint"), ("unixtimestamp_s", "timestamp")])
def test_a_column_that_never_has_such_an_instant_makes_error_rows(type_: str, declared: str) -> None:
    state = read_time('"1970-01-01T00:00:00Z"' if declared == "timestamp" else "1", type_, declared)
    assert errors(state) == [("s", 1, "invalid_event_time")]


def test_an_hour_ahead_of_its_arrival_is_the_most_an_event_may_be() -> None:
    events = alone(
        timed(HOUR + 5) | {"received_at": 5}, timed(HOUR + 6) | {"received_at": 5}, timed(9) | {"received_at": 5}
    )
    state = windowed(events, ANY, late_tolerance="2h")
    (error,) = state.table("error_rows").values()
    assert (error["ingress_sequence"], error["code"]) == (2, "future_event_time")
    assert error["message"] == 'column "ts" is more than 1 h ahead of its arrival; it is "3600000000006"'
    assert state.held["s_ordered", "default"] == [3, 1]


def test_a_delete_has_no_time_and_is_in_no_window() -> None:
    state = windowed(alone(timed("x") | {"data": {}, "op": "delete"}, timed(1) | {"op": "delete"}), ANY)
    assert state == State()


def test_an_event_with_a_bad_time_is_kept_out_of_nothing_that_does_not_use_it() -> None:
    stream = {"key": "data.id", "eventtime": {"column": "data.ts", "type": "rfc3339"}}
    windows = {
        name: {"stream": "s", "window": {"count": 1}, "eventtime": {"enabled": enabled}, "select": {"n": "count(*)"}}
        for name, enabled in (("by_time", True), ("by_arrival", False))
    }
    events = alone({"data": {"id": 1, "ts": "x"}})
    state = fold(events, {"streams": {"s": stream}, "meters": {"s": {"aggregation": "count"}}, "windows": windows})
    assert counter(state)["value"] == 1
    assert [bool(state.table(name)) for name in ("s", "by_arrival", "by_time")] == [True, True, False]
    assert errors(state) == [("s", 1, "invalid_event_time")]


def test_an_event_has_one_error_row_of_its_stream_whatever_is_wrong() -> None:
    stream = {"columns": {"ts": "string", "n": "int"}, "eventtime": {"column": "ts", "type": "rfc3339"}}
    definitions: dict[str, dict[str, Any]] = {"streams": {"s": stream}, "meters": {"s": {"value": "n"}}}
    events = alone({"data": {"ts": "x", "n": "x"}}, {"data": {"ts": "x"}}, {"data": {"ts": "1970-01-01T00:00:00Z"}})
    assert errors(fold(events, definitions)) == [
        ("s", 1, "invalid_column"),
        ("s", 2, "invalid_event_time"),
        ("s", 3, "missing_quantity"),
    ]


def test_every_stream_may_go_by_when_its_events_occurred() -> None:
    stream = {"ordered": True, "eventtime": {"column": "occurred_at"}}
    events = alone({"occurred_at": 7}, {"occurred_at": HOUR + 1})
    state = fold(events, {"streams": {"s": stream}})
    assert released(state) == [(100, 7, 1)]
    assert errors(state) == [("s", 2, "future_event_time")]


MESSAGES: dict[str, Any] = {
    "s": {"ordered": True, "eventtime": {"column": "data.ts", "type": "unixtimestamp_ns"}},
    "typed": {"columns": {"when": "timestamp", "n": "int"}, "eventtime": {"column": "when", "type": "rfc3339"}},
    "deep": {"eventtime": {"column": "data.a.b", "type": "unixtimestamp_us"}},
    "own": {"eventtime": {"column": "occurred_at"}},
    "timeless": {"columns": {"ts": "int"}},
}


@pytest.mark.parametrize(
    ("messages", "time"),
    [
        ([], 9),
        ({"stream": "deep", "data": {"a": {"b": 1}}}, 9),
        ([1, None, [], {}, {"stream": 5}, {"stream": "timeless", "data": {"ts": 1}}, {"data": {"ts": 1}}], 9),
        ([{"stream": "timeless"}, {"stream": "deep", "data": {"a": {"b": 1}}}, {"stream": "typed"}], 1000),
        ([{"stream": "typed", "data": {"when": "1970-01-01T00:00:00.000000002Z", "n": "x"}}], 2),
        ([{"stream": "own"}], 4),
        ([{"stream": "s", "data": {"ts": 3, "messages": [{"stream": "deep"}]}}], 3),
    ],
)
def test_an_event_of_messages_has_the_time_of_the_first_that_has_one(messages: Any, time: int) -> None:
    events = alone({"occurred_at": 4, "data": {"ts": 9, "messages": messages}})
    state = fold(events, {"streams": MESSAGES})
    assert [found for _, found, _ in released(state)] == [time]


@pytest.mark.parametrize(
    ("stream", "data", "told"),
    [
        ("typed", None, '"when" must be an instant as rfc3339; it is missing'),
        ("typed", {"when": 5}, '"when" must be an instant as rfc3339; it is "5"'),
        ("typed", {"when": "x" * 65}, f'"when" must be an instant as rfc3339; it is "{"x" * 64}..."'),
        ("deep", {"a": []}, '"data.a.b" must be an instant as unixtimestamp_us; it is missing'),
        ("deep", {"a": {"b": 10**13}}, '"data.a.b" is more than 1 h ahead of its arrival; it is "10000000000000"'),
    ],
)
def test_a_bad_time_of_that_message_is_the_events_error(stream: str, data: Any, told: str) -> None:
    events = alone({"data": {"ts": 9, "messages": [{"stream": stream, "data": data}, {"stream": "own"}]}})
    (error,) = fold(events, {"streams": MESSAGES}).table("error_rows").values()
    assert error["message"] == f'in a message of stream "{stream}", column {told}'


# Ordered output


def test_a_released_row_has_a_position_its_time_and_the_columns_of_its_event() -> None:
    state = windowed(recorded([timed(5, g="b", q=2), timed(4)]), ANY)
    assert state.table("s_ordered") == {
        ("default", "2"): {"ingress_sequence": 2, "position": 1, "event_time": 4, "ts": 4, "g": None, "q": None},
        ("default", "1"): {"ingress_sequence": 1, "position": 2, "event_time": 5, "ts": 5, "g": "b", "q": 2},
    }


def test_without_declared_columns_ordered_output_has_what_the_producer_said() -> None:
    stream = {"key": "data.id", "ordered": True, "eventtime": {"column": "occurred_at"}}
    state = fold(alone({"occurred_at": 5, "data": '{"id" :1}', "quantity": Decimal(2)}), {"streams": {"s": stream}})
    assert state.table("s_ordered")["default", "1"] == {
        "ingress_sequence": 1, "position": 1, "event_time": 5, "data_id": "1", "customer_ref": "c",
        "resource_id": None, "occurred_at": 5, "quantity": 2, "data": '{"id" :1}',
    }  # fmt: skip


def test_each_tenant_has_its_own_time_and_positions() -> None:
    state = windowed(alone(timed(50, "fast"), timed(5, "slow"), timed(6, "slow")), ANY)
    assert [row["position"] for row in state.table("s_ordered").values()] == [1, 1, 2]
    assert [state.metrics["s_ordered", tenant].watermark for tenant in ("fast", "slow")] == [50, 6]
    assert not state.table("late_rows")


def test_a_drain_releases_what_is_held_in_order_and_lets_time_stand() -> None:
    events = recorded([timed(30), timed(25), timed(30)], [DRAIN], [timed(30), timed(31)], [DRAIN], [TICK])
    state = windowed(events, ANY, late_tolerance="10ns")
    assert released(state) == [(200, 25, 2), (200, 30, 1), (200, 30, 3), (400, 31, 6)]
    assert late(state, "s_ordered") == [(5, 20, "drained")]
    assert state.raises["s_ordered", "default"] == [(100, 20), (300, 21)]
    assert state.metrics["s_ordered", "default"] == Metrics(
        watermark=21, closed_through=32, buffer_size=0, late_dropped_count=1, watermark_emitted_count=2,
        max_timestamp_seen=31, last_row_at=300, released=4,
    )  # fmt: skip


def test_a_drain_with_nothing_to_release_leaves_no_trace() -> None:
    before = windowed(recorded([timed(30)]), {"window": {"count": 1}})
    after = windowed(recorded([timed(30)], [DRAIN]), {"window": {"count": 1}})
    assert after.metrics == before.metrics
    assert after.changes == before.changes


def test_a_drain_may_name_one_window_and_unknown_ones_are_nobodys() -> None:
    def drained(name: str) -> State:
        drain = DRAIN | {"data": {"type": "drain", "window": name}}
        return windowed(recorded([timed(30)], [drain]), {"window": {"count": 2}}, late_tolerance="1ns")

    assert [bool(released(drained(name))) for name in ("s_ordered", "w", "s")] == [True, False, False]
    assert [bool(drained(name).table("w")) for name in ("s_ordered", "w", "s")] == [False, True, False]


def test_a_tick_drains_what_has_been_idle_for_the_timeout() -> None:
    # Source timestamps are hundreds: the late row at 200 keeps it from being idle at 300.
    events = recorded([timed(30)], [timed(3)], [TICK], [TICK], [timed(30), timed(31)])
    state = windowed(events, ANY, late_tolerance="10ns", idle_timeout="200ns")
    assert released(state) == [(400, 30, 1)]
    assert late(state, "s_ordered") == [(2, 20, "late"), (5, 20, "drained")]
    assert not released(windowed(events, ANY, late_tolerance="10ns"))


def test_rows_with_a_bad_time_keep_nothing_from_being_idle() -> None:
    state = windowed(recorded([timed(30)], [timed(None)], [TICK]), ANY, late_tolerance="1ns", idle_timeout="200ns")
    assert released(state) == [(300, 30, 1)]


def test_late_rows_move_no_time_and_say_what_judged_them() -> None:
    events = recorded([timed(30)], [timed(20), timed(21)], [timed(21)])
    state = windowed(events, ANY, late_tolerance="10ns")
    assert late(state, "s_ordered") == [(2, 20, "late")]
    assert state.table("late_rows")["default", '["s_ordered","2"]']["event_time"] == 20
    assert state.held["s_ordered", "default"] == [3, 4, 1]
    assert state.metrics["s_ordered", "default"].max_timestamp_seen == 30


def test_a_watermark_is_no_lower_than_64_bits_hold() -> None:
    state = windowed(alone(timed(at("1678-01-01")), timed(at("1678-01-02"))), ANY, late_tolerance="200d")
    assert state.raises["s_ordered", "default"] == [(100, -(2**63))]
    assert state.held["s_ordered", "default"] == [1, 2]


def test_what_is_not_live_has_late_rows_in_its_changes_and_nothing_else() -> None:
    stream = {"live": False, "ordered": True, "eventtime": {"column": "occurred_at"}}
    events: list[Event] = alone({"occurred_at": 5}, {"occurred_at": 5})
    state = fold(events, {"streams": {"s": stream}})
    assert [change.table for change in state.changes] == ["late_rows"]
    assert released(state) == [(100, 5, 1)]
