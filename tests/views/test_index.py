"""The predicate index: candidates are all views that match, each once, and few others, whatever came and went."""

import time
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.budgets import examples
from tests.where.filters import COLUMNS, Filter, Row, naive, rows, where
from tidelock.views.branches import BRANCHES_MAX, PLACES_MAX, Branch, ColumnRange, branches_of
from tidelock.views.index import IntervalIndex, PredicateIndex
from tidelock.where import FALSE, TRUE, Expression, compile_where, parse_where

pytestmark = pytest.mark.check


def parsed(written: Filter) -> Expression:
    return parse_where(written, COLUMNS)


class Views:
    """An index of numbered views, and the same views without one."""

    def __init__(self) -> None:
        self.index: PredicateIndex[int] = PredicateIndex()
        self.written: dict[int, Filter] = {}
        self._number = 0

    def add(self, written: Filter) -> None:
        self._number += 1
        self.written[self._number] = written
        self.index.add(self._number, parsed(written))

    def remove(self, position: int) -> None:
        number = sorted(self.written)[position % len(self.written)]
        del self.written[number]
        self.index.remove(number)

    def check(self, row: Row) -> None:
        candidates = list(self.index.candidates(row))
        assert len(set(candidates)) == len(candidates)
        assert set(candidates) <= set(self.written)
        with_index = {each for each in candidates if compile_where(parsed(self.written[each]))(row)}
        assert with_index == {each for each, written in self.written.items() if naive(written, row) is True}


@given(st.lists(where(), max_size=40), st.lists(rows(), min_size=1, max_size=8))
def test_what_the_index_finds_is_what_all_filters_find(written: list[Filter], some: list[Row]) -> None:
    views = Views()
    for each in written:
        views.add(each)
    for row in some:
        views.check(row)


@settings(max_examples=examples(30))
@given(st.lists(st.one_of(where(), where(), st.integers(0, 99), rows()), max_size=80), rows())
def test_also_after_views_came_and_went(steps: list[Any], last: Row) -> None:
    views = Views()
    for step in steps:
        if isinstance(step, int):
            if views.written:
                views.remove(step)
        elif "x" in step and not isinstance(step["x"], dict):
            views.check(step)
        else:
            views.add(step)
    views.check(last)
    while views.written:
        views.remove(7)
    assert not views.index._shapes
    assert not len(views.index)
    assert not views.index.candidates(last)


# Ranges


def a_range(random: Random) -> ColumnRange:
    low, high = (random.choice([None, 5.5, *range(13)]) for _ in range(2))
    included = [end is not None and random.random() < 0.5 for end in (low, high)]
    return ColumnRange("n", low, included[0], high, included[1])


def lies_in(value: float, range_: ColumnRange) -> bool:
    low, high, nan = range_.low, range_.high, value != value
    above = low is None or nan or value > low or (range_.low_included and value == low)  # type: ignore[operator]
    return above and (
        high is None or (not nan and (value < high or (range_.high_included and value == high)))  # type: ignore[operator]
    )


VALUES = [*range(-1, 14), 5.5, 0.5, float("nan"), float("inf"), float("-inf")]


@settings(max_examples=examples(30))
@given(st.randoms(use_true_random=False), st.sampled_from([0.1, 0.4, 0.6]))
def test_a_value_finds_the_ranges_it_lies_in(random: Random, removed: float) -> None:
    found_by = IntervalIndex[int]()
    owned: dict[int, list[ColumnRange]] = {}
    for number in range(80):
        if owned and random.random() < removed:
            owner = random.choice(sorted(owned))
            del owned[owner]
            found_by.remove(owner)
            found_by.remove(owner)
        else:
            owned[number] = [a_range(random) for _ in range(random.choice([1, 1, 1, 2]))]
            for each in owned[number]:
                found_by.add(number, each)
        assert len(found_by) == len(owned)
        if random.random() < 0.2:
            check_ranges(found_by, owned)
    check_ranges(found_by, owned)


def check_ranges(found_by: IntervalIndex[int], owned: dict[int, list[ColumnRange]]) -> None:
    for value in VALUES:
        found: list[int] = []
        found_by.collect(value, found)
        assert set(found) <= set(owned)
        wanted = {owner for owner, each in owned.items() if any(lies_in(value, range_) for range_ in each)}
        assert wanted <= set(found) <= wanted | set(found_by._waiting)
    found = []
    found_by.collect(None, found)
    assert found == []


def test_an_owner_may_come_back_with_another_range() -> None:
    found_by = IntervalIndex[str]()
    for number in range(20):
        found_by.add(f"n{number}", ColumnRange("n", number, True, number, True))
    found_by.collect(3, [])
    found_by.remove("n3")
    found_by.add("n3", ColumnRange("n", 7, True, 7, True))
    for number in range(20, 40):
        found_by.add(f"n{number}", ColumnRange("n", number, True, number, True))
    for value, wanted in ((3, []), (7, ["n3", "n7"])):
        found: list[str] = []
        found_by.collect(value, found)
        assert sorted(found) == wanted


# Few candidates


def index_of(filters: list[Filter]) -> PredicateIndex[int]:
    index: PredicateIndex[int] = PredicateIndex()
    for number, written in enumerate(filters):
        index.add(number, parsed(written))
    return index


ROW = {**dict.fromkeys(COLUMNS), "i": 5, "b": 7, "s": "a", "o": True, "x": 5.0}


@pytest.mark.parametrize(
    ("filters", "most"),
    [
        ([{"i": {"_eq": n}} for n in range(1_000)], 1),
        ([{"i": {"_in": [n, n + 1]}} for n in range(1_000)], 2),
        ([{"b": {"_gt": n}} for n in range(1_000)], 7),
        ([{"b": {"_lte": 9 - n}} for n in range(1_000)], 3),
        ([{"b": {"_gte": 10 * n, "_lt": 10 * n + 10}} for n in range(1_000)], 1),
        ([{"x": {"_gt": n, "_lte": n + 1}} for n in range(1_000)], 1),
        # One tenant's filters, one filter of all tenants, and both: whatever is the same for all does not help.
        ([{"s": {"_eq": "a"}, "i": {"_eq": n}} for n in range(1_000)], 1),
        ([{"s": {"_eq": f"{n}"}, "i": {"_eq": 5}} for n in range(1_000)], 0),
        ([{"s": {"_eq": "a"}, "b": {"_gte": 10 * n, "_lt": 10 * n + 10}} for n in range(1_000)], 1),
        ([{"o": {"_in": [True, False]}, "i": {"_in": list(range(n, n + 90))}} for n in range(99)], 6),
        ([{"_or": [{"i": {"_eq": n}}, {"b": {"_eq": n}}], "s": {"_eq": "a"}} for n in range(1_000)], 2),
        ([{"_or": [{"i": {"_eq": n}}, {"b": {"_gt": n + 5}}]} for n in range(1_000)], 3),
        ([{"p": {"_is_null": True}, "i": {"_eq": n}} for n in range(1_000)], 1),
        ([{"i": {"_eq": 5}, "_and": [{"i": {"_eq": n}}]} for n in range(6, 1_000)], 0),
    ],
)  # fmt: skip
def test_a_row_finds_few_of_many(filters: list[Filter], most: int) -> None:
    # Some wait for their place in a tree, and are found until they have it.
    found = index_of(filters).candidates(ROW)
    assert len(found) <= most + 8


def test_filters_of_every_row_and_of_none() -> None:
    index: PredicateIndex[str] = PredicateIndex()
    index.add("all", TRUE)
    index.add("none", FALSE)
    index.add("not", parsed({"i": {"_neq": 1}}))
    index.add("contradiction", parsed({"i": {"_eq": 1, "_is_null": True}}))
    assert list(index.candidates(ROW)) == ["all", "not"]
    for view in ("all", "none", "not", "contradiction"):
        index.remove(view)
    assert not index.candidates(ROW)


# Branches


def test_branches_say_what_must_hold() -> None:
    assert branches_of(parsed({"i": {"_eq": 1}, "b": {"_gt": 2, "_gte": 2, "_lt": 9, "_lte": 8}})) == [
        Branch({"i": frozenset([1])}, ColumnRange("b", 2, False, 8, True))
    ]
    assert branches_of(parsed({"_or": [{"i": {"_in": [1, 2]}}, {"_not": {"b": {"_lt": 5}}}]})) == [
        Branch({}, ColumnRange("b", 5, True)),
        Branch({"i": frozenset([1, 2])}),
    ]
    assert branches_of(parsed({"_or": [{"i": {"_eq": 1}}, {"o": {"_neq": True}}]})) == [Branch()]
    assert branches_of(FALSE) == []


@pytest.mark.parametrize(
    "written",
    [
        {"_and": [{"_or": [{"i": {"_gt": n}}, {"b": {"_lt": n}}]} for n in range(1_000)]},
        {"_or": [{"i": {"_gt": n}, "b": {"_lt": n}} for n in range(1_500)]},
        {"i": {"_in": list(range(5_000))}, "_or": [{"b": {"_eq": n}, "s": {"_eq": "a"}} for n in range(800)]},
        {"i": {"_in": list(range(2_000))}, "b": {"_in": list(range(2_000))}, "p": {"_in": list(range(2_000))}},
        {"_and": [{"i": {"_gt": n}} for n in range(2_900)], "_or": [{"b": {"_gt": n}} for n in range(200)]},
        {"_or": [{"i": {"_in": list(range(n, n + 90))}, "b": {"_in": list(range(90))}} for n in range(50)]},
    ],
)  # fmt: skip
def test_no_filter_takes_much_room_or_time(written: Filter) -> None:
    expression = parsed(written)
    started = time.process_time()
    found = branches_of(expression)
    assert time.process_time() - started < 1
    assert len(found) <= BRANCHES_MAX
    assert sum(branch.places for branch in found) <= PLACES_MAX


def test_views_that_come_and_go_one_by_one_cost_little_each() -> None:
    index: PredicateIndex[int] = PredicateIndex()
    random = Random(1)
    order = list(range(5_000))
    random.shuffle(order)
    started = time.process_time()
    for number in order:
        index.add(number, parsed({"b": {"_gte": number, "_lt": number + 1}}))
        index.candidates(ROW)
    for number in sorted(order):
        index.remove(number)
        index.candidates(ROW)
    assert time.process_time() - started < 10
