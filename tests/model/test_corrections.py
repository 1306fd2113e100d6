"""The reference model's corrections and distinct counts, by example; the contract's cases are in `test_closing`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model import Event, State, fold
from tests.model.billing_cases import CONTROL
from tests.model.samples import DRAIN, TICK, alone, amend, at, counter, errors, recorded, timed, void
from tests.model.test_closing import METER, closes, folded, statements, used

HOUR = 3600 * 10**9
EARLY, LATE = "2026-03-01", "2026-03-20"


def figures(state: State) -> tuple[Any, Any]:
    row = counter(state)
    return row["value"], row["total"]


def adjusted(state: State) -> list[tuple[int, str, Any, Any]]:
    """Sequence, reason, quantity and amount."""
    rows = state.table("adjustments").values()
    return [(row["ingress_sequence"], row["reason"], row["quantity"], row["amount"]) for row in rows]


def grouped(state: State) -> dict[str | None, tuple[Any, Any]]:
    return {row["group_key"]: (row["value"], row["total"]) for row in state.table("counter_groups").values()}


def in_region(region: str, ts: str = LATE, quantity: int = 1) -> dict[str, Any]:
    return used(ts, quantity, data={"region": region})


# --- Voids.


@pytest.mark.parametrize(
    ("aggregation", "value"), [("sum", 5), ("count", 2), ("min", 2), ("max", 3), ("avg", Decimal("2.5")), ("last", 3)]
)
def test_a_void_in_time_leaves_what_the_other_events_come_to(aggregation: str, value: Any) -> None:
    events = [used(LATE, 2), used(LATE, 1), used(LATE, 3), used(LATE, 9), void(2), void(4)]
    state = folded(*events, aggregation=aggregation)
    assert figures(state) == (value, value)
    assert not adjusted(state)


@pytest.mark.parametrize(
    ("aggregation", "value", "total", "amount"),
    [("sum", 10, 9, -1), ("count", 2, 1, -1), ("min", 1, 9, 8), ("max", 9, 9, 0), ("avg", 5, 9, 4), ("last", 9, 9, 0)],
)
def test_a_void_that_comes_too_late_is_an_amount_and_leaves_the_value(
    aggregation: str, value: int, total: int, amount: int
) -> None:
    state = folded(used(EARLY, 1), used(LATE, 9), void(1), aggregation=aggregation)
    assert figures(state) == (value, total)
    assert adjusted(state) == [(3, "void", None, amount)]


@pytest.mark.parametrize(
    ("aggregation", "empty"), [("sum", 0), ("count", 0), ("min", None), ("max", None), ("avg", None), ("last", None)]
)
def test_a_counter_without_events_keeps_its_row_and_its_watermark(aggregation: str, empty: int | None) -> None:
    state = folded(used(LATE, 5), void(1), aggregation=aggregation)
    row = counter(state)
    assert figures(state) == (empty, empty)
    assert (row["agg_sum"], row["agg_count"], row["agg_max"], row["agg_min"], row["agg_last"]) == (0, 0, *[None] * 3)
    assert row["watermark_ts"] == at(LATE)


def test_nothing_left_is_nothing_to_an_amount() -> None:
    events = [used(LATE, 5), closes("2026-04-01T00:00:00Z"), void(1)]
    state = folded(*events, aggregation="max")
    assert figures(state) == (5, None)
    assert adjusted(state) == [(3, "closed", None, -5)]


def test_a_void_of_an_event_exactly_lateness_old_is_in_time() -> None:
    events = [used(EARLY, 5), used("2026-03-03", 7), void(1)]
    assert figures(folded(*events)) == (7, 7)
    assert adjusted(folded(used(EARLY, 5), used("2026-03-03T00:00:00.000000001Z", 7), void(1))) == [
        (3, "void", None, -5)
    ]


def test_an_adjustment_of_nothing_is_still_one() -> None:
    assert adjusted(folded(used(EARLY, 0), used(LATE, 7), void(1), amend(2, 7))) == [(3, "void", None, 0)]


def test_a_void_of_what_no_meter_counts_is_nothing() -> None:
    events = [used(LATE, customer_ref=None), used(LATE, data={"n": 1}), {"op": "delete"}, void(1), void(2), void(3)]
    state = folded(*events, where={"data.n": {"_is_null": True}})
    assert errors(state) == [("s", 1, "missing_customer")]
    assert not state.table("counters")
    assert not state.table("adjustments")


def test_a_void_is_no_error_of_a_meter_whatever_it_lacks() -> None:
    state = folded(used(LATE, 5, data={"n": 5}), void(1), value="data.n")
    assert figures(state) == (0, 0)
    assert errors(state) == []


def test_a_correction_of_a_counter_that_has_adjusted_events_only_moves_its_total() -> None:
    events = [closes("2026-04-01T00:00:00Z"), used(LATE, 5), used(LATE, 7), void(2), amend(3, 1)]
    state = folded(*events)
    assert figures(state) == (0, 1)
    assert counter(state)["watermark_ts"] is None
    assert adjusted(state)[2:] == [(4, "closed", None, -5), (5, "closed", 1, -6)]


def test_each_meter_decides_by_itself() -> None:
    meters = {"wide": METER | {"stream": "s", "lateness": "720h"}, "narrow": METER | {"stream": "s"}}
    state = fold(alone(used(EARLY, 5), used(LATE, 7), void(1)), {"meters": meters})
    assert {row["metric"]: (row["value"], row["total"]) for row in state.table("counters").values()} == {
        "wide": (7, 7),
        "narrow": (12, 7),
    }
    assert [row["metric"] for row in state.table("adjustments").values()] == ["narrow"]


def test_a_correction_is_in_time_by_what_came_before_it_in_its_own_collection() -> None:
    state = fold(recorded([used(EARLY, 5), void(1), used(LATE, 7)]), {"meters": {"s": METER}})
    assert figures(state) == (7, 7)
    # The counter changed once, whatever came and left in between.
    assert len([change for change in state.changes if change.table == "counters"]) == 1
    state = fold(recorded([used(EARLY, 5), used(LATE, 7), void(1)]), {"meters": {"s": METER}})
    assert figures(state) == (12, 7)


def test_an_event_that_is_voided_in_its_own_collection_leaves_an_empty_counter() -> None:
    state = fold(recorded([used(EARLY, 5), void(1)]), {"meters": {"s": METER}})
    (change,) = [change for change in state.changes if change.table == "counters"]
    assert change.old is None
    assert change.new is not None
    assert (change.new["value"], change.new["watermark_ts"]) == (0, at(EARLY))


# --- Amendments.


def test_an_amendment_keeps_what_it_does_not_say() -> None:
    events = alone(used(LATE, 5, data={"region": "eu"}, resource_id="r"), amend(1, data={"region": "us"}), amend(2, 3))
    assert [(e.quantity, e.data, e.resource_id, e.occurred_at) for e in events[1:]] == [
        (5, '{"region": "us"}', "r", at(LATE)),
        (3, '{"region": "us"}', "r", at(LATE)),
    ]


def test_an_amendment_that_comes_too_late_is_the_difference() -> None:
    state = folded(used(EARLY, 5), used(LATE, 7), amend(1, 8))
    assert figures(state) == (12, 15)
    assert adjusted(state) == [(3, "amend", 8, 3)]


def test_an_amendment_of_an_adjusted_event_is_an_adjustment_even_where_it_would_be_in_time() -> None:
    # Nothing is late by now: the watermark has been 20 March all the while, and lateness is none of the target's.
    events = [used(LATE, 7), used(EARLY, 5), amend(2, 6), amend(3, 1), void(4)]
    state = folded(*events)
    assert figures(state) == (7, 7)
    assert adjusted(state) == [(2, "late", 5, 5), (3, "amend", 6, 1), (4, "amend", 1, -5), (5, "void", None, -1)]


def test_a_void_of_an_amendment_that_was_not_in_time_takes_out_what_that_brought_in() -> None:
    state = folded(used(EARLY, 5), used(LATE, 7), amend(1, 8), void(3))
    # The first event stays in the value: it was folded, and never voided in time.
    assert figures(state) == (12, 7)
    assert adjusted(state) == [(3, "amend", 8, 3), (4, "void", None, -8)]


def test_an_amendment_in_time_of_the_maximum_lowers_it() -> None:
    state = folded(used(LATE, 9), used(LATE, 4), amend(1, 2), aggregation="max")
    assert figures(state) == (4, 4)


def test_an_amendment_that_the_filter_leaves_out_is_a_void() -> None:
    where = {"data.region": {"_eq": "eu"}}
    state = folded(in_region("eu", LATE, 5), in_region("eu", LATE, 7), amend(1, data={"region": "us"}), where=where)
    assert figures(state) == (7, 7)
    assert not adjusted(state)
    events = [in_region("eu", EARLY, 5), in_region("eu", LATE, 7), amend(1, data={"region": "us"})]
    assert adjusted(folded(*events, where=where)) == [(3, "amend", None, -5)]


def test_an_amendment_that_the_filter_takes_in_is_an_event_of_its_targets_time() -> None:
    where = {"data.region": {"_eq": "eu"}}
    state = folded(in_region("eu", EARLY), in_region("us", LATE, 7), amend(2, data={"region": "eu"}), where=where)
    assert figures(state) == (8, 8)
    assert counter(state)["watermark_ts"] == at(LATE)
    assert not adjusted(state)


def test_an_amendment_that_the_filter_takes_in_may_be_late() -> None:
    where = {"data.region": {"_eq": "eu"}}
    events = [in_region("us", EARLY, 5), in_region("eu", LATE, 7), amend(1, data={"region": "eu"})]
    assert figures(folded(*events, where=where)) == (7, 12)
    assert adjusted(folded(*events, where=where)) == [(3, "amend", 5, 5)]
    closed = [*events[:2], closes("2026-04-01T00:00:00Z"), events[2]]
    assert adjusted(folded(*closed, where=where)) == [(4, "closed", 5, 5)]


def test_what_an_amendment_left_out_another_may_take_in_again() -> None:
    where = {"data.region": {"_eq": "eu"}}
    events = [in_region("eu", LATE, 5), amend(1, data={"region": "us"}), amend(2, 3, data={"region": "eu"})]
    assert figures(folded(*events, where=where)) == (3, 3)


def test_an_amendment_of_an_event_without_quantity_makes_it_count() -> None:
    state = folded({"occurred_at": at(LATE)}, amend(1, 4), amend(2, 5))
    assert errors(state) == [("s", 1, "missing_quantity")]
    assert figures(state) == (5, 5)


def test_an_amendment_that_is_an_error_is_a_void_beside_its_error_row() -> None:
    state = folded(used(LATE, data={"n": 5}), used(LATE, data={"n": 7}), amend(1, data={"n": "x"}), value="data.n")
    assert figures(state) == (7, 7)
    assert errors(state) == [("s", 3, "missing_quantity")]
    # It is an event, though: another one may amend it in its turn.
    events = [used(LATE, data={"n": 5}), amend(1, data={"n": "x"}), amend(2, data={"n": 6})]
    assert figures(folded(*events, value="data.n")) == (6, 6)


def test_an_amendment_that_does_not_fit_the_columns_is_a_void_of_every_meter() -> None:
    meters = {"m": METER | {"stream": "s", "value": "n"}, "all": METER | {"stream": "s", "aggregation": "count"}}
    toml: dict[str, Any] = {"streams": {"s": {"columns": {"n": "bigint"}}}, "meters": meters}
    state = fold(alone(used(LATE, data={"n": 5}), amend(1, data={"n": 1.5})), toml)
    assert {row["metric"]: row["value"] for row in state.table("counters").values()} == {"m": 0, "all": 0}
    assert errors(state) == [("s", 2, "invalid_column")]


def test_an_amendment_of_an_event_without_customer_is_the_same_error_again() -> None:
    state = folded(used(LATE, customer_ref=None), amend(1, 4), void(2))
    assert errors(state) == [("s", 1, "missing_customer"), ("s", 2, "missing_customer")]
    assert not state.table("counters")


def test_a_statement_says_what_corrections_came_to_by_then_and_does_not_move() -> None:
    events = [used(LATE, 5), used(LATE, 7), used(LATE, 9), void(1), amend(2, 8), closes("2026-04-01T00:00:00Z")]
    state = folded(*events, void(3), amend(5, 1))
    assert statements(state) == [("default", "c", 17, 17, 2, 6)]
    assert figures(state) == (17, 1)
    assert adjusted(state) == [(7, "closed", None, -9), (8, "closed", 1, -7)]


def test_a_statement_counts_the_events_of_the_total() -> None:
    events = [used(EARLY, 5), used(LATE, 7), used(EARLY, 1), void(1), closes("2026-04-01T00:00:00Z")]
    assert statements(folded(*events)) == [("default", "c", 12, 8, 2, 5)]


@given(st.randoms(use_true_random=False))
def test_value_and_total_are_two_sets_that_every_event_decides_for_itself(chance: Random) -> None:
    """No chain needs to be followed: a watermark never goes back, so what corrects a late event is late itself."""
    events = alone(*some_steps(chance))
    where = {"data.n": {"_gt": 0}}
    state = fold(events, {"meters": {"s": METER | {"aggregation": "count", "lateness": "1h", "where": where}}})
    corrected_by = {event.target_sequence: event for event in events}
    counted = [e for e in events if e.op in ("upsert", "amend") and json.loads(e.data or "{}").get("n", 0) > 0]
    closed = min((e.ingress_sequence for e in events if e.stream == CONTROL), default=len(events) + 1)

    def is_in_time(event: Event) -> bool:
        before = [e.occurred_at for e in counted if e.ingress_sequence < event.ingress_sequence < closed]
        return event.ingress_sequence < closed and event.occurred_at >= max(before, default=0) - HOUR

    folded = [e for e in counted if is_in_time(e)]
    value = [e for e in folded if (by := corrected_by.get(e.ingress_sequence)) is None or not is_in_time(by)]
    total = [e for e in counted if e.ingress_sequence not in corrected_by]
    for found in state.counters.values():
        assert [e.sequence for e in found.folded.entries] == [e.ingress_sequence for e in value]
        assert [e.sequence for e in found.together.entries] == [e.ingress_sequence for e in total]
        assert found.watermark == max((e.occurred_at for e in folded), default=None)
    assert bool(state.counters) == bool(counted)
    # An adjustment is what entered or left the total alone, and amounts add up to what that has beside the value.
    assert sum(amount for *_, amount in adjusted(state)) == len(total) - len(value)


def some_steps(chance: Random) -> Iterator[dict[str, Any]]:
    """Events of few times, of which half count, and corrections; a close now and then."""
    correctable: list[int] = []
    for sequence in range(1, chance.randint(1, 20)):
        data = {"n": chance.choice([0, 1, 2])}
        target = chance.choice(correctable) if correctable and chance.random() < 0.5 else None
        if chance.random() < 0.03:
            yield closes("2026-04-01T00:00:00Z")
            continue
        op = chance.choice(["void", "amend", "amend"])
        if target is None:
            yield used(f"2026-03-20T0{chance.randint(0, 4)}:00:00Z", data=data)
        else:
            correctable.remove(target)
            yield void(target) if op == "void" else amend(target, data=data if chance.random() < 0.7 else None)
        if target is None or op == "amend":
            correctable.append(sequence)


# --- Groups.


def test_a_void_takes_an_event_out_of_its_group_whose_row_stays() -> None:
    state = folded(in_region("eu", LATE, 5), in_region("us", LATE, 7), void(1), group_by="data.region")
    assert grouped(state) == {"eu": (0, 0), "us": (7, 7)}
    (eu,) = [row for row in state.table("counter_groups").values() if row["group_key"] == "eu"]
    assert (eu["agg_count"], eu["watermark_ts"]) == (0, at(LATE))


def test_an_amendment_moves_an_event_from_group_to_group() -> None:
    events = [in_region("eu", EARLY, 5), in_region("us", "2026-03-02", 7), amend(1, data={"region": "us"})]
    assert grouped(folded(*events, group_by="data.region")) == {"eu": (0, 0), "us": (12, 12)}
    # A group that has nothing yet begins with it, and with its time.
    state = folded(in_region("eu", EARLY, 5), amend(1, data={"region": "new"}), group_by="data.region")
    assert [row["watermark_ts"] for row in state.table("counter_groups").values()] == [at(EARLY), at(EARLY)]


def test_a_group_does_as_the_counter_decided() -> None:
    # In its own group the event would be in time, in the counter it is not.
    events = [in_region("eu", EARLY, 5), in_region("us", LATE, 7), amend(1, 8, data={"region": "asia"})]
    state = folded(*events, group_by="data.region")
    assert grouped(state) == {"eu": (5, 0), "us": (7, 7), "asia": (0, 8)}
    assert figures(state) == (12, 15)
    assert [row["watermark_ts"] for row in state.table("counter_groups").values()] == [at(EARLY), at(LATE), None]


def test_an_amendment_within_its_group_replaces() -> None:
    state = folded(in_region("eu", LATE, 5), amend(1, 8), group_by="data.region", aggregation="max")
    assert grouped(state) == {"eu": (8, 8)}


# --- Distinct texts.


def distinct(*events: Mapping[str, Any], **meter: Any) -> State:
    return folded(*events, aggregation="unique_count", value="data.u", **meter)


def by(user: Any, ts: str = LATE, **more: Any) -> dict[str, Any]:
    return {"occurred_at": at(ts), "data": {"u": user}, **more}


def test_distinct_texts_are_counted_once() -> None:
    state = distinct(by("ann"), by("bob"), by("ann"), by(7), by("7"), by(True), by(""))
    assert figures(state) == (5, 5)
    row = counter(state)
    assert (row["agg_count"], row["watermark_ts"]) == (7, at(LATE))
    assert [row[f"agg_{name}"] for name in ("sum", "max", "min", "last")] == [None] * 4


def test_what_is_counted_of_a_declared_column_is_its_text() -> None:
    meter = {"stream": "s", "aggregation": "unique_count", "value": "n"}
    toml: dict[str, Any] = {"streams": {"s": {"columns": {"n": "decimal(9,2)"}}}, "meters": {"m": meter}}
    state = fold(alone(*(used(LATE, data={"n": n}) for n in (1.5, "1.50", 2))), toml)
    assert figures(state) == (2, 2)


def test_an_event_without_a_value_to_count_is_an_error() -> None:
    state = distinct(by(None), {"occurred_at": at(LATE), "quantity": Decimal(1)}, by("ann"))
    assert errors(state) == [("s", 1, "missing_quantity"), ("s", 2, "missing_quantity")]
    assert figures(state) == (1, 1)


def test_a_late_event_adds_what_has_not_been_seen() -> None:
    state = distinct(by("ann"), by("bob", EARLY), by("ann", EARLY), by("bob", EARLY))
    assert figures(state) == (1, 2)
    assert adjusted(state) == [(2, "late", None, 1), (3, "late", None, 0), (4, "late", None, 0)]


def test_a_text_that_was_seen_late_first_is_in_the_value_once_it_comes_in_time() -> None:
    state = distinct(by("ann"), by("bob", EARLY), by("bob"))
    assert figures(state) == (2, 2)


def test_a_text_is_gone_with_the_last_event_that_has_it() -> None:
    events = [by("ann"), by("ann"), by("bob"), void(1)]
    assert figures(distinct(*events)) == (2, 2)
    assert figures(distinct(*events, void(2))) == (1, 1)
    late = [by("ann", EARLY), by("ann"), by("bob"), void(1), void(2)]
    assert adjusted(distinct(*late)) == [(4, "void", None, 0)]
    # The value has it still: its first event was not voided in time.
    assert figures(distinct(*late)) == (2, 1)


def test_an_amendment_exchanges_a_text() -> None:
    assert figures(distinct(by("ann"), by("bob"), amend(1, data={"u": "bob"}))) == (1, 1)
    late = distinct(by("ann", EARLY), by("bob"), amend(1, data={"u": "cy"}))
    assert figures(late) == (2, 2)
    assert adjusted(late) == [(3, "amend", None, 0)]


def test_each_group_counts_texts_of_its_own() -> None:
    def seen(user: str, region: str) -> dict[str, Any]:
        return {"occurred_at": at(LATE), "data": {"u": user, "region": region}}

    events = [seen("ann", "eu"), seen("ann", "us"), amend(2, data={"u": "ann", "region": "eu"}), seen("bob", "us")]
    state = distinct(*events, group_by="data.region")
    assert figures(state) == (2, 2)
    assert grouped(state) == {"eu": (1, 1), "us": (1, 1)}


def test_a_counter_of_texts_that_begins_behind_a_close_is_zero() -> None:
    state = distinct(closes("2026-04-01T00:00:00Z"), by("ann"), by("ann"))
    assert figures(state) == (0, 1)


# --- All that is no meter.


def test_a_correction_is_for_meters_only_and_windows_say_that_they_ignore_it() -> None:
    toml: dict[str, Any] = {
        "streams": {
            "s": {
                "columns": {"ts": "bigint"},
                "eventtime": {"column": "ts", "type": "unixtimestamp_ns"},
                "ordered": True,
            },
            "t": {"ordered": True, "eventtime": {"column": "occurred_at"}},
        },
        "windows": {
            "w": {"stream": "s", "window": {"tumbling": "10ns"}, "eventtime": {"enabled": True},
                  "select": {"n": "count(*)"}},
            "arrived": {"stream": "s", "window": {"tumbling": "250ns"}, "select": {"n": "count(*)"}},
            "elsewhere": {"stream": "t", "window": {"count": 1}, "select": {"n": "count(*)"}},
        },
        "meters": {"m": {"stream": "s", "aggregation": "count"}},
    }  # fmt: skip
    events = alone(timed(5), timed(6), void(1), amend(2, data={"ts": 99}), amend(4, data={"ts": "x"}), TICK, DRAIN)
    state = fold(events, toml)
    assert [error for error in errors(state) if error[2] == "correction_ignored"] == [
        (name, sequence, "correction_ignored") for name in ("arrived", "s_ordered", "w") for sequence in (3, 4, 5)
    ]
    assert ("s", 5, "invalid_event_time") in errors(state)
    assert [row["n"] for row in state.table("w").values()] == [2]
    assert [row["event_time"] for row in state.table("s_ordered").values()] == [5, 6]
    # By arrival they are rows of the ledger as others are: time goes on with them.
    assert [row["n"] for row in state.table("arrived").values()] == [2]
    assert state.metrics["w", "default"].max_timestamp_seen == 6


def test_a_correction_leaves_the_latest_rows_of_a_stream_that_got_a_key_later() -> None:
    toml: dict[str, Any] = {"streams": {"s": {"key": "data.id"}}, "meters": {"s": METER}}
    events = [used(LATE, 5, data={"id": 1}), void(1), used(LATE, 7, data={"id": 2}), amend(3, 9)]
    state = fold(alone(*events), toml)
    assert {key: row["quantity"] for (_, key), row in state.table("s").items()} == {"1": 5, "2": 7}
    assert figures(state) == (9, 9)
    assert errors(state) == []
    # Events that have no key are errors there, amendments like others.
    state = fold(alone(*events, amend(4, data={}), void(5)), toml)
    assert figures(state) == (0, 0)
    assert errors(state) == [("s", 5, "invalid_column")]
