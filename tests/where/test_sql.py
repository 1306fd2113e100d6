"""Filters in SQL: a real Postgres finds of each row what Python finds, and what the reference model finds."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.budgets import examples
from tests.where.filters import COLUMN_TYPES, COLUMNS, Filter, Row, any_values, naive, rows, where
from tidelock.columns import ColumnType
from tidelock.postgres.embedded import EmbeddedPostgres
from tidelock.where import (
    DEPTH_MAX,
    POSTGRES,
    SIZE_MAX,
    SPARK,
    TEXT_LENGTH_MAX,
    Expression,
    compile_where,
    evaluate,
    parse_where,
    where_sql,
)

pytestmark = pytest.mark.check

CASES = json.loads((Path(__file__).parent.parent / "cases" / "where.json").read_text())
CASE_TYPES = {"id": "bigint", "qty": "int", "sym": "string", "ok": "boolean"}
#: what columns are in Postgres
SQL_TYPES = {"string": "text", "timestamp": "bigint", "double": "float8"}
#: names that need their quotes
ODD_NAMES = ["order", "Mixed", 'a"b', "a.b", "%s"]

Connection = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def connection(postgres: EmbeddedPostgres) -> Iterator[Connection]:
    with psycopg.connect(postgres.url, autocommit=True) as connected:
        _create(connected, "rows", COLUMN_TYPES)
        _create(connected, "case_rows", CASE_TYPES)
        # Where the server knows a language, texts are in its order, so that ours has to be asked for.
        known = connected.execute("SELECT collname FROM pg_collation WHERE collname IN ('en-x-icu', 'en_US.utf8')")
        for (collation,) in known.fetchmany(1):
            connected.execute(f'ALTER TABLE rows ALTER s TYPE text COLLATE "{collation}"'.encode())
        yield connected


def _create(connection: Connection, table: str, types: Mapping[str, str]) -> None:
    columns = ", ".join(f"{name} {SQL_TYPES.get(type_, type_)}" for name, type_ in types.items())
    connection.execute(f"CREATE TEMPORARY TABLE {table} (n int, {columns})".encode())


def _fill(connection: Connection, table: str, some: Sequence[Mapping[str, Any]]) -> None:
    names = list(some[0])
    places = ", ".join(["%s"] * (1 + len(names)))
    numbered = [(n, *(row[name] for name in names)) for n, row in enumerate(some)]
    connection.execute(f"TRUNCATE {table}".encode())
    with connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO {table} (n, {', '.join(names)}) VALUES ({places})".encode(), numbered)


def _truths(connection: Connection, table: str, expressions: Sequence[Expression]) -> list[list[bool | None]]:
    """What Postgres finds, a list for each row, all filters in one query that has a parameter beside them."""
    conditions = ", ".join(where_sql(expression, POSTGRES) for expression in expressions)
    query = f"SELECT {conditions} FROM {table} WHERE n >= %s ORDER BY n"
    return [list(found) for found in connection.execute(query.encode(), [0])]


def _constant(connection: Connection, given: Filter, columns: Mapping[str, ColumnType], value: str) -> bool | None:
    """The truth of a filter where every column is the same SQL expression."""
    condition = where_sql(parse_where(given, columns), POSTGRES, lambda _, __: value)
    row = connection.execute(f"SELECT {condition}".encode()).fetchone()
    assert row is not None
    found: bool | None = row[0]
    return found


def test_the_cases_of_the_contract(connection: Connection) -> None:
    columns = {name: ColumnType(type_) for name, type_ in CASE_TYPES.items()}
    _fill(connection, "case_rows", CASES["rows"])
    expressions = [parse_where(case["where"], columns) for case in CASES["cases"]]
    found = _truths(connection, "case_rows", expressions)
    assert [list(truths) for truths in zip(*found, strict=True)] == [case["truth"] for case in CASES["cases"]]


@settings(max_examples=examples(40))
@given(st.lists(where(), min_size=1, max_size=25), st.lists(rows(), min_size=1, max_size=10))
def test_postgres_and_python_and_the_model_agree(
    connection: Connection, written: list[Filter], some: list[Row]
) -> None:
    _check_truths(connection, written, some)


@settings(max_examples=examples(40))
@given(st.data())
def test_they_agree_on_any_values(connection: Connection, data: st.DataObject) -> None:
    values = data.draw(any_values())
    written = data.draw(st.lists(where(values), min_size=1, max_size=25))
    _check_truths(connection, written, data.draw(st.lists(rows(values), min_size=1, max_size=10)))


def _check_truths(connection: Connection, written: list[Filter], some: list[Row]) -> None:
    """Postgres, the walk over the canonical form, the compiled one and the model, which reads what was written."""
    _fill(connection, "rows", some)
    expressions = [parse_where(filter_, COLUMNS) for filter_ in written]
    by_model = [[naive(filter_, row) for filter_ in written] for row in some]
    assert [[evaluate(expression, row) for expression in expressions] for row in some] == by_model
    assert _truths(connection, "rows", expressions) == by_model
    compiled = [compile_where(expression) for expression in expressions]
    assert [[matches(row) for matches in compiled] for row in some] == [[t is True for t in row] for row in by_model]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1))
def test_a_text_is_the_same_text_in_postgres(connection: Connection, texts: list[str]) -> None:
    columns = ", ".join(where_sql(parse_where({"s": {"_eq": text}}, COLUMNS), POSTGRES)[6:] for text in texts)
    row = connection.execute(f"SELECT {columns} WHERE %s".encode(), [True]).fetchone()
    assert list(row or ()) == texts


@pytest.mark.parametrize("dialect", [POSTGRES, SPARK])
@given(st.text())
def test_a_literal_has_nothing_that_a_reader_could_take_for_more_than_text(dialect: Any, text: str) -> None:
    text = text.replace("\0", "").encode(errors="ignore").decode() + "'\\$%{}"
    sql = where_sql(parse_where({"s": {"_in": [text, "a"]}}, COLUMNS), dialect)
    inside = sql.split("translate('")[1].split("', '")[0]
    assert not set("'\\$%{}") & set(inside)
    assert sql.count("'") == 6


def test_doubles_are_compared_as_doubles(connection: Connection) -> None:
    columns = {"x": ColumnType("double")}
    for operand in (0.1, 1e22, 5e-324, 1.7976931348623157e308, 2.0**53, 123456789.123456789):
        assert _constant(connection, {"x": {"_eq": operand}}, columns, f"'{operand!r}'::float8") is True
        assert _constant(connection, {"x": {"_in": [operand, -1]}}, columns, f"'{operand!r}'::float8") is True


def test_order_is_by_code_point_whatever_the_collation_of_the_column() -> None:
    expression = parse_where({"s": {"_gt": "a", "_neq": "b"}}, COLUMNS)
    assert where_sql(expression, POSTGRES) == """("s" COLLATE "C" > 'a' AND "s" <> 'b')"""
    assert where_sql(expression, SPARK) == "(`s` > 'a' AND `s` <> 'b')"


def test_an_index_on_texts_serves_equality(connection: Connection) -> None:
    connection.execute("CREATE TEMPORARY TABLE named (name text PRIMARY KEY)")
    connection.execute("SET enable_seqscan = off")
    condition = where_sql(parse_where({"name": {"_in": ["a", "it's"]}}, {"name": ColumnType("string")}), POSTGRES)
    plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN SELECT FROM named WHERE {condition}".encode()))
    connection.execute("RESET enable_seqscan")
    assert "Index Cond" in plan


def test_names_are_quoted(connection: Connection) -> None:
    columns = {name: ColumnType("int") for name in ODD_NAMES}
    condition = where_sql(parse_where({name: {"_gt": 1} for name in ODD_NAMES}, columns), POSTGRES)
    table = ", ".join('"' + name.replace('"', '""') + '"' for name in ODD_NAMES)
    row = connection.execute(f"SELECT {condition} FROM (SELECT 2, 2, 2, 2, 2) AS t ({table})".encode()).fetchone()
    assert row == (True,)
    assert where_sql(parse_where({"a`b": {"_gt": 1}}, {"a`b": ColumnType("int")}), SPARK) == "`a``b` > 1"


def test_the_largest_filters_run(connection: Connection) -> None:
    deep: Filter = {"i": {"_eq": 1}}
    for number in range(DEPTH_MAX):
        deep = {"_and": [deep, {"i": {"_gt": -number}}]} if number % 2 else {"_or": [deep, {"i": {"_lt": number}}]}
    quotes = "'\\" * (TEXT_LENGTH_MAX // 2)
    for written, value in [
        (deep, "1"),
        ({"i": {"_in": list(range(SIZE_MAX - 5))}}, "1"),
        ({"_or": [{"i": {"_gt": n}} for n in range(SIZE_MAX // 3 - 1)]}, "1"),
        ({"s": {"_neq": quotes}}, "'a'"),
    ]:
        assert _constant(connection, written, COLUMNS, value) is True
