"""What cannot be executed is refused with what is wrong and where; nothing else can come of it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.budgets import examples
from tests.graphql.answering import read, refused, rows, where
from tidelock.errors import InvalidJson, RequestError
from tidelock.graphql.requests import RequestRefused, read_request
from tidelock.where import TRUE

Json = dict[str, Any]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "Syntax Error"),
        ("{", "Syntax Error"),
        ("kinds", "Syntax Error"),
        ("{ kinds { id }", "Syntax Error"),
        ("{ kinds(where: {s: {_eq: \"\\uD800\"}}) { id } }", "Syntax Error"),
        ("{a" * 10_000, "nested too deeply"),
        ("{ kinds(where: " + "{_or:" * 10_000 + "{}" + "}" * 10_000 + ") { id } }", "nested too deeply"),
        ("{ kinds(where: {b: {_in: " + "[" * 10_000 + "]" * 10_000 + "}}) { id } }", "nested too deeply"),
        ("{ kinds(where: {b: {_in: [" + "1 " * 20_000 + "]}}) { id } }", "token"),
    ],
)  # fmt: skip
def test_what_is_not_a_document_is_reported(query: str, message: str) -> None:
    (error,) = refused(query)
    assert error["extensions"] == {"code": "parse_failed"}
    assert message in error["message"]


@pytest.mark.parametrize(
    "query",
    [
        "{ nothing { id } }",
        "{ kinds { nothing } }",
        "{ kinds { ts_timestamp } }",
        "{ kinds { source_timestamp } }",
        "{ kinds }",
        "{ kinds { id { id } } }",
        "{ kinds(nothing: 1) { id } }",
        "{ kinds(limit: \"1\") { id } }",
        "{ kinds(limit: 1.5) { id } }",
        "{ kinds(limit: 99999999999) { id } }",
        "{ kinds(order_by: {id: up}) { id } }",
        "{ kinds(order_by: {j: asc}) { id } }",
        "{ kinds(order_by: {nothing: asc}) { id } }",
        "{ kinds_by_pk { id } }",
        "{ kinds_by_pk(id: null) { id } }",
        "{ watermarks { window } }",
        "{ kinds { ...Missing } }",
        "{ kinds { id @nothing } }",
        "{ kinds { a: id a: s } }",
        "fragment F on kinds { id }",
        "{ kinds { ...F } } fragment F on kinds { ...F }",
        "{ kinds { ...on pairs { s } } }",
        "query($w: nothing) { kinds(where: $w) { id } }",
        "query($w: kinds_bool_exp) { pairs(where: $w) { s } }",
        "query($unused: Int) { kinds { id } }",
        "{ kinds(where: $w) { id } }",
        "mutation { create_trigger { name } }",
        "subscription { quiet { operation } }",
        "subscription { kinds { id } }",
        "subscription { kinds { data } }",
        "subscription { kinds { operation } pairs { operation } }",
        "subscription { __typename }",
        "subscription($s: Boolean!) { kinds @skip(if: $s) { operation } }",
        "subscription { kinds(limit: 5) { operation } }",
        "{ kinds(after: \"5\") { id } }",
        "query A { __typename } query A { __typename }",
        "type Query { a: Int }",
    ],
)  # fmt: skip
def test_what_the_schema_does_not_have_is_reported_with_its_position(query: str) -> None:
    for error in refused(query):
        assert error["extensions"] == {"code": "validation_failed"}
        assert error["locations"]


@pytest.mark.parametrize(
    ("filter_", "code"),
    [
        ("{ts_timestamp: {_gt: \"1\"}}", "validation_failed"),
        ("{source_timestamp: {_gt: 1}}", "validation_failed"),
        ("{nothing: {_eq: 1}}", "validation_failed"),
        ("{b: {_like: 1}}", "validation_failed"),
        ("{j: {_eq: \"{}\"}}", "validation_failed"),
        ("{i: {_eq: \"1\"}}", "validation_failed"),
        ("{i: {_eq: 2147483648}}", "validation_failed"),
        ("{s: {_eq: 1}}", "validation_failed"),
        ("{o: {_eq: 1}}", "validation_failed"),
        ("{d: {_eq: \"1\"}}", "validation_failed"),
        ("{b: {_eq: [1]}}", "validation_failed"),
        ("{b: {_eq: {a: 1}}}", "validation_failed"),
        ("{b: {_in: [null]}}", "validation_failed"),
        ("{b: {_eq: enumerated}}", "validation_failed"),
        ("{_and: [null]}", "validation_failed"),
        ("5", "validation_failed"),
        ("{b: {_eq: null}}", "invalid_definition"),
        ("{b: {_in: null}}", "invalid_definition"),
        ("{b: {_is_null: null}}", "invalid_definition"),
        ("{b: null}", "invalid_definition"),
        ("{_not: null}", "invalid_definition"),
        ("{_or: null}", "invalid_definition"),
        ("{b: {_eq: \"x\"}}", "invalid_definition"),
        ("{b: {_eq: 1.5}}", "invalid_definition"),
        ("{b: {_eq: 9223372036854775808}}", "invalid_definition"),
        ("{b: {_eq: true}}", "invalid_definition"),
        ("{n: {_eq: 0.00001}}", "invalid_definition"),
        ("{n: {_eq: 100000000000000}}", "invalid_definition"),
        ("{t: {_eq: \"yesterday\"}}", "invalid_definition"),
        ("{y: {_eq: \"2026-02-30\"}}", "invalid_definition"),
        ("{s: {_eq: \"a\\u0000b\"}}", "invalid_definition"),
        ("{_and: [{i: {_eq: 1}}, {_or: [{n: {_in: [1, \"x\"]}}]}]}", "invalid_definition"),
        ("{_not: " * 65 + "{}" + "}" * 65, "invalid_definition"),
    ],
)  # fmt: skip
def test_a_filter_that_means_nothing_is_reported_with_its_position(filter_: str, code: str) -> None:
    for field in ("{ kinds(where: %s) { id } }", "subscription { kinds(where: %s) { operation } }"):
        error = refused(field % filter_)[0]
        assert error["extensions"]["code"] == code
        assert error["locations"]
        assert error["extensions"].get("field", "where").startswith("where")


@pytest.mark.parametrize(
    ("filter_", "field", "said"),
    [
        ({"b": {"_gt": "x"}}, "where.b._gt", ['"b" is bigint', "_gt", '"x"']),
        ({"_and": [{}, {"n": {"_in": ["1", "0.00001"]}}]}, "where._and[1].n._in[1]", ["decimal(18,4)", "_in"]),
        ({"_or": [{"_not": {"t": {"_lt": "soon"}}}]}, "where._or[0]._not.t._lt", ["timestamp", "_lt", "RFC 3339"]),
        ({"y": {"_eq": None}}, "where.y._eq", ["a comparison with null is never true", '"y"', "_is_null"]),
    ],
)
def test_errors_of_filters_name_column_operator_and_position(filter_: Json, field: str, said: list[str]) -> None:
    (error,) = refused("query($w: kinds_bool_exp) { kinds(where: $w) { id } }", {"w": filter_})
    assert error["extensions"] == {"code": "invalid_definition", "field": field}
    assert error["message"].startswith(field)
    assert all(text in error["message"] for text in said), error["message"]


@pytest.mark.parametrize(
    "filter_",
    [
        {"ts_timestamp": {"_gt": "1"}}, {"b": {"_like": 1}}, {"i": {"_eq": "1"}}, {"s": {"_eq": 5}}, {"b": 5}, [], 5,
        "x", {"b": {"_eq": [1]}}, {"b": {"_eq": {}}}, {"b": {"_in": [None]}}, {"_and": [5]},
    ],
)  # fmt: skip
def test_variables_of_another_type_are_reported_with_their_position(filter_: Any) -> None:
    for error in refused("query($w: kinds_bool_exp) { kinds(where: $w) { id } }", {"w": filter_}):
        assert error["extensions"] == {"code": "invalid_variables"}
        assert "$w" in error["message"]
        assert error["locations"]


@pytest.mark.parametrize(
    "query",
    [
        "query($x: Boolean = true) { kinds @include(if: $x) { id } }",
        "query($x: Boolean = true) { kinds { id @skip(if: $x) s } }",
        "query($x: Boolean = true) { kinds { ...F @skip(if: $x) id } } fragment F on kinds { s }",
        "subscription($x: Boolean = true) { kinds { operation data { id @include(if: $x) } } }",
        "query($x: bigint = 1) { kinds_by_pk(id: $x) { id } }",
    ],
)
def test_a_default_does_not_make_null_a_value(query: str) -> None:
    assert read(query).fields
    (error,) = refused(query, {"x": None})
    assert error["extensions"] == {"code": "invalid_variables"}
    assert "$x" in error["message"]


def test_filters_of_any_depth_are_refused_in_variables_too() -> None:
    query = "query($w: kinds_bool_exp) { kinds(where: $w) { id } }"
    for depth in (65, 150, 10_000, 100_000):
        deep: Json = {}
        for _ in range(depth):
            deep = {"_not": deep}
        (error,) = refused(query, {"w": deep})
        assert "nested too deeply" in error["message"]
        assert error["extensions"]["code"] in ("invalid_definition", "invalid_variables")


def test_the_largest_filters_are_taken_and_no_larger_ones() -> None:
    query = "query($b: [bigint!]) { kinds(where: {b: {_in: $b}}) { id } }"
    assert len(rows(query, {"b": list(range(9_990))}).where.text) > 40_000
    (error,) = refused(query, {"b": list(range(10_001))})
    assert error["extensions"]["code"] == "invalid_definition"
    assert "too large" in error["message"]


def test_a_variable_that_is_not_there_leaves_its_member_out() -> None:
    query = "query($b: bigint, $o: Boolean) { kinds(where: {_and: [{b: {_eq: $b}}, {o: {_eq: $o}}]}) { id } }"
    assert rows(query, {}).where == TRUE
    assert rows(query, {"b": 1}).where.text == '{"b":{"_eq":1}}'
    assert rows(query, {"b": 1, "o": True}).where == rows(where("{b: {_eq: 1}, o: {_eq: true}}")).where
    assert rows("query($b: bigint = 5) { kinds(where: {b: {_eq: $b}}) { id } }").where.text == '{"b":{"_eq":5}}'
    assert rows("query($b: [bigint!]) { kinds(where: {b: {_in: $b}}) { id } }").where == TRUE
    assert rows("query($w: kinds_bool_exp) { kinds(where: {_not: $w, id: {_gt: 1}}) { id } }").where.text == (
        '{"id":{"_gt":1}}'
    )
    assert rows("query($d: order_by) { kinds(order_by: [{id: $d}, {s: asc}]) { id } }").order[0].column == "s"


@pytest.mark.parametrize(
    ("query", "variables"),
    [
        # Null is a value, and one that no condition has.
        ("query($b: bigint) { kinds(where: {b: {_eq: $b}}) { id } }", {"b": None}),
        ("query($b: [bigint!]) { kinds(where: {b: {_in: $b}}) { id } }", {"b": None}),
    ],
)
def test_a_variable_that_is_null_is_not_left_out(query: str, variables: Json) -> None:
    (error,) = refused(query, variables)
    assert error["extensions"]["code"] == "invalid_definition"


def test_clients_that_send_a_hash_are_asked_to_send_the_document() -> None:
    hashed = b'"extensions": {"persistedQuery": {"version": 1, "sha256Hash": "ecf4"}}'
    with pytest.raises(RequestRefused) as raised:
        read_request(b'{"operationName": "All", "variables": {}, %b}' % hashed)
    (error,) = raised.value.errors
    assert error["message"] == "PersistedQueryNotSupported"
    assert error["extensions"] == {"code": "PERSISTED_QUERY_NOT_SUPPORTED"}
    # With the document it need not be remembered.
    assert read_request(b'{"query": "{ __typename }", %b}' % hashed).query == "{ __typename }"


@pytest.mark.parametrize(
    ("query", "code", "field"),
    [
        ("{ kinds(limit: 10001) { id } }", "limit_exceeded", "limit"),
        ("{ kinds(limit: -1) { id } }", "invalid_argument", "limit"),
        ("{ kinds(offset: -1) { id } }", "invalid_argument", "offset"),
        ('subscription { kinds(after: "") { operation } }', "invalid_argument", "after"),
        ('subscription { kinds(after: "-1") { operation } }', "invalid_argument", "after"),
        ('subscription { kinds(after: "1.5") { operation } }', "invalid_argument", "after"),
        ('subscription { kinds(after: "9223372036854775808") { operation } }', "invalid_argument", "after"),
        ('subscription { kinds(after: "٣") { operation } }', "invalid_argument", "after"),
        ('{ kinds_by_pk(id: "x") { id } }', "invalid_argument", "id"),
        ("{ kinds_by_pk(id: 1.5) { id } }", "invalid_argument", "id"),
        ('{ pairs_by_pk(s: "a\\u0000", i: 1) { s } }', "invalid_argument", "s"),
        ('{ kinds_by_pk(id: 1, tenant_id: "\\u0000") { id } }', "invalid_argument", "tenant_id"),
    ],
)
def test_arguments_have_their_limits(query: str, code: str, field: str) -> None:
    (error,) = refused(query)
    assert error["extensions"] == {"code": code, "field": field}
    assert error["message"].startswith(field)
    assert error["locations"]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"nonsense", b'{"query": "\xff"}', b'{"query": "\\ud800"}',
        b'{"query": "a", "variables": {"a": NaN}}',
        b'{"query": "a", "variables": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
        b'{"query": "a", "variables": {"a": ' + b'{"_not":' * 10_000 + b"{}" + b"}" * 10_001 + b"}",
    ],
)  # fmt: skip
def test_a_body_that_is_not_json_is_reported(body: bytes) -> None:
    with pytest.raises(InvalidJson):
        read_request(body)


@pytest.mark.parametrize(
    "body",
    [
        b"null", b"5", b"[]", b'[{"query": "{ __typename }"}]', b"{}", b'{"query": null}', b'{"query": 5}',
        b'{"query": "a", "variables": []}', b'{"query": "a", "variables": "x"}', b'{"query": "a", "operationName": 5}',
        b'{"query": "a", "variables": {"a": 1e9999999999999999999}}',
    ],
)  # fmt: skip
def test_a_body_that_is_not_a_request_is_reported(body: bytes) -> None:
    with pytest.raises(RequestError) as raised:
        read_request(body)
    assert raised.value.http_status == 400


_WORDS = [
    "{", "}", "(", ")", "[", "]", ":", "$", "@", "...", "!", "kinds", "pairs", "id", "s", "where", "_eq", "_and",
    "query", "subscription", "fragment F on kinds", "...F", '"x"', "1", "1.5", "null", "true", "@skip(if: true)",
    "data", "operation", "__schema", "__typename", "limit", "order_by", "asc", "$w", "a:", "#", '"""', "\\",
    "\ufeff", "é",
]  # fmt: skip
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["b", "n", "s", "_and", "_or", "_not", "_eq", "_in", "x"]), inner, max_size=3)
    ),
    max_leaves=10,
)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(_WORDS), max_size=25), st.dictionaries(st.sampled_from("wb"), _VALUES, max_size=2))
def test_any_words_are_an_operation_or_refused(words: list[str], variables: Json) -> None:
    with suppress(RequestRefused):
        assert read(" ".join(words), variables).fields


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(_VALUES, _VALUES)
def test_any_variables_are_taken_or_refused(filter_: Any, order: Any) -> None:
    query = "query($w: kinds_bool_exp, $o: [kinds_order_by!]) { kinds(where: $w, order_by: $o) { id } }"
    try:
        assert read(query, {"w": filter_, "o": order}).fields
    except RequestRefused as refusal:
        codes = {error["extensions"]["code"] for error in refusal.errors}
        assert codes <= {"invalid_definition", "invalid_variables"}
