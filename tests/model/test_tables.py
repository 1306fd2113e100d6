"""The reference model's latest rows, error rows and changes, by example."""

from collections.abc import Iterable, Mapping
from datetime import date
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from tests.model import Change, Event, State, fold
from tests.model.events import Columns
from tests.model.samples import alone, at, counter, errors, metered, recorded
from tests.model.values import instant, instant_text, json_members, json_text

MARCH = '"2026-03-01T00:00:00Z"'


# Latest rows

TRADES: dict[str, Any] = {
    "streams": {
        "trades": {
            "key": "trade_id",
            "columns": {"trade_id": "bigint", "symbol": "string", "price": "decimal(18,4)", "ts": "timestamp"},
        }
    }
}


def trades(*collections: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Rows of trades as collections; `_op` is the event's."""
    return recorded(
        *(
            [{"op": row.get("_op", "upsert"), "data": {k: v for k, v in row.items() if k != "_op"}} for row in rows]
            for rows in collections
        ),
        stream="trades",
    )


def test_the_latest_row_by_sequence_replaces_the_one_before() -> None:
    state = fold(trades([{"trade_id": 1, "symbol": "A", "price": 1}], [{"trade_id": "1.0", "price": "2.50"}]), TRADES)
    assert state.table("trades") == {
        ("default", "1"): {"trade_id": 1, "symbol": None, "price": Decimal("2.5"), "ts": None}
    }
    assert state.source_timestamps["trades"] == {("default", "1"): 200}


def test_a_delete_removes_a_row_and_feeds_nothing_else() -> None:
    meters = {"meters": {"trades": {"aggregation": "count"}}}
    state = fold(
        trades([{"trade_id": 1}], [{"trade_id": 1, "_op": "delete"}], [{"trade_id": 2, "_op": "delete"}]),
        TRADES | meters,
    )
    assert not state.table("trades")
    assert not state.source_timestamps["trades"]
    assert counter(state)["value"] == 1


def test_several_key_columns_are_an_array_of_texts() -> None:
    stream = {"key": ["symbol", "day"], "columns": {"symbol": "string", "day": "date", "open": "boolean"}}
    events = recorded([{"data": {"symbol": 'A"é', "day": "2026-01-31", "open": False}}])
    assert fold(events, {"streams": {"s": stream}}).table("s") == {
        ("default", '["A\\"é","2026-01-31"]'): {"symbol": 'A"é', "day": date(2026, 1, 31), "open": False}
    }


def test_tenants_have_rows_of_their_own() -> None:
    events = recorded([{"data": {"id": 1}}, {"data": {"id": 1}, "tenant_id": "b"}])
    state = fold(events, {"streams": {"s": {"key": "id", "columns": {"id": "int"}}}})
    assert list(state.table("s")) == [("default", "1"), ("b", "1")]
    assert [(change.key, change.tenant_id) for change in state.changes] == [("1", "b"), ("1", "default")]


def test_a_stream_without_columns_keeps_what_the_producer_said() -> None:
    events = recorded([{"data": '{"device": {"id" : 7.0 }}', "quantity": Decimal(1)}])
    state = fold(events, {"streams": {"s": {"key": "data.device.id"}}})
    assert state.table("s")["default", "7.0"] == {
        "data_device_id": "7.0", "customer_ref": "c", "resource_id": None, "occurred_at": at("2026-03-10"),
        "quantity": 1, "data": '{"device": {"id" : 7.0 }}',
    }  # fmt: skip


def test_calculated_columns_are_given_by_the_test() -> None:
    stream = {"key": "id", "columns": {"id": "int"}, "calculated": {"twice": "id * 2"}}
    state = fold(
        recorded([{"data": {"id": 4}}]), {"streams": {"s": stream}}, {("s", "twice"): lambda row: row["id"] * 2}
    )
    assert state.table("s")["default", "4"] == {"id": 4, "twice": 8}


# Errors


@pytest.mark.parametrize(
    ("column_type", "fitting", "misfits"),
    [
        ("string", ["1", '"a"', "true", '{"a": 1}'], []),
        ("int", ["1", '"1"', "1.0", "-2147483648", "1e3"], ["1.5", "2147483648", '"one"', "true", '""', '" 1"', "[1]"]),
        ("bigint", ["9223372036854775807", '"+7"'], ["9223372036854775808", '"1_0"', '"٣"', "1e400"]),
        ("decimal(4,2)", ["1.5", '"99.990"', "15e-1"], ["100", "0.125", '"NaN"', '"Infinity"', "1e99999999999999999"]),
        ("double", ["1", "1.5e300", '"-0.1"', "1e-400"], ["1e309", '"NaN"', '"inf"', "true"]),
        ("boolean", ["true", "false", '"true"'], ["1", '"TRUE"', '"yes"']),
        ("timestamp", ['"2026-01-31T23:59:59.123456789Z"', '"2026-01-31 23:59:59-05:30"'],
         ['"2026-01-31"', "1769904000000", '"2026-02-30T00:00:00Z"', '"2026-01-31T23:59:60Z"', '"1500-01-01T00:00:00Z"',
          '"2026-01-31T23:59:59.1234567890Z"']),
        ("date", ['"2026-01-31"', '"0001-01-01"'], ['"2026-02-30"', '"20260131"', '"0000-01-01"', "20260131"]),
        ("json", ["1", '"a"', "[1, 2]"], []),
    ],
)  # fmt: skip
def test_a_value_fits_its_column_unrounded_or_is_an_error_row(
    column_type: str, fitting: list[str], misfits: list[str]
) -> None:
    definitions = {"streams": {"s": {"key": "id", "columns": {"id": "string", "x": column_type}}}}
    for value in [*fitting, "null"]:
        state = fold(alone({"data": f'{{"id": "k", "x": {value}}}'}), definitions)
        assert not errors(state), value
        assert state.table("s"), value
    for value in misfits:
        state = fold(alone({"data": f'{{"id": "k", "x": {value}}}'}), definitions)
        (error,) = state.table("error_rows").values()
        assert (error["code"], error["message"]) == ("invalid_column", f'column "x" must be {column_type}'), value
        assert not state.table("s"), value


def test_an_event_that_does_not_fit_touches_no_table_and_the_next_goes_on() -> None:
    definitions: dict[str, Any] = {**TRADES, "meters": {"n": {"stream": "trades", "aggregation": "count"}}}
    state = fold(trades([{"trade_id": 1, "price": "x", "ts": "y"}, {"trade_id": 1, "price": 2}]), definitions)
    assert errors(state) == [("trades", 1, "invalid_column")]
    assert counter(state)["value"] == 1
    assert state.table("trades")["default", "1"]["price"] == 2


def test_a_delete_that_does_not_fit_deletes_nothing() -> None:
    state = fold(trades([{"trade_id": 1}], [{"trade_id": 1, "price": "x", "_op": "delete"}]), TRADES)
    assert list(state.table("trades")) == [("default", "1")]
    assert errors(state) == [("trades", 2, "invalid_column")]


def test_an_event_from_before_the_stream_had_a_key_is_an_error_row() -> None:
    state = fold(trades([{"symbol": "A"}]), TRADES)
    assert errors(state) == [("trades", 1, "invalid_column")]


def test_declared_columns_hide_the_envelope() -> None:
    stream = {"columns": {"quantity": "int"}}
    events = alone({"quantity": Decimal(5), "data": {"quantity": 7}}, {"quantity": Decimal(5)})
    state = fold(events, {"streams": {"s": stream}, "meters": {"s": {}}})
    assert counter(state)["value"] == 7
    assert errors(state) == [("s", 2, "missing_quantity")]


def test_control_events_are_no_events_of_a_stream() -> None:
    assert fold(alone({"stream": "_tidelock", "data": {"type": "tick"}}), {"meters": {"_tidelock": {}}}) == State()


# Changes


def test_a_collection_makes_one_change_of_a_key_however_often_it_touches_it() -> None:
    state = fold(
        trades(
            [{"trade_id": 1, "symbol": "A"}, {"trade_id": 1, "symbol": "B"}, {"trade_id": 1, "symbol": "C"}],
            [{"trade_id": 1, "_op": "delete"}, {"trade_id": 1, "symbol": "D"}],
            [{"trade_id": 2}, {"trade_id": 2, "_op": "delete"}],
            [{"trade_id": 1, "_op": "delete"}],
        ),
        TRADES,
    )
    seen = [(c.source_timestamp, c.old and c.old["symbol"], c.new and c.new["symbol"]) for c in state.changes]
    assert seen == [(100, None, "C"), (200, "C", "D"), (400, "D", None)]


def test_what_leaves_a_row_as_it_was_is_no_change_and_keeps_its_time() -> None:
    same = {"trade_id": 1, "price": "1.50"}
    state = fold(trades([same], [{"trade_id": 1, "price": 2}, same], [{"trade_id": "1", "price": 1.5}]), TRADES)
    assert [change.source_timestamp for change in state.changes] == [100]
    assert state.source_timestamps["trades"] == {("default", "1"): 100}


def test_a_late_event_of_amount_zero_changes_the_adjustments_only() -> None:
    events = alone({"quantity": Decimal(5)}, {"quantity": Decimal(1), "occurred_at": at("2026-03-01")})
    state = metered(events, aggregation="last")
    assert [(change.table, change.source_timestamp) for change in state.changes] == [
        ("counters", 100),
        ("adjustments", 200),
    ]


def test_changes_are_ordered_by_time_and_key() -> None:
    rows = [{"trade_id": number} for number in (10, 9, 2, -1)]
    state = fold(trades(rows, rows[:1]), TRADES)
    assert [change.key for change in state.changes] == ["-1", "10", "2", "9"]


def test_a_change_has_the_whole_row_before_and_after() -> None:
    state = metered(recorded([{"quantity": Decimal(5)}], [{"quantity": Decimal(2)}, {"quantity": Decimal(1)}]))
    first, second = state.changes
    assert second == Change("counters", 200, f'["s","c",{MARCH}]', "default", old=first.new, new=counter(state))
    assert first.old is None
    assert first.new is not None
    assert (first.new["value"], counter(state)["value"]) == (5, 8)


def test_tables_that_are_not_live_have_rows_and_no_changes() -> None:
    events = alone({"quantity": Decimal(1)}, {"quantity": Decimal(1), "occurred_at": at("2026-03-01")})
    state = metered(events, live=False, group_by=["resource_id"])
    assert all(state.table(name) for name in ("counters", "counter_groups", "adjustments"))
    assert not state.changes


def test_replaying_the_changes_gives_the_tables() -> None:
    random = Random(7)
    ids = [{"trade_id": random.randrange(4), "price": random.randrange(3)} for _ in range(200)]
    rows = [row | {"_op": random.choice(["upsert", "upsert", "delete"])} for row in ids]
    events = trades(*(rows[i : i + 3] for i in range(0, 200, 3)))
    state = fold(events, TRADES)
    table: dict[tuple[str, str], Any] = {}
    for change in state.changes:
        assert table.get((change.tenant_id, change.key)) == change.old
        table[change.tenant_id, change.key] = change.new
    assert {key: row for key, row in table.items() if row is not None} == state.table("trades")


# Values


def test_members_keep_their_text_and_the_last_of_a_name_wins() -> None:
    raw = ' { "a" : 1.50 , "b":{"c" :[1, "}"]}, "a" : "x\\"\\u00e9" , "d":1e99999, "e": null} '
    members = json_members(raw)
    assert members == {"a": '"x\\"\\u00e9"', "b": '{"c" :[1, "}"]}', "d": "1e99999", "e": "null"}
    assert [json_text(members.get(name)) for name in "abcde"] == ['x"é', '{"c" :[1, "}"]}', None, "1e99999", None]


def test_an_instant_has_one_text() -> None:
    assert instant_text(instant("2026-01-31T23:59:59.500-00:30")) == "2026-02-01T00:29:59.5Z"
    assert instant_text(-1) == "1969-12-31T23:59:59.999999999Z"


def test_an_envelope_column_is_what_was_recorded() -> None:
    columns = Columns(Event(1, 1, "s", 5, quantity=Decimal("1.50")), {})
    assert [columns.text(name) for name in ("occurred_at", "quantity", "op")] == [
        "1970-01-01T00:00:00.000000005Z",
        "1.5",
        "upsert",
    ]
