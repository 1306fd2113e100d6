"""The reference model's meters, by the worked cases of the contract and by examples of what they leave out."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest

from tests.model import fold
from tests.model.cases import CASES, case_events, check, meter_of, shown
from tests.model.meters import average, period_start
from tests.model.samples import alone, at, counter, errors, metered
from tests.model.values import decimal_text

MARCH = '"2026-03-01T00:00:00Z"'


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_case_of_the_contract(case: Mapping[str, Any]) -> None:
    state = metered(case_events(case), **meter_of(case))
    check(state.table("counters"), case["counters"])
    check(state.table("adjustments"), case["adjustments"])
    check(state.table("counter_groups"), case.get("groups", []))
    assert not errors(state)


def test_a_late_event_moves_neither_the_counter_nor_its_watermark() -> None:
    events = alone({"quantity": Decimal(1)}, {"quantity": Decimal(5), "occurred_at": at("2026-03-01")})
    state = metered(events, aggregation="avg", lateness="1h")
    row = counter(state)
    assert (row["value"], row["total"], row["watermark_ts"]) == (1, 3, at("2026-03-10"))
    (adjustment,) = state.table("adjustments").values()
    assert adjustment == {
        "metric": "s", "customer_ref": "c", "period_start": at("2026-03-01"), "ingress_sequence": 2,
        "quantity": 5, "amount": 2, "reason": "late", "occurred_at": at("2026-03-01"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("aggregation", "amounts", "total"),
    [
        ("sum", ["-4", "7"], "13"),
        ("count", ["1", "1"], "3"),
        ("max", ["0", "0"], "10"),
        ("min", ["-14", "0"], "-4"),
        ("last", ["0", "0"], "10"),
        ("avg", ["-7", "1.333333333"], "4.333333333"),
    ],
)
def test_an_amount_is_the_fold_with_an_event_minus_the_fold_without_it(
    aggregation: str, amounts: list[str], total: str
) -> None:
    late = at("2026-03-01")
    events = alone(
        {"quantity": Decimal(10)},
        {"quantity": Decimal(-4), "occurred_at": late},
        {"quantity": Decimal(7), "occurred_at": late},
    )
    state = metered(events, aggregation=aggregation)
    assert [shown(row["amount"]) for row in state.table("adjustments").values()] == amounts
    assert shown(counter(state)["total"]) == total


def test_a_late_event_without_quantity_adjusts_a_count_by_one() -> None:
    events = alone({"quantity": Decimal(1)}, {"occurred_at": at("2026-03-01")})
    (adjustment,) = metered(events, aggregation="count").table("adjustments").values()
    assert (adjustment["quantity"], adjustment["amount"]) == (None, 1)


def test_an_event_without_quantity_counts_but_is_not_the_last() -> None:
    events = alone({"quantity": Decimal(3)}, {"occurred_at": at("01:00:00")})
    row = counter(metered(events, aggregation="count"))
    assert (row["agg_count"], row["agg_last"], row["watermark_ts"]) == (2, 3, at("01:00:00"))


def test_counts_without_any_quantity_have_a_sum_of_zero_and_no_extremes() -> None:
    row = counter(metered(alone({}), aggregation="count"))
    assert (row["agg_sum"], row["agg_count"], row["agg_max"], row["agg_min"], row["agg_last"]) == (
        0,
        1,
        None,
        None,
        None,
    )


@pytest.mark.parametrize("aggregation", ["sum", "max", "min", "last", "avg"])
def test_what_needs_a_quantity_makes_an_error_row_of_an_event_without_one(aggregation: str) -> None:
    state = metered(alone({}, {"quantity": Decimal(1)}), aggregation=aggregation)
    assert errors(state) == [("s", 1, "missing_quantity")]
    assert counter(state)["agg_count"] == 1


def test_an_event_without_customer_is_an_error_row_of_each_meter_it_would_count_for() -> None:
    events = alone({"customer_ref": None, "quantity": Decimal(1), "data": {"region": "eu"}}, {"customer_ref": ""})
    meters = {
        "all": {"stream": "s", "aggregation": "count"},
        "eu": {"stream": "s", "where": {"data.region": {"_eq": "eu"}}},
        "us": {"stream": "s", "where": {"data.region": {"_eq": "us"}}},
    }
    state = fold(events, {"meters": meters})
    assert errors(state) == [("all", 1, "missing_customer"), ("eu", 1, "missing_customer")]
    assert list(state.table("counters")) == [("default", f'["all","",{MARCH}]')]


@pytest.mark.parametrize(
    ("value", "quantity"),
    [
        ("1.5", "1.5"),
        ('"1.50"', "1.5"),
        ("15e-1", "1.5"),
        ("0e99999999999999999999", "0"),
        ("9999999999999999999.999999999", "9999999999999999999.999999999"),
        ("10000000000000000000", None),
        ("0.0000000001", None),
        ("1e1000000", None),
        ('"NaN"', None),
        ('""', None),
        ("true", None),
        ("[1]", None),
        ("null", None),
    ],
)
def test_a_value_path_leads_to_a_number_or_to_no_quantity(value: str, quantity: str | None) -> None:
    events = alone({"data": f'{{"a": {{"b" : {value} }}}}', "quantity": Decimal(9)})
    state = metered(events, value="data.a.b")
    if quantity is None:
        assert errors(state) == [("s", 1, "missing_quantity")]
    else:
        assert shown(counter(state)["value"]) == quantity


@pytest.mark.parametrize("data", [None, "[1]", "1", '"a"', "{}", '{"a":[{"b":1}]}', '{"a":{"b":null}}'])
def test_a_path_that_leads_nowhere_is_null(data: str | None) -> None:
    state = metered(
        alone({"data": data}), aggregation="count", group_by="data.a.b", where={"data.a.b": {"_is_null": True}}
    )
    (row,) = state.table("counter_groups").values()
    assert row["group_key"] is None


@pytest.mark.parametrize(
    ("where", "data", "counts"),
    [
        ({"data.size": {"_gt": 10}}, '{"size": 11}', True),
        ({"data.size": {"_gt": 10}}, '{"size": "1.1e1"}', True),
        ({"data.size": {"_gt": 10}}, '{"size": 9}', False),
        ({"data.size": {"_neq": 10}}, '{"size": "large"}', False),
        ({"data.size": {"_neq": "10"}}, '{"size": 11}', True),
        ({"data.size": {"_eq": "11.0"}}, '{"size": 11.0}', True),
        ({"data.ok": {"_eq": True}}, '{"ok": true}', True),
        ({"data.ok": {"_nin": [True]}}, '{"ok": null}', False),
        ('{"quantity": {"_gte": 1.50}}', "{}", True),
        ({"occurred_at": {"_lt": "2026-03-10T01:00:00+01:00"}}, "{}", False),
    ],
)
def test_a_filter_decides_which_events_count(where: Any, data: str, counts: bool) -> None:
    state = metered(alone({"data": data, "quantity": Decimal("1.5")}), where=where)
    assert bool(state.table("counters")) is counts
    assert not errors(state)


def test_groups_have_the_texts_of_their_columns() -> None:
    stream = {"columns": {"day": "date", "lot": "int", "open": "boolean", "price": "decimal(9,2)", "at": "timestamp"}}
    meter = {"stream": "s", "aggregation": "count", "group_by": [*stream["columns"], "customer_ref"]}
    data = {"day": "2026-03-10", "lot": "007", "open": True, "price": "1.50", "at": "2026-03-10T01:00:00.500+01:00"}
    state = fold(alone({"data": data}, {"customer_ref": "é"}), {"streams": {"s": stream}, "meters": {"m": meter}})
    assert [row["group_key"] for row in state.table("counter_groups").values()] == [
        '["2026-03-10","7","true","1.5","2026-03-10T00:00:00.5Z","c"]',
        '[null,null,null,null,null,"é"]',
    ]


def test_a_group_of_late_events_only_has_a_total_and_nothing_else() -> None:
    events = alone(
        {"quantity": Decimal(1), "data": {"region": "eu"}},
        {"quantity": Decimal(5), "data": {"region": "us"}, "occurred_at": at("2026-03-01")},
    )
    state = metered(events, aggregation="max", group_by=["data.region"])
    row = state.table("counter_groups")["default", f'["s","c",{MARCH},"us"]']
    assert (row["agg_sum"], row["agg_count"], row["value"], row["total"]) == (0, 0, None, 5)
    assert row["watermark_ts"] is None


def test_a_meter_has_its_own_lateness_or_the_one_of_all() -> None:
    events = alone({"quantity": Decimal(1)}, {"quantity": Decimal(1), "occurred_at": at("2026-03-09")})
    meters = {"lateness": "1h", "own": {"stream": "s", "lateness": "24h"}, "other": {"stream": "s"}}
    state = fold(events, {"meters": meters})
    assert [row["metric"] for row in state.table("adjustments").values()] == ["other"]


@pytest.mark.parametrize(
    ("period", "start"),
    [("hour", "1969-12-28T23:00:00Z"), ("day", "1969-12-28"), ("week", "1969-12-22"), ("month", "1969-12-01")],
)
def test_periods_reach_back_before_1970(period: str, start: str) -> None:
    assert period_start(period, at("1969-12-28T23:59:59.999999999Z")) == at(start)


@pytest.mark.parametrize(
    ("total", "count", "value"),
    [
        ("1", 3, "0.333333333"),
        ("2", 3, "0.666666667"),
        ("-2", 3, "-0.666666667"),
        ("0.000000001", 2, "0.000000001"),
        ("-0.000000001", 2, "-0.000000001"),
        ("0.000000001", 3, "0"),
        ("12345678901234567890.5", 1, "12345678901234567890.5"),
    ],
)
def test_an_average_has_nine_decimals_half_away_from_zero(total: str, count: int, value: str) -> None:
    assert decimal_text(average(Decimal(total), count)) == value


def test_a_double_is_rounded_at_nine_decimals_and_nothing_else_is() -> None:
    stream = {"columns": {"x": "double", "y": "decimal(20,12)"}}
    meters = {name: {"stream": "s", "value": name} for name in ("x", "y")}
    data = {"x": 0.1234567895, "y": "0.1234567895"}
    state = fold(alone({"data": data}), {"streams": {"s": stream}, "meters": meters})
    assert counter(state)["value"] == Decimal("0.12345679")
    assert errors(state) == [("y", 1, "missing_quantity")]
