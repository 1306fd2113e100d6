"""Compiled filters: the truth of evaluation by walking, and of the model; nothing of a filter is code."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.budgets import examples
from tests.where.filters import COLUMNS, Filter, Row, naive, rows, where
from tidelock.columns import ColumnType
from tidelock.where import DEPTH_MAX, SIZE_MAX, TRUE, compile_where, evaluate, parse_where

pytestmark = pytest.mark.check

NAN, INFINITY = float("nan"), float("inf")


@settings(max_examples=examples(40))
@given(where(), st.lists(rows(), min_size=1, max_size=8))
def test_a_compiled_filter_is_true_where_the_filter_as_written_is(written: Filter, some: list[Row]) -> None:
    expression = parse_where(written, COLUMNS)
    matches = compile_where(expression)
    assert [matches(row) for row in some] == [naive(written, row) is True for row in some]
    assert [matches(row) for row in some] == [evaluate(expression, row) is True for row in some]


def test_it_gives_true_or_false_and_nothing_else() -> None:
    filters: list[dict[str, Any]] = [
        {},
        {"_or": []},
        {"s": {"_neq": "a"}},
        {"s": {"_gt": ""}},
        {"s": {"_in": ["", "b"]}},
        {"s": {}},
    ]
    for written in filters:
        for value in (None, "", "b"):
            assert compile_where(parse_where(written, COLUMNS))({"s": value}) in (True, False)


@pytest.mark.parametrize(
    ("value", "true"),
    [
        (NAN, ["_gt", "_gte", "_neq", "_nin"]),
        (INFINITY, ["_gt", "_gte", "_neq", "_nin"]),
        (-INFINITY, ["_lt", "_lte", "_neq", "_nin"]),
        (-0.0, ["_eq", "_gte", "_lte", "_in"]),
        (None, []),
    ],
)
def test_doubles_that_are_no_ordinary_numbers(value: float | None, true: list[str]) -> None:
    operators = dict.fromkeys(("_eq", "_gt", "_gte", "_lt", "_lte", "_neq"), 0) | {"_in": [0, 1], "_nin": [0, 1]}
    found = [
        name
        for name, operand in operators.items()
        if compile_where(parse_where({"x": {name: operand}}, COLUMNS))({"x": value})
    ]
    assert sorted(found) == sorted(true)


def test_names_and_operands_are_never_code() -> None:
    odd = ["row", "v0", "v1", "value", "'", '"', "\\", "\n", "{}", "]", "is None or True", "é", ""]
    columns = {name: ColumnType("string") for name in odd}
    for name in odd:
        for text in odd:
            row = {**dict.fromkeys(odd), name: text}
            for operator, truth in {"_eq": True, "_neq": False, "_lt": False, "_gte": True}.items():
                matches = compile_where(parse_where({name: {operator: text}}, columns))
                assert matches(row) is truth
                assert matches(dict.fromkeys(odd)) is False


def test_filters_that_differ_in_columns_and_operands_do_not_mix() -> None:
    compiled = {
        (name, low): compile_where(parse_where({name: {"_gte": low, "_lt": low + 2}}, COLUMNS))
        for name in ("i", "b")
        for low in range(5)
    }
    for (name, low), matches in compiled.items():
        for value in range(8):
            row = {"i": 99, "b": 99, name: value}
            assert matches(row) is (low <= value < low + 2)


def deepest() -> Filter:
    found: Filter = {"i": {"_eq": 1}}
    for number in range(DEPTH_MAX):
        found = {"_or": [found, {"s": {"_eq": str(number)}}], "b": {"_neq": number}, "x": {"_gt": number}}
    return found


@pytest.mark.parametrize(
    ("written", "row"),
    [
        (deepest(), {"i": 1, "s": None, "b": -1, "x": NAN}),
        ({"i": {"_in": list(range(SIZE_MAX - 5))}}, {"i": 7}),
        ({"_or": [{"i": {"_gt": 3 * n}} for n in range(SIZE_MAX // 3 - 1)]}, {"i": 1}),
        ({"_and": [{"i": {"_gt": n, "_neq": -n}} for n in range(SIZE_MAX // 5 - 1)]}, {"i": SIZE_MAX}),
        ({"_or": [{"i": {"_gt": n}, "s": {"_lt": "b"}} for n in range(SIZE_MAX // 6)]}, {"i": 1, "s": "a"}),
    ],
)
def test_the_largest_filters_compile(written: Filter, row: dict[str, Any]) -> None:
    expression = parse_where(written, COLUMNS)
    started = time.process_time()
    matches = compile_where(expression)
    assert time.process_time() - started < 2
    assert evaluate(expression, row) is True
    assert matches(row) is True
    assert matches(dict.fromkeys(row)) is False


def test_thousands_of_one_kind_are_compiled_once() -> None:
    first, *others = [compile_where(parse_where({"i": {"_gt": n}, "s": {"_eq": str(n)}}, COLUMNS)) for n in range(100)]
    assert {other.__code__ for other in others} == {first.__code__}
    assert compile_where(TRUE)({}) is True
