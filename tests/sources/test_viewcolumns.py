"""Columns of a foreign view as those of a stream: what fits, what is refused and how, and values as JSON."""

import json

import pytest

from tidelock.columns import parse_column_type
from tidelock.definitions import Stream
from tidelock.errors import SettingsError
from tidelock.sources.connect.materialize import Materialize, view_parts
from tidelock.sources.connect.viewcolumns import declaration, known_type, view_columns

pytestmark = pytest.mark.check


def stream(key: tuple[str, ...] = ("id",), **columns: str) -> Stream:
    return Stream("trades", key=key, columns={name: parse_column_type(text) for name, text in columns.items()})


@pytest.mark.parametrize(
    ("declared", "type_", "text", "value"),
    [
        ("bigint", "bigint", "-9223372036854775808", -(2**63)),
        ("bigint", "uint4", "4294967295", 2**32 - 1),
        ("int", "int4", "7", 7),
        ("decimal(18,4)", "numeric", "12.5000", "12.5000"),
        ("decimal(18,4)", "numeric(18,4)", "NaN", "NaN"),
        ("double", "double precision", "1.5e-7", 1.5e-7),
        ("double", "real", "Infinity", "Infinity"),
        ("boolean", "boolean", "t", True),
        ("boolean", "bool", "f", False),
        ("string", "text", 'a"b\\\n', 'a"b\\\n'),
        ("string", "interval", "01:02:03", "01:02:03"),
        ("date", "date", "2026-01-31", "2026-01-31"),
        ("json", "jsonb", '{"a":[1,null]}', {"a": [1, None]}),
        ("timestamp", "timestamp with time zone", "2026-01-31 23:59:59.123+00", "2026-01-31T23:59:59.123Z"),
        ("timestamp", "timestamp", "2026-01-31 23:59:59", "2026-01-31T23:59:59Z"),
        ("timestamp", "timestamptz", "2026-01-31 23:59:59+05:30", "2026-01-31T23:59:59+05:30"),
        ("timestamp", "timestamptz", "10000-01-01 00:00:00+00", "10000-01-01 00:00:00+00"),
    ],
)
def test_a_value_becomes_what_a_producer_would_send(declared: str, type_: str, text: str, value: object) -> None:
    made = view_columns(stream(id="bigint", v=declared), "trades", {"v": type_, "id": "bigint"})
    assert made.names == ("id", "v")
    assert json.loads(made.change("upsert", ["1", text]).data) == {"id": 1, "v": value}
    assert json.loads(made.change("upsert", ["1", None]).data) == {"id": 1, "v": None}
    assert json.loads(made.change("delete", ["1", None]).data) == {"id": 1}


@pytest.mark.parametrize(
    ("declared", "type_", "advice"),
    [
        ("int", "bigint", "declare it as bigint"),
        ("bigint", "uint8", "declare it as decimal(20,0)"),
        ("bigint", "text", "declare it as string"),
        ("boolean", "integer", "declare it as int"),
        ("timestamp", "bigint", "declare it as bigint"),
        ("json", "text", "declare it as string"),
        ("double", "numeric", "declare it as decimal(38,9)"),
        ("date", "bytea", "declare it as string"),
    ],
)
def test_a_type_that_does_not_fit_is_reported_with_what_to_declare(declared: str, type_: str, advice: str) -> None:
    with pytest.raises(SettingsError) as caught:
        view_columns(stream(id="bigint", v=declared), "trades", {"id": "bigint", "v": type_})
    assert f'column "v" is {type_} in the view and {declared} in the stream' in caught.value.message
    assert advice in caught.value.message


def test_everything_that_does_not_fit_is_reported_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        view_columns(stream(id="bigint", prise="int", qty="int"), "trades", {"id": "text", "price": "integer"})
    for told in ('did you mean "price"', 'no column "qty"', 'column "id" is text'):
        assert told in caught.value.message


def test_columns_of_the_key_come_first_and_the_others_by_name() -> None:
    found = {"c": "text", "b": "text", "a": "text", "d": "text", "unwanted": "bytea"}
    made = view_columns(stream(("d", "b"), a="string", b="string", c="string", d="string"), "trades", found)
    assert made.names == ("d", "b", "a", "c")
    assert made.change("delete", ["1", "2", None, None]).data == b'{"d":"1","b":"2"}'


def test_a_declaration_is_proposed_for_the_columns_there_are() -> None:
    found = {"id": "bigint", "price": "numeric(10,2)", "at": "timestamptz", "what?": "text"}
    assert declaration("trades", found, ("id", "at")) == (
        '[streams.trades]\nkey = ["id", "at"]\ncolumns = { id = "bigint", price = "decimal(38,9)", at = "timestamp" }'
    )


def test_types_have_one_spelling() -> None:
    assert known_type("NUMERIC(38, 9)") == known_type("decimal") == "numeric"
    assert known_type("timestamp (3) with time zone") == known_type("timestamptz")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("trades", ("trades",)),
        ("Public.Trades", ("public", "trades")),
        ('materialize.public."My ""View"""', ("materialize", "public", 'My "View"')),
        ('"a.b".c', ("a.b", "c")),
    ],
)
def test_a_view_is_named_as_in_sql(text: str, parts: tuple[str, ...]) -> None:
    assert view_parts(text) == parts
    spelled = Materialize("postgresql://x", text, connect_timeout_s=1, part_rows_max=1).view
    assert view_parts(spelled) == parts


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", '"a', '"a"b', 'a"b"', "a.b.c.d", " "])
def test_what_is_not_a_name_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="not a valid view name"):
        view_parts(text)
