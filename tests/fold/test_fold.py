"""The fold by example: meters, latest rows, error rows and changes, each compared with the reference model too."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from tests.conftest import Databases
from tests.fold.folding import Folding, Toml, differences, expected, folded
from tests.ledgers import write_ledger
from tests.model import Event, State, fold
from tests.model.cases import CASES, case_events, check, meter_of
from tests.model.samples import alone, at, counter, errors, recorded
from tidelock.errors import CursorMoved
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark

#: folds a ledger; what the model makes of it is returned, since the fold has made the same
Folded = Callable[[Sequence[Event], Toml], State]

TRADES: dict[str, Any] = {
    "streams": {
        "trades": {
            "key": "id",
            "columns": {
                "id": "bigint", "symbol": "string", "price": "decimal(18,4)", "at": "timestamp", "day": "date",
                "open": "boolean", "rate": "double", "lots": "int", "note": "json",
            },
        }
    }
}  # fmt: skip


@pytest.fixture
def made(spark: Spark, database: Database) -> Folded:
    def fold_both(events: Sequence[Event], toml: Toml) -> State:
        state = fold(events, toml)
        assert differences(folded(spark, database, events, toml), expected(state)) == {}
        return state

    return fold_both


def trades(*rows: Mapping[str, Any], op: str = "upsert") -> list[dict[str, Any]]:
    """A collection of rows."""
    return [{"stream": "trades", "op": op, "data": dict(row)} for row in rows]


def by_metric(state: State, table: str = "counters") -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in state.table(table).values():
        found.setdefault(row["metric"], []).append(row)
    return found


# The worked cases of the contract


@pytest.fixture(scope="module")
def cases(spark: Spark, databases: Databases) -> list[tuple[int, State]]:
    """All cases in one ledger, each a stream and meter of its own; with the sequence each began after."""
    events: list[Event] = []
    found = []
    for number, case in enumerate(CASES):
        start = len(events)
        found.append((start, f"case_{number}"))
        events += [
            replace(event, stream=f"case_{number}", ingress_sequence=start + n, source_timestamp=100 * (start + n))
            for n, event in enumerate(case_events(case), start=1)
        ]
    toml = {"meters": {f"case_{number}": meter_of(case) for number, case in enumerate(CASES)}}
    state = fold(events, toml)
    with databases() as database:
        ends = write_ledger(database, events)
        with Folding(spark, database, toml) as folding:
            assert differences(folding.fold([(0, ends[40]), (ends[40], ends[-1])]), expected(state)) == {}
    return [(start, _only(state, metric)) for start, metric in found]


def _only(state: State, metric: str) -> State:
    tables = {
        name: {key: row for key, row in table.items() if row["metric"] == metric}
        for name, table in state.tables.items()
    }
    return State(tables=tables)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case["name"] for case in CASES])
def test_a_case_of_the_contract(cases: list[tuple[int, State]], number: int) -> None:
    case, (start, state) = CASES[number], cases[number]
    adjustments = [row | {"ingress_sequence": row["ingress_sequence"] + start} for row in case["adjustments"]]
    check(state.table("counters"), case["counters"])
    check(state.table("adjustments"), adjustments)
    check(state.table("counter_groups"), case.get("groups", []))


# Meters


def test_every_aggregation_and_period_of_one_stream_is_a_meter_of_its_own(made: Folded) -> None:
    meters = {
        name: {"stream": "s", "aggregation": name, "period": period}
        for name, period in zip(
            ("sum", "count", "max", "min", "last", "avg"), ("hour", "day", "week", "month") * 2, strict=False
        )
    }
    ten, nine = {"occurred_at": at("10:00:00")}, {"occurred_at": at("09:00:00")}
    state = made(
        recorded(
            [ten | {"quantity": Decimal("2.5")}], [nine | {"quantity": Decimal(-1)}, ten | {"quantity": Decimal(4)}]
        ),
        {"meters": meters},
    )
    found = by_metric(state)
    assert {row["period_start"]: row["value"] for row in found["sum"]} == {
        at("10:00:00"): Decimal("6.5"), at("09:00:00"): -1,
    }  # fmt: skip
    starts = {"count": "2026-03-10", "max": "2026-03-09", "min": "2026-03-01", "avg": "2026-03-10"}
    for name, value in {"count": 3, "max": 4, "min": -1, "avg": Decimal("1.833333333")}.items():
        assert [(row["value"], row["period_start"]) for row in found[name]] == [(value, at(starts[name]))]
    assert {row["value"] for row in found["last"]} == {4, -1}


def test_an_event_exactly_as_late_as_allowed_counts_and_one_nanosecond_later_it_is_an_adjustment(made: Folded) -> None:
    edge = at("10:00:00") - 3600 * 10**9
    state = made(
        alone(
            {"quantity": Decimal(1), "occurred_at": at("10:00:00")},
            {"quantity": Decimal(2), "occurred_at": edge},
            {"quantity": Decimal("0.000000004"), "occurred_at": edge - 1},
        ),
        {"meters": {"s": {"lateness": "1h"}, "patient": {"stream": "s", "lateness": "2h"}}},
    )
    assert {metric: rows[0]["value"] for metric, rows in by_metric(state).items()} == {
        "s": 3, "patient": Decimal("3.000000004"),
    }  # fmt: skip
    (adjustment,) = state.table("adjustments").values()
    assert (adjustment["metric"], adjustment["ingress_sequence"]) == ("s", 3)
    assert adjustment["amount"] == Decimal("0.000000004")


def test_a_late_event_that_changes_no_value_changes_no_row_yet_is_remembered(made: Folded) -> None:
    state = made(
        alone(
            {"quantity": Decimal(9)},
            {"quantity": Decimal(5), "occurred_at": at("2026-03-01")},
            {"quantity": Decimal(11), "occurred_at": at("2026-03-01")},
        ),
        {"meters": {"s": {"aggregation": "max", "lateness": "0s"}}},
    )
    assert state.source_timestamps["counters"] == {("default", '["s","c","2026-03-01T00:00:00Z"]'): 300}
    assert [row["amount"] for row in state.table("adjustments").values()] == [0, 2]
    assert (counter(state)["value"], counter(state)["total"]) == (9, 11)


def test_a_meter_takes_its_value_from_a_path_and_counts_what_its_filter_lets_through(made: Folded) -> None:
    state = made(
        alone(
            {"data": {"size": {"gb": "1.25"}, "region": "eu"}},
            {"data": {"size": {"gb": 2}, "region": "eu"}},
            {"data": {"size": {"gb": 100}, "region": "us"}},
            {"data": {"size": {"gb": "NaN"}, "region": "us"}},
            {"data": '{"size": {"gb": 1e999999}, "region": "eu"}'},
        ),
        {"meters": {"s": {"value": "data.size.gb", "where": {"data.region": {"_eq": "eu"}}}}},
    )
    assert counter(state)["value"] == Decimal("3.25")
    assert errors(state) == [("s", 5, "missing_quantity")]


def test_groups_of_one_and_of_two_columns_have_a_place_for_what_is_missing(made: Folded) -> None:
    state = made(
        alone(
            {"quantity": Decimal(1), "data": {"region": "eu", "tier": 'a"b'}},
            {"quantity": Decimal(2), "data": {"region": "eu"}},
            {"quantity": Decimal(4)},
        ),
        {
            "meters": {
                "one": {"stream": "s", "group_by": "data.region"},
                "two": {"stream": "s", "group_by": ["data.region", "data.tier"]},
            }
        },
    )
    groups = {(row["metric"], row["group_key"]): row["value"] for row in state.table("counter_groups").values()}
    assert groups == {
        ("one", "eu"): 3, ("one", None): 4,
        ("two", '["eu","a\\"b"]'): 1, ("two", '["eu",null]'): 2, ("two", "[null,null]"): 4,
    }  # fmt: skip


def test_a_group_or_a_key_that_no_index_holds_does_not_stop_the_fold(made: Folded) -> None:
    one, two = (random.Random(seed).randbytes(10_000).hex() for seed in (1, 2))
    state = made(
        alone(
            *({"quantity": Decimal(1), "data": {"id": text}} for text in (one, two, one, "x")),
            *({"stream": "t", "data": {"id": text}} for text in (one, "x" * 1024, "x" * 1025)),
        ),
        {"meters": {"m": {"stream": "s", "group_by": "data.id"}}, "streams": {"t": {"key": "data.id"}}},
    )
    groups = {row["group_key"]: row["value"] for row in state.table("counter_groups").values()}
    assert groups == {one: 2, two: 1, "x": 1}
    assert max(len(key) for _, key in state.table("counter_groups")) == 200 + len("...") + 64
    assert list(state.table("t")) == [("default", "x" * 1024)]
    assert errors(state) == [("t", 5, "invalid_column"), ("t", 7, "invalid_column")]


def test_an_absent_quantity_counts_for_count_and_is_an_error_row_for_all_else(made: Folded) -> None:
    state = made(
        alone({}, {"quantity": Decimal(1)}, {"quantity": Decimal(1), "customer_ref": None}),
        {"meters": {"calls": {"stream": "s", "aggregation": "count"}, "sum": {"stream": "s"}}},
    )
    assert {metric: rows[0]["value"] for metric, rows in by_metric(state).items()} == {"calls": 2, "sum": 1}
    assert errors(state) == [
        ("calls", 3, "missing_customer"), ("sum", 1, "missing_quantity"), ("sum", 3, "missing_customer"),
    ]  # fmt: skip


# Latest rows


def test_a_row_has_its_declared_types_and_a_delete_removes_it(made: Folded) -> None:
    full = {
        "id": "1", "symbol": 7, "price": "1.50", "at": "2026-01-01T01:00:00.5+01:00", "day": "2026-01-01",
        "open": True, "rate": 0.1, "lots": "3.0", "note": {"b": 1, "a": [2]},
    }  # fmt: skip
    state = made(
        recorded(trades(full, {"id": 2}), trades({"id": 2}, op="delete"), trades({"id": 3}, op="delete")), TRADES
    )
    assert state.table("trades") == {
        ("default", "1"): {
            "id": 1, "symbol": "7", "price": Decimal("1.5"), "at": at("2026-01-01T00:00:00.5Z"),
            "day": date(2026, 1, 1), "open": True, "rate": 0.1, "lots": 3, "note": '{"b": 1, "a": [2]}',
        }
    }  # fmt: skip
    assert [(change.key, change.new is None) for change in state.changes] == [("1", False), ("2", False), ("2", True)]


def test_an_upsert_of_the_same_values_changes_nothing_not_even_the_source_timestamp(made: Folded) -> None:
    state = made(
        recorded(
            trades({"id": 1, "price": 2}),
            trades({"id": "1.0", "price": "2.0000"}),
            trades({"id": 1, "price": 3}, {"id": 1, "price": 2}),
        ),
        TRADES,
    )
    assert state.source_timestamps["trades"] == {("default", "1"): 100}
    assert len(state.changes) == 1


def test_a_key_of_several_columns_is_a_compact_array(made: Folded) -> None:
    toml = {
        "streams": {
            "s": {"key": ["data.a", "customer_ref"]},
            "t": {"key": ["d", "n"], "columns": {"n": "decimal(5,2)", "d": "date"}},
        }
    }
    state = made(
        alone({"data": {"a": "é\n"}}, {"stream": "t", "data": {"n": "1.50", "d": "2026-01-01"}}, {"data": {"b": 1}}),
        toml,
    )
    assert list(state.table("s")) == [("default", '["é\\n","c"]')]
    assert list(state.table("t")) == [("default", '["2026-01-01","1.5"]')]
    assert errors(state) == [("s", 3, "invalid_column")]


def test_a_row_that_does_not_fit_its_columns_is_an_error_row_and_the_pipeline_continues(made: Folded) -> None:
    state = made(
        recorded(
            trades({"id": 1, "price": "1.00001"}, {"id": "NaN"}, {"id": 2, "day": "2026-02-30"}, {"price": 1}),
            trades({"id": 1, "lots": 2**31}, {"id": 1, "open": "yes"}, {"id": 3}),
        ),
        TRADES | {"meters": {"trades": {"aggregation": "count"}}},
    )
    assert [key for _, key in state.table("trades")] == ["3"]
    assert [row["message"] for row in state.table("error_rows").values()] == [
        'column "price" must be decimal(18,4)', 'column "id" must be bigint', 'column "day" must be date',
        'key column "id" is missing', 'column "lots" must be int', 'column "open" must be boolean',
    ]  # fmt: skip
    assert counter(state)["value"] == 1


# Changes


def test_what_is_not_live_has_rows_but_no_changes(made: Folded) -> None:
    streams = {"trades": TRADES["streams"]["trades"] | {"live": False}}
    meters = {
        "quiet": {"stream": "s", "live": False, "group_by": "data.a", "lateness": "0s"},
        "loud": {"stream": "s", "lateness": "0s"},
    }
    late = {"quantity": Decimal(2), "occurred_at": at("2026-03-01")}
    state = made(
        recorded([{"quantity": Decimal(1)}], [late, {}], trades({"id": 1})), {"streams": streams, "meters": meters}
    )
    assert {row["metric"] for row in state.table("counters").values()} == {"quiet", "loud"}
    assert len(state.table("trades")) == 1
    changed = {(change.table, (change.new or {}).get("metric")) for change in state.changes}
    assert changed == {("counters", "loud"), ("adjustments", "loud"), ("error_rows", None)}


def test_a_range_is_applied_once(spark: Spark, database: Database) -> None:
    ends = write_ledger(database, alone({"quantity": Decimal(1)}, {"quantity": Decimal(2)}))
    with Folding(spark, database, {"meters": {"s": {}}}) as folding:
        before = folding.fold([(0, ends[0])])
        with pytest.raises(CursorMoved, match="moved the cursor fold from 0"):
            folding.range_fold.apply(0, ends[0])
        assert folding.picture() == before
        after = folding.fold([(ends[0], ends[1])])
    assert {row["value"] for _, row in after.rows.values()} == {"3 decimal"}


def test_a_range_without_an_event_for_any_definition_moves_the_cursor_only(spark: Spark, database: Database) -> None:
    control = {"stream": "_tidelock", "tenant_id": "_tidelock", "customer_ref": None, "data": {"type": "tick"}}
    ends = write_ledger(database, alone({"stream": "other"}, control))
    with Folding(spark, database, {"meters": {"s": {}}}) as folding:
        found = folding.fold([(0, ends[0]), (ends[0], ends[1])])
        assert folding.store.position() == ends[-1]
    assert (found.rows, found.changes) == ({}, [])
