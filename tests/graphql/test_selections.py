"""What a selection shows of an event is what GraphQL says it is, made once for all who select the same."""

from __future__ import annotations

import gc
import json
from datetime import date
from decimal import Decimal
from random import Random
from typing import Any

import msgspec
import pytest
from graphql import execute_sync, parse
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.budgets import examples
from tests.graphql.answering import DOCUMENTS, read
from tests.graphql.tables import COLUMNS, TABLES
from tidelock.graphql import selections
from tidelock.graphql.fields import ChangesField
from tidelock.graphql.selections import Selection, json_line, select_rows
from tidelock.views.views import Operation, ViewEvent

pytestmark = pytest.mark.check

Row = dict[str, Any]

ROW: Row = {
    "tenant_id": "acme", "id": 2**60, "s": "é\"'\\\n", "i": -5, "b": 9007199254740993, "d": 1e-7,
    "n": Decimal("-10.5000"), "o": False, "t": 1_769_904_000_500_000_000, "y": date(2026, 1, 31),
    "j": '{"b": 1.50, "a": [1]}',
}  # fmt: skip
NULLS: Row = {"tenant_id": "acme", "id": 1, **{name: None for name in COLUMNS if name != "id"}}


def event(row: Row, operation: Operation = "UPDATE", fields: tuple[str, ...] = ("s", "n")) -> ViewEvent:
    return ViewEvent(
        row["tenant_id"], str(row["id"]), operation, fields, row, source_timestamp=1_769_904_000_000_000_001
    )


def selection(query: str, variables: dict[str, Any] | None = None) -> Selection:
    (field,) = read(query, variables).fields
    assert isinstance(field, ChangesField)
    return field.selection


def shown(query: str, row: Row = ROW, **variables: Any) -> Any:
    return json.loads(selection(query, variables).encode(event(row)))["data"]


def test_every_type_has_its_form() -> None:
    columns = " ".join(ROW)
    made = selection(f"subscription {{ kinds {{ operation data {{ {columns} }} fields ts_timestamp }} }}")
    assert made.encode(event(ROW)).decode() == (
        '{"data":{"kinds":{"operation":"UPDATE","data":{"tenant_id":"acme","id":"1152921504606846976",'
        '"s":"é\\"\'\\\\\\n","i":-5,"b":"9007199254740993","d":1e-7,"n":"-10.5","o":false,'
        '"t":"2026-02-01T00:00:00.5Z","y":"2026-01-31","j":{"b": 1.50, "a": [1]}},"fields":["s","n"],'
        '"ts_timestamp":"1769904000000000001"}}}'
    )
    nulls = ",".join(f'"{name}":null' for name in NULLS if name not in ("tenant_id", "id"))
    assert made.encode(event(NULLS, "INSERT", tuple(COLUMNS))).decode() == (
        f'{{"data":{{"kinds":{{"operation":"INSERT","data":{{"tenant_id":"acme","id":"1",{nulls}}},'
        f'"fields":{json.dumps(list(COLUMNS), separators=(",", ":"))},"ts_timestamp":"1769904000000000001"}}}}}}'
    )


def test_names_are_those_that_were_asked_for() -> None:
    assert shown("subscription { live: kinds { what: operation row: data { key: id __typename } t: __typename } }") == {
        "live": {"what": "UPDATE", "row": {"key": str(2**60), "__typename": "kinds"}, "t": "kinds_update"}
    }


def test_fragments_are_put_in_where_they_are_used() -> None:
    query = """
    subscription { kinds { ...U ... on kinds_update { fields } data { i } ...U } }
    fragment U on kinds_update { operation data { ...R id } }
    fragment R on kinds { b ... { s } }
    """
    found = shown(query)["kinds"]
    assert list(found) == ["operation", "data", "fields"]
    assert list(found["data"]) == ["b", "s", "id", "i"]


def test_the_same_field_twice_is_one() -> None:
    found = shown("subscription { kinds { data { id } operation data { s id } operation } }")["kinds"]
    assert list(found) == ["data", "operation"]
    assert list(found["data"]) == ["id", "s"]


@pytest.mark.parametrize(("yes", "shows"), [(True, ["id", "i"]), (False, ["s"])])
def test_what_is_skipped_is_not_there(yes: bool, shows: list[str]) -> None:
    query = """subscription($yes: Boolean!, $no: Boolean = false) { kinds { operation @include(if: $yes)
        data { id @include(if: $yes) s @skip(if: $yes) ... @include(if: $yes) { i } b @include(if: $no) } } }"""
    found = shown(query, yes=yes)["kinds"]
    assert ("operation" in found) == yes
    assert list(found["data"]) == shows


def test_a_row_of_which_everything_is_skipped_is_empty() -> None:
    assert shown("subscription { kinds { data { id @skip(if: true) } } }") == {"kinds": {"data": {}}}


def test_json_is_on_one_line_whatever_it_was_sent_as() -> None:
    row = {**ROW, "j": '{\r\n  "a": "\\n",\n  "b": []\r}'}
    made = selection("subscription { kinds { data { j } } }").encode(event(row))
    assert b"\n" not in made
    assert b"\r" not in made
    assert json.loads(made)["data"]["kinds"]["data"]["j"] == {"a": "\n", "b": []}


def test_numbers_that_are_none_are_null() -> None:
    for number in (float("nan"), float("inf"), float("-inf")):
        assert shown("subscription { kinds { data { d } } }", {**ROW, "d": number})["kinds"]["data"] == {"d": None}


def test_an_event_is_encoded_once_for_all_who_select_the_same() -> None:
    first = selection("subscription { kinds { operation data { id s } } }")
    second = selection("subscription Q { kinds(where: {i: {_gt: 5}}) { ...F } } fragment F on kinds_update "
                       "{ operation data { id } data { s } }")  # fmt: skip
    other = selection("subscription { kinds { operation data { s id } } }")
    assert second is first
    assert other is not first
    happened = event(ROW)
    encoded = first.encode(happened)
    assert second.encode(happened) is encoded
    other.encode(happened)
    assert happened.encoded.keys() == {first, other}


def test_tables_with_the_same_columns_do_not_share() -> None:
    typed = "subscription { %s { data { __typename s } } }"
    assert selection(typed % "kinds") is not selection(typed % "pairs")


def test_what_nobody_selects_any_more_is_forgotten() -> None:
    query = "subscription { only_here: kinds { operation } }"
    made = selection(query)
    held = len(selections._selections)
    del made
    gc.collect()
    assert len(selections._selections) < held


def test_rows_of_queries_have_the_same_forms() -> None:
    columns = ["id", "s", "n", "t", "j"]
    encode = select_rows(
        TABLES["kinds"], {"a": "id", "__typename": "__typename", "n": "n", "t": "t", "j": "j"}, columns
    )
    assert encode((2**60, "x", "-10.5", 500_000_000, "[\n]")) == (
        b'{"a":"1152921504606846976","__typename":"kinds","n":"-10.5","t":"1970-01-01T00:00:00.5Z","j":[ ]}'
    )
    assert encode((None, None, None, None, None)) == b'{"a":null,"__typename":"kinds","n":null,"t":null,"j":null}'
    assert json_line("[1]") == msgspec.Raw(b"[1]")


def _document(random: Random) -> tuple[str, dict[str, bool]]:
    """A random selection of everything, in fragments of all kinds, some of it skipped."""
    variables = {name: random.random() < 0.5 for name in ("p", "q")}
    fragments: list[str] = []

    def directive() -> str:
        if random.random() < 0.7:
            return ""
        return f"@{random.choice(['skip', 'include'])}(if: {random.choice(['$p', '$q', 'true', 'false'])})"

    def field(name: str, inside: str = "") -> str:
        alias = f"{name}_{random.randrange(2)}: " if random.random() < 0.4 else ""
        return f"{alias}{name} {directive()} {inside}"

    def fields(type_: str, names: list[str], depth: int) -> str:
        found = []
        for _ in range(random.randint(1, 4)):
            way = random.random()
            if way < 0.15 and depth < 3:
                condition = random.choice(["", f"on {type_}"])
                found.append(f"... {condition} {directive()} {{ {fields(type_, names, depth + 1)} }}")
            elif way < 0.3 and depth < 3:
                inside = fields(type_, names, depth + 1)
                fragments.append(f"fragment F{len(fragments)} on {type_} {{ {inside} }}")
                found.append(f"...F{len(fragments) - 1} {directive()}")
            else:
                name = random.choice(names)
                inside = f"{{ {fields('kinds', [*ROW, '__typename'], depth)} }}" if name == "data" else ""
                found.append(field(name, inside))
        return " ".join(found)

    members = ["operation", "data", "data", "fields", "ts_timestamp", "__typename"]
    root = f"{random.choice(['', 'r: '])}kinds {{ {fields('kinds_update', members, 0)} __typename }}"
    uses = "subscription($p: Boolean = true, $q: Boolean = true) { %s } %s"
    # So that both variables are used somewhere.
    used = "fragment Used on kinds_update { operation @skip(if: $p) fields @skip(if: $q) }"
    return uses % (root.replace("{", "{ ...Used", 1), " ".join([used, *fragments])), variables


@settings(max_examples=examples(80))
@given(
    st.randoms(use_true_random=False),
    st.sampled_from([ROW, NULLS]),
    st.sampled_from(["INSERT", "UPDATE", "DELETE"]),
    st.lists(st.sampled_from(list(COLUMNS)), unique=True).map(tuple),
)
def test_any_selection_shows_what_graphql_core_shows(
    random: Random, row: Row, operation: Operation, fields: tuple[str, ...]
) -> None:
    query, variables = _document(random)
    happened = event(row, operation, fields)
    update = {
        "operation": operation, "data": row, "fields": list(fields), "ts_timestamp": str(happened.source_timestamp)
    }  # fmt: skip
    result = execute_sync(DOCUMENTS.schema, parse(query), {"kinds": update}, variable_values=dict(variables))
    assert result.errors is None, query
    assert selection(query, variables).encode(happened) == msgspec.json.encode({"data": result.data}), query
