"""Views: who looks through a filter is told exactly what becomes of the rows it is true of."""

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.budgets import examples
from tests.views.histories import TABLE, TENANTS, Client, comparable, expression_of, histories, states, visible
from tests.where.filters import COLUMNS, Filter, rewritten, where
from tidelock.changes.reader import Change, Row
from tidelock.views.views import FilterCounters, TableViews, View, ViewEvent
from tidelock.where import FALSE, TRUE

pytestmark = pytest.mark.check

BLANK: Row = {"k": "a", **dict.fromkeys(COLUMNS)}


def change(old: dict[str, object] | None, new: dict[str, object] | None, time: int = 1) -> Change:
    before, after = (None if values is None else {**BLANK, **values} for values in (old, new))
    return Change(TABLE.name, time, "t", "a", old=before, new=after)


class Log:
    """A subscriber that writes down what it is told."""

    def __init__(self) -> None:
        self.events: list[ViewEvent] = []

    def put(self, event: ViewEvent) -> None:
        self.events.append(event)

    @property
    def told(self) -> list[str]:
        return [event.operation for event in self.events]


# The rows of a filter, at every time


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(histories(), st.lists(st.tuples(where(), st.sampled_from([None, *TENANTS])), min_size=1, max_size=6), st.data())
def test_events_alone_give_the_rows_of_the_filter_at_every_time(
    history: list[list[Change]], filters: list[tuple[Filter, str | None]], data: st.DataObject
) -> None:
    begin = data.draw(st.integers(0, len(history)))
    state = states(history)
    source = TableViews(TABLE)
    clients = []
    for written, tenant in filters:
        client = Client(visible(state[begin - 1] if begin else {}, written, tenant))
        source.subscribe(client, expression_of(written), tenant)
        clients.append((client, written, tenant))
    for number, changes in enumerate(history[begin:], start=begin):
        for each in changes:
            source.apply(each)
        for client, written, tenant in clients:
            assert comparable(client.rows) == comparable(visible(state[number], written, tenant))


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.too_slow])
@given(histories(), where(), st.sampled_from([None, *TENANTS]))
def test_a_reader_of_the_log_finds_the_same_events(
    history: list[list[Change]], written: Filter, tenant: str | None
) -> None:
    source, log = TableViews(TABLE), Log()
    view = source.subscribe(log, expression_of(written), tenant)
    found = []
    for changes in history:
        for each in changes:
            source.apply(each)
            found += [event for event in [view.event_of(each)] if event is not None]
    assert [repr(event) for event in found] == [repr(event) for event in log.events]


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.too_slow])
@given(histories())
def test_without_a_filter_events_are_those_of_each_change_alone(history: list[list[Change]]) -> None:
    source, log = TableViews(TABLE), Log()
    source.subscribe(log, TRUE)
    expected = []
    for changes in history:
        for each in changes:
            source.apply(each)
            if (e := View(TABLE, TRUE).event_of(each)) is not None:
                expected.append((e.source_timestamp, e.tenant_id, e.key, e.operation, e.fields, e.row))
    told = [(e.source_timestamp, e.tenant_id, e.key, e.operation, e.fields, e.row) for e in log.events]
    assert repr(told) == repr(expected)


def test_a_row_that_is_seen_no_more_is_deleted_as_it_was_seen_last() -> None:
    source, log = TableViews(TABLE), Log()
    source.subscribe(log, expression_of({"i": {"_gt": 5}}))
    source.apply(change({"i": 9, "s": "seen"}, {"i": 1, "s": "unseen"}))
    source.apply(change({"i": 1}, {"i": 2}))
    source.apply(change({"i": 2}, {"i": 6}))
    source.apply(change({"i": 6}, {"i": 6, "s": "b"}))
    source.apply(change({"i": 6}, {"i": None}))
    assert [(event.operation, event.fields, event.row["s"]) for event in log.events] == [
        ("DELETE", ("k",), "seen"),
        ("INSERT", tuple(TABLE.columns), None),
        ("UPDATE", ("s",), "b"),
        ("DELETE", ("k",), None),
    ]


# Sharing


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.too_slow])
@given(where(), st.randoms(use_true_random=False))
def test_filters_that_mean_the_same_share_a_view(written: Filter, random: Random) -> None:
    source = TableViews(TABLE)
    views = {source.subscribe(Log(), expression_of(rewritten(written, random)), "t") for _ in range(3)}
    assert len(views) == source.views == 1
    assert source.view_subscribers == 3
    assert source.subscribe(Log(), expression_of(written), "u") not in views or expression_of(written) == FALSE


def test_a_tenant_is_a_condition_like_any_other() -> None:
    source = TableViews(TABLE)
    one = source.subscribe(Log(), expression_of({"i": {"_eq": 1}}), "t")
    assert source.subscribe(Log(), expression_of({"i": {"_eq": 1}, "tenant_id": {"_eq": "t"}})) is one
    assert source.subscribe(Log(), expression_of({"i": {"_eq": 1}})) is not one


def test_nobody_sees_another_tenants_rows_whatever_the_filter_says() -> None:
    source, log = TableViews(TABLE), Log()
    for written in ({}, {"tenant_id": {"_eq": "t"}}, {"_or": [{}, {"tenant_id": {"_neq": "u"}}]}):
        source.subscribe(log, expression_of(written), "u")
    source.apply(change(None, {"i": 1}))
    source.apply(change({"i": 1}, {"i": 2}))
    assert log.events == []


def test_all_who_are_told_the_same_get_one_object() -> None:
    source = TableViews(TABLE)
    logs = [Log() for _ in range(5)]
    for number, log in enumerate(logs):
        source.subscribe(log, expression_of({"i": {"_gt": number // 2}}))
    source.apply(change({"i": 9}, {"i": 8}))
    first = logs[0].events[0]
    assert all(log.events == [first] for log in logs)
    assert first.encoded == {}


def test_a_view_is_gone_with_its_last_subscriber() -> None:
    source, one, other = TableViews(TABLE), Log(), Log()
    view = source.subscribe(one, TRUE)
    source.subscribe(other, TRUE)
    source.unsubscribe(one, view)
    source.unsubscribe(one, view)
    assert (source.views, source.view_subscribers) == (1, 1)
    source.apply(change(None, {"i": 1}))
    source.unsubscribe(other, view)
    source.apply(change({"i": 1}, None))
    assert (source.views, source.view_subscribers) == (0, 0)
    assert (one.told, other.told) == ([], ["INSERT"])
    again = source.subscribe(one, TRUE)
    source.unsubscribe(other, view)
    assert again is not view
    assert source.views == 1


def test_a_client_that_leaves_while_others_are_told_disturbs_nobody() -> None:
    source = TableViews(TABLE)

    class Leaving(Log):
        def put(self, event: ViewEvent) -> None:
            super().put(event)
            source.unsubscribe(self, view)

    logs = [Leaving() for _ in range(3)]
    for log in logs:
        view = source.subscribe(log, TRUE)
    source.apply(change(None, {"i": 1}))
    source.apply(change({"i": 1}, {"i": 2}))
    assert [log.told for log in logs] == [["INSERT"]] * 3
    assert source.views == 0


# Work


def test_a_filter_is_evaluated_once_where_nothing_it_uses_changed() -> None:
    counters = FilterCounters()
    source = TableViews(TABLE, counters)
    source.subscribe(Log(), expression_of({"i": {"_neq": 5}}))
    source.apply(change({"i": 1}, {"i": 1, "s": "a"}))
    assert counters == FilterCounters(filter_evaluations=1, filter_cache_hits=1)
    source.apply(change({"i": 1}, {"i": 2}))
    assert counters == FilterCounters(filter_evaluations=3, filter_cache_hits=1)
    source.apply(change({"i": 2}, {"i": 2}))
    source.apply(change({"i": 2}, None))
    assert counters == FilterCounters(filter_evaluations=4, filter_cache_hits=1)


def test_a_change_costs_the_views_it_touches_not_those_there_are() -> None:
    source, log = TableViews(TABLE), Log()
    for number in range(1_000):
        source.subscribe(log, expression_of({"i": {"_eq": number}}), "t")
        source.subscribe(log, expression_of({"b": {"_gte": number * 10, "_lt": number * 10 + 10}}), "t")
    source.apply(change({"i": 5, "b": 55}, {"i": 6, "b": 56}))
    assert sorted(log.told) == ["DELETE", "INSERT", "UPDATE"]
    assert source.counters.filter_evaluations <= 2 * (3 + 8)
