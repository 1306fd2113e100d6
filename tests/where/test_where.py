"""Filters: what they mean, that one meaning has one form, and what is said about those that mean nothing."""

import json
import time
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.budgets import examples
from tests.where.filters import COLUMNS, Filter, Row, naive, rewritten, rows, where
from tidelock.columns import ColumnType
from tidelock.where import (
    DEPTH_MAX,
    FALSE,
    SIZE_MAX,
    SPARK,
    TEXT_LENGTH_MAX,
    TRUE,
    Bound,
    Either,
    InvalidFilter,
    IsNull,
    OneOf,
    compile_where,
    evaluate,
    parse_where,
    where_sql,
)

pytestmark = pytest.mark.check

CASES = json.loads((Path(__file__).parent.parent / "cases" / "where.json").read_text())
CASE_COLUMNS = {"id": "bigint", "qty": "int", "sym": "string", "ok": "boolean"}
INT, STRING = ColumnType("int"), ColumnType("string")


def text(given: Mapping[str, object] | str) -> str:
    return parse_where(given, COLUMNS).text


def problem(given: Any, *, paths: bool = False) -> InvalidFilter:
    with pytest.raises(InvalidFilter) as raised:
        parse_where(given, COLUMNS, paths=paths)
    assert (raised.value.code, raised.value.http_status) == ("invalid_definition", 422)
    return raised.value


# Truth


@pytest.mark.parametrize("case", CASES["cases"], ids=[json.dumps(case["where"]) for case in CASES["cases"]])
def test_a_case_of_the_contract(case: Mapping[str, Any]) -> None:
    columns = {name: ColumnType(type_) for name, type_ in CASE_COLUMNS.items()}
    for spelled in (case["where"], json.dumps(case["where"])):
        expression = parse_where(spelled, columns)
        assert [evaluate(expression, row) for row in CASES["rows"]] == case["truth"]
        assert [compile_where(expression)(row) for row in CASES["rows"]] == [truth is True for truth in case["truth"]]


@given(where(), st.lists(rows(), min_size=1, max_size=8))
def test_the_canonical_form_has_the_truth_of_what_was_written(written: Filter, some: list[Row]) -> None:
    expression = parse_where(written, COLUMNS)
    assert [evaluate(expression, row) for row in some] == [naive(written, row) for row in some]


@settings(max_examples=examples(30))
@given(st.lists(where(), min_size=2, max_size=20), st.lists(rows(), min_size=1, max_size=8))
def test_filters_of_one_form_are_true_of_the_same_rows(written: list[Filter], some: list[Row]) -> None:
    truths: dict[str, list[bool | None]] = {}
    for filter_ in written:
        found = [naive(filter_, row) for row in some]
        assert truths.setdefault(text(filter_), found) == found


def test_nan_is_above_every_number() -> None:
    row = {"x": float("nan")}
    found = [
        evaluate(parse_where({"x": {op: 1}}, COLUMNS), row) for op in ("_gt", "_gte", "_lt", "_lte", "_eq", "_neq")
    ]
    assert found == [True, True, False, False, False, True]


def test_texts_compare_by_code_point() -> None:
    assert evaluate(parse_where({"s": {"_lt": "a"}}, COLUMNS), {"s": "B"}) is True
    assert evaluate(parse_where({"s": {"_gt": "\uffff"}}, COLUMNS), {"s": "\U00010000"}) is True


# One meaning, one form


@given(where(), st.randoms(use_true_random=False))
def test_a_filter_written_in_another_way_is_the_same(written: Filter, random: Random) -> None:
    assert parse_where(rewritten(written, random), COLUMNS) == parse_where(written, COLUMNS)


@given(where())
def test_the_canonical_text_is_a_filter_that_means_itself(written: Filter) -> None:
    expression = parse_where(written, COLUMNS)
    again = parse_where(expression.text, COLUMNS)
    assert again == expression
    assert hash(again) == hash(expression)
    assert again.text == expression.text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"i":{"_gt":1},"s":{"_eq":"a"}}', '{"s":{"_in":["a","a"]},"_and":[{"_and":[{"i":{"_gt":1.0}}]}]}'),
        ('{"p":{"_eq":1.5}}', '{"p":{"_eq":"1.50"}}'),
        ('{"p":{"_eq":150}}', '{"p":{"_eq":1.5e2}}'),
        ('{"x":{"_eq":0.1}}', '{"x":{"_eq":1e-1}}'),
        ('{"x":{"_eq":0}}', '{"x":{"_eq":-0.0}}'),
        ('{"t":{"_eq":"2026-01-31T00:00:00Z"}}', '{"t":{"_eq":"2026-01-31T01:00:00.000+01:00"}}'),
        ('{"_not":{"i":{"_gt":1}}}', '{"i":{"_lte":1}}'),
        ('{"_not":{"i":{"_nin":[1,2]}}}', '{"_or":[{"i":{"_eq":2}},{"i":{"_eq":1}}]}'),
        ('{"i":{"_neq":1},"_and":[{"i":{"_neq":2}}]}', '{"i":{"_nin":[2,1]}}'),
        ('{"_not":{"_or":[{"i":{"_gt":1}},{"o":{"_eq":true}}]}}', '{"i":{"_lte":1},"o":{"_neq":true}}'),
        ('{"i":{"_is_null":false}}', '{"_not":{"i":{"_is_null":true}}}'),
        ('{"_or":[{},{"i":{"_gt":1}}]}', "{}"),
        ('{"i":{"_in":[]},"s":{"_eq":"a"}}', '{"_or":[]}'),
        ('{"i":{},"_and":[]}', '{"i":{"_nin":[]}}'),
    ],
)
def test_two_ways_to_say_one_thing(one: str, other: str) -> None:
    assert text(one) == text(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"_or":[{"i":{"_eq":1}},{"i":{"_neq":1}}]}', "{}"),  # unknown where i is null
        ('{"_and":[{"i":{"_eq":1}},{"i":{"_eq":2}}]}', '{"_or":[]}'),
        ('{"i":{"_in":[]}}', '{"i":{"_nin":[]}}'),
        ('{"s":{"_eq":"1"}}', '{"s":{"_eq":"1.0"}}'),
        ('{"s":{"_eq":"é"}}', '{"s":{"_eq":"e\u0301"}}'),
        ('{"_and":[{"i":{"_eq":1}}]}', '{"_not":{"_and":[{"i":{"_eq":1}}]}}'),
    ],
)
def test_two_things_are_not_one(one: str, other: str) -> None:
    assert text(one) != text(other)


def test_the_tree_is_plain() -> None:
    expression = parse_where({"_or": [{"i": {"_lt": 5}}, {"s": {"_neq": "a"}}, {"i": {"_is_null": True}}]}, COLUMNS)
    assert expression == Either(
        (IsNull("i", INT, False), Bound("i", INT, "<", 5), OneOf("s", STRING, ("a",), negated=True))
    )
    assert expression.used_columns == {"i", "s"}
    assert parse_where({}, COLUMNS) == TRUE
    assert parse_where({"_not": {}}, COLUMNS) == FALSE
    assert TRUE.used_columns == FALSE.used_columns == frozenset()


def test_operands_are_exact_values_of_the_column() -> None:
    def operand(given: str) -> Any:
        expression = parse_where(given, COLUMNS)
        assert isinstance(expression, OneOf)
        return expression.operands[0]

    assert operand('{"q":{"_eq":0.1}}') == Decimal("0.1")
    assert operand('{"b":{"_eq":"9223372036854775807"}}') == 2**63 - 1
    assert operand('{"x":{"_eq":0.1}}') == 0.1
    assert operand('{"y":{"_eq":"2026-01-31"}}') == date(2026, 1, 31)
    assert operand('{"t":{"_eq":"1970-01-01T00:00:00.000000001Z"}}') == 1


# Paths


def test_a_path_is_compared_as_what_the_operand_is() -> None:
    def types(given: Filter) -> list[str]:
        expression = parse_where(given, {"s": STRING}, paths=True)
        assert isinstance(expression, OneOf | Bound | IsNull)
        assert parse_where(expression.text, {}, paths=True) == expression
        return [expression.column, str(expression.type)]

    assert types({"data.a.b": {"_eq": "5"}}) == ["data.a.b", "string"]
    assert types({"data.a": {"_gt": 5}}) == ["data.a", "decimal(38,9)"]
    assert types({"data.a": {"_in": [True, False]}}) == ["data.a", "boolean"]
    assert types({"data.a": {"_is_null": True}}) == ["data.a", "json"]


def test_a_path_reaches_sql_with_the_type_it_is_compared_as() -> None:
    expression = parse_where({"data.a": {"_gt": 5, "_neq": "x"}}, {}, paths=True)
    sql = where_sql(expression, SPARK, lambda name, type_: f"try_cast({name} AS {type_})")
    assert sql == (
        "((try_cast(data.a AS decimal(38,9))) > CAST(5 AS DECIMAL(38,9)) AND (try_cast(data.a AS string)) <> 'x')"
    )


@pytest.mark.parametrize(
    ("given", "place", "said"),
    [
        ({"data.a": {"_in": [1, "x"]}}, "data.a._in[1]", "decimal(38,9)"),
        ({"data.a": {"_eq": None}}, "data.a._eq", "_is_null"),
        ({"data.a": {"_eq": 0.1}}, "data.a._eq", "exact number"),
        ({"data.a": {"_eq": []}}, "data.a._eq", "a string"),
        ({"data.": {}}, "data.", "or a path such as data.a.b"),
        ({"data": {}}, "data", "or a path such as data.a.b"),
    ],
)
def test_what_is_wrong_about_a_path_is_reported(given: Filter, place: str, said: str) -> None:
    found = problem(given, paths=True)
    assert found.field == place
    assert said in found.message


def test_there_are_no_paths_where_columns_are_declared() -> None:
    assert problem({"data.a": {"_eq": 1}}).field == "data.a"


# Filters that mean nothing


@pytest.mark.parametrize(
    ("given", "place", "said"),
    [
        ('{"_and":[{},{"p":{"_gt":null}}]}', "_and[1].p._gt", ["null", '"p"', "_is_null"]),
        ('{"_or":[{"_not":{"i":{"_eq":1.5}}}]}', "_or[0]._not.i._eq", ['"i" is int', "_eq", "whole number", "1.5"]),
        ('{"nope":{"_eq":1}}', "nope", ['"nope"', "available: s, i, b,", "_and, _or, _not"]),
        ('{"i":{"_like":"a"}}', "i._like", ['"_like"', '"i", which is int', "_eq _neq _gt _lt _gte _lte _in _nin"]),
        ('{"j":{"_eq":1}}', "j._eq", ["json", "allowed: _is_null"]),
        ('{"i":{"_in":[1,"2"]}}', "i._in[1]", ["int", '"2"']),
        ('{"i":{"_in":[null]}}', "i._in[0]", ["null"]),
        ('{"i":{"_in":1}}', "i._in", ["a list of values"]),
        ('{"i":{"_is_null":1}}', "i._is_null", ["true or false"]),
        ('{"i":{"_is_null":null}}', "i._is_null", ["true or false"]),
        ('{"i":5}', "i", ["object of operators"]),
        ('{"i":null}', "i", ["null is not allowed"]),
        ('{"_and":{}}', "_and", ["an object is not allowed", "a list"]),
        ('{"_or":[1]}', "_or[0]", ["an object such as"]),
        ('{"_not":[]}', "_not", ["a list is not allowed"]),
        ("[]", None, ["the filter", "a list is not allowed"]),
        ("{", None, ["the filter", "not JSON"]),
        ('{"i":{"_eq":NaN}}', None, ["NaN"]),
        ('{"i":{"_eq":1},"i":{"_eq":2}}', None, ["twice"]),
        ('{"b":{"_eq":1e99999999999999999999}}', None, ["size"]),
        ('{"i":{"_eq":2147483648}}', "i._eq", ["2147483647"]),
        ('{"b":{"_eq":9223372036854775808}}', "b._eq", ["9223372036854775807"]),
        ('{"b":{"_eq":true}}', "b._eq", ["bigint", "true"]),
        ('{"b":{"_eq":"1_0"}}', "b._eq", ["bigint"]),
        ('{"p":{"_eq":1.23456}}', "p._eq", ["14 digits before and 4 after the point"]),
        ('{"p":{"_eq":"NaN"}}', "p._eq", ["decimal(18,4)"]),
        ('{"p":{"_eq":1e14}}', "p._eq", ["decimal(18,4)"]),
        ('{"x":{"_eq":1e309}}', "x._eq", ["double"]),
        ('{"x":{"_eq":"1"}}', "x._eq", ["double"]),
        ('{"o":{"_eq":"true"}}', "o._eq", ["boolean", "true or false"]),
        ('{"s":{"_eq":1}}', "s._eq", ["string", "a string without"]),
        ('{"s":{"_eq":"a\\u0000"}}', "s._eq", ["NUL"]),
        ('{"s":{"_eq":"\\ud800"}}', "s._eq", ["surrogate"]),
        ('{"t":{"_eq":1769904000000}}', "t._eq", ["RFC 3339"]),
        ('{"t":{"_eq":"2026-01-31"}}', "t._eq", ["RFC 3339"]),
        ('{"t":{"_eq":"1500-01-01T00:00:00Z"}}', "t._eq", ["1678"]),
        ('{"y":{"_eq":"2026-02-30"}}', "y._eq", ["a day"]),
        ('{"y":{"_eq":"20260131"}}', "y._eq", ["a day"]),
    ],
)
def test_what_is_wrong_is_reported_with_its_position(given: str, place: str | None, said: list[str]) -> None:
    found = problem(given)
    assert found.field == place
    assert found.message.startswith(f"{place}: " if place else "the filter: ")
    for part in said:
        assert part in found.message


@pytest.mark.parametrize(
    "given", [None, 5, [], {1: {}}, {"i": {1: 2}}, {"i": {"_eq": {}}}, {"x": {"_eq": float("nan")}}]
)
def test_what_is_not_a_json_object_is_reported_too(given: Any) -> None:
    problem(given)


def test_a_float_is_not_an_exact_number() -> None:
    assert problem({"p": {"_eq": 1.5}}).field == "p._eq"
    assert parse_where({"x": {"_eq": 1.5}}, COLUMNS) == parse_where({"x": {"_eq": Decimal("1.5")}}, COLUMNS)


# Limits


@pytest.mark.parametrize("level", ['{"_not":', '{"_and":[', '{"_or":[{"_not":', "[", '{"i":'])
@pytest.mark.parametrize("depth", [10_000, 100_000])
def test_a_filter_nested_too_deeply_is_an_error(level: str, depth: int) -> None:
    problem(level * depth)
    problem(level * depth + "{}" + level[::-1].translate(str.maketrans("{[", "}]", '"_andort:')) * depth)


@pytest.mark.parametrize("name", ["_not", "_and", "_or"])
def test_an_object_nested_too_deeply_is_an_error_with_a_place(name: str) -> None:
    def nested(depth: int) -> Filter:
        found: Filter = {"i": {"_eq": 1}}
        for _ in range(depth):
            found = {name: found if name == "_not" else [found]}
        return found

    assert evaluate(parse_where(nested(DEPTH_MAX), COLUMNS), {"i": 1}) is True
    for depth in (DEPTH_MAX + 1, 10_000):
        found = problem(nested(depth))
        assert f"at most {DEPTH_MAX} levels" in found.message
        assert (found.field or "").startswith(name)


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: (inner,), lambda inner: {"_eq": inner}])
@pytest.mark.parametrize("depth", [500, 10_000])
def test_an_operand_nested_too_deeply_is_a_short_error(wrap: Any, depth: int) -> None:
    deep: Any = 1
    for _ in range(depth):
        deep = wrap(deep)
    for name in ("s", "i", "p", "x", "o", "t", "y"):
        for wrong in ({name: deep}, *({name: {operator: deep}} for operator in ("_eq", "_gt", "_in", "_is_null"))):
            assert len(problem(wrong).message) < 1000
    assert len(problem({"data.a": {"_eq": deep}}, paths=True).message) < 1000


@pytest.mark.parametrize(
    "given",
    [
        {"i": {"_in": list(range(SIZE_MAX))}},
        {"_and": [{}] * SIZE_MAX},
        {"_or": [{"i": {"_eq": 1}}] * SIZE_MAX},
        {"s": {"_in": ["a" * 1000] * (TEXT_LENGTH_MAX // 1000 + 1)}},
        {"s": {"_eq": "a" * (TEXT_LENGTH_MAX + 1)}},
        json.dumps({"s": {"_eq": "a" * TEXT_LENGTH_MAX}}),
        {"b": {"_eq": 10**5000}},
        json.dumps({"b": {"_eq": 0}})[:-2] + "9" * 100_000 + "}}",
        {"x" * 100_000: {}},
    ],
)
def test_a_filter_that_is_too_large_is_a_short_error(given: Any) -> None:
    assert len(problem(given).message) < 1000


def test_the_largest_filters_take_little_time() -> None:
    deep: Filter = {}
    for number in range(DEPTH_MAX - 1):
        deep = {"_and" if number % 2 else "_or": [deep, *({"i": {"_gt": n}} for n in range(40))]}
    wide = {"_or": [{"i": {"_gt": n}, "s": {"_lt": "'" * 50}} for n in range(SIZE_MAX // 6)]}
    started = time.process_time()
    for written in (deep, wide, {"i": {"_in": list(range(SIZE_MAX - 5))}}):
        expression = parse_where(written, COLUMNS)
        where_sql(expression, SPARK)
        evaluate(expression, {"i": -1, "s": "a"})
    assert time.process_time() - started < 3
