"""Filters as people build them are what the API understands, and go back into the form."""

import json
from typing import Any

import pytest
from graphql import parse
from hypothesis import given
from hypothesis import strategies as st

from tidelock.columns import parse_column_type
from tidelock.console.filters import Built, FormCondition, Unfilled, Unfit, built_of, literal, read_where, subscription
from tidelock.where import parse_where

Json = dict[str, Any]

TYPES = {"id": "bigint", "price": "numeric", "lot": "Int", "side": "String", "open": "Boolean", "at": "timestamptz"}
DECLARED = ("bigint", "decimal(18,4)", "int", "string", "boolean", "timestamp")
COLUMNS = {name: parse_column_type(text) for name, text in zip(TYPES, DECLARED, strict=True)}

BUILT = [
    (Built([]), {}),
    (Built([FormCondition("lot", "_gte", "100")]), {"lot": {"_gte": 100}}),
    (Built([FormCondition("lot", "_gt", "1"), FormCondition("lot", "_lt", "9")]), {"lot": {"_gt": 1, "_lt": 9}}),
    (
        Built([FormCondition("lot", "_neq", "1"), FormCondition("lot", "_neq", "9")]),
        {"_and": [{"lot": {"_neq": 1}}, {"lot": {"_neq": 9}}]},
    ),
    (
        Built([FormCondition("side", "_eq", "buy"), FormCondition("open", "_eq", "true")], any=True),
        {"_or": [{"side": {"_eq": "buy"}}, {"open": {"_eq": True}}]},
    ),
    (Built([FormCondition("side", "_in", "buy, sell")]), {"side": {"_in": ["buy", "sell"]}}),
    (Built([FormCondition("price", "_lte", "10.50")]), {"price": {"_lte": "10.50"}}),
    (Built([FormCondition("id", "_eq", "9223372036854775807")]), {"id": {"_eq": "9223372036854775807"}}),
    (Built([FormCondition("at", "_is_null", "no")]), {"at": {"_is_null": False}}),
    (Built([FormCondition("side", "_eq", "")]), {"side": {"_eq": ""}}),
]


@pytest.mark.parametrize(("built", "where"), BUILT)
def test_a_form_is_a_filter_and_the_filter_is_the_form_again(built: Built, where: dict[str, object]) -> None:
    assert built.where(TYPES) == where
    assert parse_where(json.dumps(where), COLUMNS) is not None
    again = built_of(where)
    assert again is not None
    assert again.where(TYPES) == where


@pytest.mark.parametrize(
    "where",
    [
        {"_not": {"lot": {"_eq": 1}}},
        {"_or": [{"lot": {"_gt": 1, "_lt": 2}}]},
        {"_or": [{"lot": {}}, {"lot": {"_gt": 1, "_lt": 2}}]},
        {"_or": []},
        {"_and": [{"_or": []}]},
        {"lot": 5},
        {"side": {"_in": ["a,b"]}},
        {"side": {"_in": [" c"]}},
        {"side": {"_in": [""]}},
        {"side": {"_in": "a"}},
        {"side": {"_eq": None}},
        {"side": {"_is_null": None}},
    ],
)
def test_what_a_form_cannot_show_stays_json(where: dict[str, object]) -> None:
    assert built_of(where) is None


def _comparisons() -> st.SearchStrategy[Json]:
    awkward = st.text("a, \u00a0", max_size=4)
    operand = {
        "side": awkward,
        "lot": st.integers(-9, 9),
        "price": st.decimals(-9, 9, places=2).map(str),
        "open": st.booleans(),
    }
    one = {name: st.fixed_dictionaries({}, optional={"_eq": each, "_neq": each, "_in": st.lists(each, max_size=3),
           "_is_null": st.booleans()}) for name, each in operand.items()}  # fmt: skip
    return st.fixed_dictionaries({}, optional=one)


def _meaning(where: Json) -> set[frozenset[str]]:
    """Comparisons of which all are true in one of the sets."""
    alternatives = [[part] for part in where["_or"]] if "_or" in where else [where.get("_and", [where])]
    return {
        frozenset(
            f"{column} {operator} {operand!r}"
            for part in parts
            for column, comparison in part.items()
            for operator, operand in comparison.items()
        )
        for parts in alternatives
    }


@given(_comparisons() | st.fixed_dictionaries({"_or": st.lists(_comparisons(), max_size=3)})
       | st.fixed_dictionaries({"_and": st.lists(_comparisons(), max_size=3)}))  # fmt: skip
def test_a_form_never_changes_a_filter(where: Json) -> None:
    built = built_of(where)
    assert built is None or _meaning(built.where(TYPES)) == _meaning(where)


def test_what_is_not_filled_in_is_distinguished_from_what_is_wrong() -> None:
    with pytest.raises(Unfilled, match="lot needs a value"):
        Built([FormCondition("lot")]).where(TYPES)
    for column, value in (("lot", "many"), ("price", "1e"), ("open", "perhaps")):
        with pytest.raises(Unfit, match=column) as refused:
            Built([FormCondition(column, "_eq", value)]).where(TYPES)
        assert not isinstance(refused.value, Unfilled)
    for text in ("{", "[]", "7"):
        with pytest.raises(Unfit):
            read_where(text)


def test_the_text_of_a_subscription_is_graphql_whatever_is_compared() -> None:
    where = {"side": {"_in": ['a"b', "c\\d", "é\n"]}, "_not": {"lot": {"_eq": 1}}}
    text = subscription("trades", list(TYPES), where, after="1794780600123456000")
    parse(text)
    assert 'after: "1794780600123456000"' in text
    assert parse(f"{{ a(b: {literal(where)}) }}")
    with pytest.raises(Unfit):
        literal({"a b": 1})
