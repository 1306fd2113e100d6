"""The reference model's closes and statements, by the worked cases of the contract and by example."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest

from tests.model import State, fold
from tests.model.billing_cases import CASES, CONTROL, case_events, closing, wanted
from tests.model.cases import shown
from tests.model.meters import period_end
from tests.model.samples import alone, at

METER = {"aggregation": "sum", "period": "month", "lateness": "48h"}


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_case_of_the_contract(case: Mapping[str, Any]) -> None:
    meter = {name: case[name] for name in ("aggregation", "period", "lateness")}
    check(fold(case_events(case, meter), {"meters": {"s": meter}}), case)


def check(state: State, case: Mapping[str, Any], after: int = 0, metric: str = "s") -> None:
    """The rows of a case, in what it says of them, and no others. `after`: the sequence that it began behind."""
    for table in ("counters", "adjustments", "statements"):
        rows = wanted(case, table)
        names = rows[0] if rows else {}
        found = [
            {name: shown({**row, "tenant_id": tenant}[name]) for name in names}
            for (tenant, _), row in state.table(table).items()
            if row["metric"] == metric
        ]
        moved = [
            {name: value + after if name in ("ingress_sequence", "closed_sequence") else value
             for name, value in row.items()}
            for row in rows
        ]  # fmt: skip
        assert sorted(found, key=repr) == sorted(moved, key=repr), table


def closes(through: str, tenant: str | None = None, meters: Mapping[str, Any] | None = None, **more: Any) -> Any:
    return {
        "stream": CONTROL,
        "tenant_id": CONTROL,
        "data": closing(meters or {"s": METER}, through, tenant, **more),
    }


def used(ts: str, quantity: int = 1, **more: Any) -> dict[str, Any]:
    return {"occurred_at": at(ts), "quantity": Decimal(quantity), **more}


def folded(*events: Mapping[str, Any], **meter: Any) -> State:
    return fold(alone(*events), {"meters": {"s": METER | meter}})


def statements(state: State) -> list[tuple[str, str, Any, Any, int, int]]:
    """Tenant, customer, value, total, events and the sequence that closed it."""
    return [
        (tenant, row["customer_ref"], row["value"], row["total"], row["event_count"], row["closed_sequence"])
        for (tenant, _), row in state.table("statements").items()
    ]


def test_a_statement_says_what_was_closed_and_never_moves() -> None:
    events = [
        used("2026-03-20", 5),
        used("2026-03-01", 2),
        closes("2026-04-01T00:00:00Z", hashed="of-then"),
        used("2026-03-31", 1),
        closes("2026-05-01T00:00:00Z", hashed="of-later"),
    ]
    state = folded(*events)
    (row,) = state.table("statements").values()
    assert row == {
        "metric": "s",
        "customer_ref": "c",
        "period_start": at("2026-03-01"),
        "period_end": at("2026-04-01"),
        "value": 5,
        "total": 7,
        "event_count": 2,
        "closed_sequence": 3,
        "definition": "of-then",
    }
    (counter,) = state.table("counters").values()
    assert (counter["value"], counter["total"]) == (5, 8)


def test_an_event_for_a_closed_period_is_closed_and_not_late_whatever_the_watermark_says() -> None:
    state = folded(used("2026-03-20"), closes("2026-04-01T00:00:00Z"), used("2026-03-01"), used("2026-03-31"))
    assert [row["reason"] for row in state.table("adjustments").values()] == ["closed", "closed"]


def test_what_is_late_in_an_open_period_stays_late() -> None:
    state = folded(closes("2026-03-01T00:00:00Z"), used("2026-03-20"), used("2026-03-01"))
    assert [row["reason"] for row in state.table("adjustments").values()] == ["late"]


@pytest.mark.parametrize(
    ("aggregation", "value", "total", "amounts"),
    [
        ("sum", 0, 4, [3, 1]),
        ("count", 0, 2, [1, 1]),
        ("max", None, 3, [3, 0]),
        ("min", None, 1, [3, -2]),
        ("last", None, 1, [3, -2]),
        ("avg", None, 2, [3, -1]),
    ],
)
def test_a_counter_that_begins_behind_a_close_has_no_value_and_no_watermark(
    aggregation: str, value: int | None, total: int, amounts: list[int]
) -> None:
    events = [closes("2026-04-01T00:00:00Z"), used("2026-03-20", 3), used("2026-03-21", 1)]
    state = folded(*events, aggregation=aggregation)
    (counter,) = state.table("counters").values()
    assert (counter["value"], counter["total"], counter["watermark_ts"]) == (value, total, None)
    assert [row["amount"] for row in state.table("adjustments").values()] == amounts


def test_an_end_that_is_none_of_the_meters_closes_what_ends_before_it() -> None:
    events = [used("2026-03-20"), used("2026-04-02"), closes("2026-04-15T00:00:00Z"), used("2026-04-03")]
    state = folded(*events)
    assert [row["period_start"] for row in state.table("statements").values()] == [at("2026-03-01")]
    assert not state.table("adjustments")


def test_a_close_does_not_go_back() -> None:
    events = [closes("2026-05-01T00:00:00Z"), closes("2026-04-01T00:00:00Z"), used("2026-04-20")]
    assert [row["reason"] for row in folded(*events).table("adjustments").values()] == ["closed"]


def test_a_counter_that_began_behind_a_close_waits_for_the_next_one_of_its_own_tenant() -> None:
    late = used("2026-03-20", tenant_id="beta")
    events = [closes("2026-04-01T00:00:00Z"), late, closes("2026-05-01T00:00:00Z", "other")]
    assert statements(folded(*events)) == []
    events.append(closes("2026-05-01T00:00:00Z", "beta"))
    assert statements(folded(*events)) == [("beta", "c", 0, 1, 1, 4)]


def test_a_close_names_its_meters_and_others_stay_open() -> None:
    meters = {"a": METER | {"stream": "s"}, "b": METER | {"stream": "s"}}
    events = [used("2026-03-20"), closes("2026-04-01T00:00:00Z", meters={"a": meters["a"]}), used("2026-03-31")]
    state = fold(alone(*events), {"meters": meters})
    assert [row["metric"] for row in state.table("statements").values()] == ["a"]
    assert {row["metric"]: row["value"] for row in state.table("counters").values()} == {"a": 1, "b": 2}
    # One that is not there any more is nobody's.
    assert not fold(alone(closes("2026-04-01T00:00:00Z", meters={"gone": METER})), {"meters": meters}).closed


def test_a_meter_may_be_closed_without_statements() -> None:
    silent = METER | {"statements": False}
    state = folded(used("2026-03-20"), closes("2026-04-01T00:00:00Z", meters={"s": silent}), used("2026-03-31"))
    assert not state.table("statements")
    assert [row["reason"] for row in state.table("adjustments").values()] == ["closed"]


def test_groups_inherit_that_a_counter_is_closed() -> None:
    grouped = used("2026-03-31", data={"region": "eu"})
    state = folded(grouped, closes("2026-04-01T00:00:00Z"), grouped, group_by="data.region")
    (group,) = state.table("counter_groups").values()
    assert (group["value"], group["total"]) == (1, 2)
    assert len(state.table("statements")) == 1


def test_statements_are_changes_of_the_close() -> None:
    state = folded(used("2026-03-20"), closes("2026-04-01T00:00:00Z"))
    (change,) = [change for change in state.changes if change.table == "statements"]
    assert (change.source_timestamp, change.old, change.tenant_id) == (200, None, "default")
    assert json.loads(change.key) == ["s", "c", "2026-03-01T00:00:00Z"]


@pytest.mark.parametrize(
    ("period", "start", "end"),
    [
        ("hour", "2026-03-28T23:00:00Z", "2026-03-29"),
        ("day", "2026-02-28", "2026-03-01"),
        ("week", "2025-12-29", "2026-01-05"),
        ("month", "2024-02-01", "2024-03-01"),
        ("month", "1969-12-01", "1970-01-01"),
    ],
)
def test_a_period_ends_where_the_next_begins(period: str, start: str, end: str) -> None:
    assert period_end(period, at(start)) == at(end)
