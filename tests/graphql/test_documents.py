"""Documents become operations, each parsed once, with exact numbers and in the order they are written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import pytest

from tests.graphql.answering import DOCUMENTS, read, refused, rows, where
from tests.graphql.tables import TABLES
from tidelock.graphql.documents import Documents
from tidelock.graphql.fields import ChangesField, ColumnOrder, OneRowField, RowsField, TypenameField
from tidelock.graphql.requests import Request, RequestRefused, read_request, read_variables
from tidelock.where import TRUE

pytestmark = pytest.mark.check

Json = dict[str, Any]


def test_an_operation_has_its_kind_its_name_and_its_fields_in_order() -> None:
    operation = read("query Q { b: kinds { id } __typename a: pairs(limit: 5, offset: 2) { s x: i } }")
    assert (operation.kind, operation.name) == ("query", "Q")
    first, second, third = operation.fields
    assert first == RowsField("b", TABLES["kinds"], where=TRUE, order=(), limit=1_000, offset=0, shown={"id": "id"})
    assert second == TypenameField("__typename", "Query")
    assert third == RowsField("a", TABLES["pairs"], where=TRUE, order=(), limit=5, offset=2, shown={"s": "s", "x": "i"})


def test_a_subscription_is_one_field_with_filter_and_resume() -> None:
    query = """subscription($w: kinds_bool_exp, $after: String) {
        changed: kinds(where: $w, after: $after) { operation data { id } ts_timestamp }
    }"""
    operation = read(query, {"w": {"n": {"_gt": "1.50"}}, "after": "1769904000000000000"})
    (field,) = operation.fields
    assert isinstance(field, ChangesField)
    assert (operation.kind, field.name, field.table) == ("subscription", "changed", TABLES["kinds"])
    assert (field.where.text, field.after) == ('{"n":{"_gt":1.5}}', 1769904000000000000)
    (field,) = read(query).fields
    assert isinstance(field, ChangesField)
    assert (field.where, field.after) == (TRUE, None)


def test_the_same_filter_is_the_same_however_it_is_given() -> None:
    meant = '{"_and":[{"b":{"_in":[-5,9007199254740993]}},{"n":{"_lt":0.1}}]}'
    sent = {"b": {"_in": [9007199254740993, "-5"]}, "n": {"_lt": "0.1"}}
    assert rows("query($w: kinds_bool_exp) { kinds(where: $w) { id } }", {"w": sent}).where.text == meant
    for written in (
        "{b: {_in: [9007199254740993, -5]}, n: {_lt: 0.1}}",
        '{b: {_in: ["9007199254740993", "-5"]}, n: {_lt: "0.1000"}}',
        '{_and: {b: {_in: ["-5", 9007199254740993]}, n: {_lt: 1e-1}}}',
    ):
        assert rows(where(written)).where.text == meant
    query = "query($b: [bigint!], $n: numeric!) { kinds(where: {b: {_in: $b}, n: {_lt: $n}}) { id } }"
    request = read_request(b'{"query": "", "variables": {"b": [9007199254740993, "-5"], "n": 0.10000000000000000000}}')
    assert rows(query, request.variables).where.text == meant


@pytest.mark.parametrize("number", ["9007199254740993", "-9223372036854775808", "9223372036854775807"])
def test_whole_numbers_that_javascript_would_round_are_exact(number: str) -> None:
    for given_ in (number, f'"{number}"', f"{number}e0", f"{number}.0"):
        assert rows(where(f"{{b: {{_eq: {given_}}}}}")).where.text == f'{{"b":{{"_eq":{number}}}}}'
    for sent in (number, f'"{number}"', f"{number}.0"):
        variables = read_variables(f'{{"b": {sent}}}')
        found = rows("query($b: bigint) { kinds(where: {b: {_eq: $b}}) { id } }", variables)
        assert found.where.text == f'{{"b":{{"_eq":{number}}}}}'


def test_decimals_are_exact() -> None:
    number = "12345678901234.5678"
    for written in (number, f'"{number}"'):
        assert rows(where(f"{{n: {{_eq: {written}}}}}")).where.text == f'{{"n":{{"_eq":{number}}}}}'
    for sent in (number, f'"{number}"', f"{number}00"):
        variables = read_variables(f'{{"n": {sent}}}')
        found = rows("query($n: numeric) { kinds(where: {n: {_eq: $n}}) { id } }", variables)
        assert found.where.text == f'{{"n":{{"_eq":{number}}}}}'


def test_what_comes_as_a_number_keeps_its_digits() -> None:
    variables = read_variables('{"a": 0.10, "b": 1e400, "c": 123456789012345678901234567890, "d": -0.0}')
    assert variables is not None
    assert variables["a"].exact == Decimal("0.10")
    assert variables["a"] == 0.1
    assert variables["b"].exact == Decimal("1e400")
    assert variables["c"] == 123456789012345678901234567890


@pytest.mark.parametrize(
    ("written", "order"),
    [
        ("{i: desc}", [ColumnOrder("i", True, True)]),
        ("{i: asc}", [ColumnOrder("i", False, False)]),
        (
            "[{s: asc_nulls_first}, {i: desc_nulls_last}]",
            [ColumnOrder("s", False, True), ColumnOrder("i", True, False)],
        ),
        ("{n: asc_nulls_last, id: desc_nulls_first}", [ColumnOrder("n", False, False), ColumnOrder("id", True, True)]),
        ("[{i: null, s: asc}, {s: desc}]", [ColumnOrder("s", False, False)]),
        ("{tenant_id: desc}", [ColumnOrder("tenant_id", True, True)]),
        ("[]", []),
        ("null", []),
    ],
)
def test_rows_are_ordered_as_it_is_written(written: str, order: list[ColumnOrder]) -> None:
    assert list(rows(f"{{ kinds(order_by: {written}) {{ id }} }}").order) == order


def test_an_order_from_variables_keeps_the_order_of_its_members() -> None:
    expected = (ColumnOrder("s", False, False), ColumnOrder("i", True, True), ColumnOrder("id", False, False))
    sent: list[Json] = [{"s": "asc", "i": "desc"}, {"id": "asc"}]
    assert rows("query($o: [kinds_order_by!]) { kinds(order_by: $o) { id } }", {"o": sent}).order == expected
    mixed = "query($o: kinds_order_by!, $h: order_by) { kinds(order_by: [$o, {id: $h}]) { id } }"
    assert rows(mixed, {"o": sent[0], "h": "asc"}).order == expected
    default = "query($o: [kinds_order_by!] = [{s: asc, i: desc}, {id: asc}]) { kinds(order_by: $o) { id } }"
    assert rows(default).order == expected
    assert rows("query($o: [kinds_order_by!]) { kinds(order_by: $o) { id } }").order == ()
    assert rows("query($h: order_by) { kinds(order_by: {id: $h}) { id } }").order == ()


def test_a_row_is_named_by_its_key() -> None:
    first, second = read(
        """{ pairs_by_pk(i: 7, s: "é", tenant_id: "acme") { n }
             adjustments_by_pk(metric: "m", ingress_sequence: 5) { amount } }"""
    ).fields
    assert isinstance(first, OneRowField)
    assert isinstance(second, OneRowField)
    assert (first.key, first.tenant_id, first.shown) == ({"s": "é", "i": 7}, "acme", {"n": "n"})
    assert (second.key, second.tenant_id) == ({"metric": "m", "ingress_sequence": 5}, None)


@pytest.mark.parametrize(
    "absent", ["where: null, order_by: null, limit: null, offset: null", "where: {}", "limit: 1000"]
)
def test_arguments_that_are_null_are_not_given(absent: str) -> None:
    assert rows(f"{{ kinds({absent}) {{ id }} }}") == rows("{ kinds { id } }")


def test_a_document_has_a_largest_size() -> None:
    small = Documents(DOCUMENTS.schema, document_bytes_max=1_024)
    for query in ("# " + "x" * 1_023, "# " + "é" * 512):
        with pytest.raises(RequestRefused) as raised:
            small.read(Request("{ __typename } " + query))
        assert raised.value.errors[0]["extensions"] == {"code": "limit_exceeded", "field": "query"}
    assert small.read(Request("{ __typename } " + "#" * 1_000)).fields


def test_the_number_of_fields_side_by_side_is_limited() -> None:
    assert len(read("{" + " ".join(f"a{i}: kinds {{ id }}" for i in range(50)) + "}").fields) == 50
    (error,) = refused("{" + " ".join(f"a{i}: kinds {{ id }}" for i in range(51)) + "}")
    assert error["extensions"] == {"code": "limit_exceeded"}


def test_the_operation_is_the_one_that_is_named() -> None:
    query = "query A { kinds { id } } query B { pairs { s } } subscription C { kinds { operation } }"
    assert read(query, name="B").name == "B"
    assert read(query, name="C").kind == "subscription"
    for name in (None, "D", ""):
        (error,) = refused(query, name=name)
        assert error["extensions"] == {"code": "validation_failed", "field": "operationName"}
    assert refused("{ __typename }", name="A")


def test_a_document_is_parsed_once() -> None:
    documents = Documents(DOCUMENTS.schema, document_bytes_max=65_536)
    query = "{ kinds { id } }"
    first = documents._document(query)
    assert documents._document(query) is first
    for number in range(40):
        documents._document("{ kinds { id } } #" + str(number) * 8_000)
    assert documents._remembered_length <= 262_144
    assert documents._remembered_length == sum(map(len, documents._remembered))
    assert documents._document(query) is not first, "what was long not used makes room"
    long = "{ kinds { id } } #" + "x" * 20_000
    assert documents._document(long) is not documents._document(long), "few documents are so long"


@pytest.mark.parametrize(
    "query",
    [
        "{" + " ".join(f"a{i}: kinds {{ id s i b d n o t y j }}" for i in range(50)) + "}",
        # It fits into a kilobyte, and every field in it is compared with every other.
        "{" + "kinds{i}" * 125 + "}",
    ],
)
async def test_what_takes_long_is_done_elsewhere_and_others_continue(query: str) -> None:
    documents = Documents(DOCUMENTS.schema, document_bytes_max=65_536)
    requests = [Request(query + " " * n, size=len(query) + n) for n in range(4)]
    async with _others_go_on():
        operations = await asyncio.gather(*map(documents.prepare, requests))
    assert all(operation.fields for operation in operations)


async def test_a_known_document_with_a_long_filter_is_read_elsewhere_too() -> None:
    documents = Documents(DOCUMENTS.schema, document_bytes_max=65_536)
    query = "{ kinds(where: {_or: [" + "{i: {_eq: 1}}" * 1_000 + "]}) { id } }"
    await documents.prepare(Request(query, size=len(query)))
    assert query in documents._remembered
    async with _others_go_on():
        await documents.prepare(Request(query, size=len(query)))


@asynccontextmanager
async def _others_go_on() -> AsyncIterator[None]:
    """Something else has many turns meanwhile."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    yield
    counting.cancel()
    assert turns > 10
