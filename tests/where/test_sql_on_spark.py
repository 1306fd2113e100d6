"""Filters in SQL: Spark finds of each row what Python finds, and what the reference model finds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.budgets import examples
from tests.where.filters import COLUMN_TYPES, COLUMNS, Filter, Row, naive, rows, where
from tidelock.columns import ColumnType
from tidelock.spark.runtime import Spark
from tidelock.where import DEPTH_MAX, SIZE_MAX, SPARK, TEXT_LENGTH_MAX, Expression, evaluate, parse_where, where_sql

CASES = json.loads((Path(__file__).parent.parent / "cases" / "where.json").read_text())
CASE_TYPES = {"id": "bigint", "qty": "int", "sym": "string", "ok": "boolean"}
ARROW = {
    "string": pa.string(),
    "json": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
}
#: an example is a Spark job or more: what fails is shown as it is
MANY = settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])


def _arrow(type_: ColumnType) -> pa.DataType:
    return pa.decimal128(type_.precision, type_.scale) if type_.name == "decimal" else ARROW[type_.name]


def _truths(
    spark: Spark, columns: Mapping[str, ColumnType], some: Sequence[Row], expressions: Sequence[Expression]
) -> list[list[bool | None]]:
    """What Spark finds, a list for each row, all filters in one query."""
    arrays = {name: pa.array([row[name] for row in some], _arrow(type_)) for name, type_ in columns.items()}
    spark.session.createDataFrame(pa.table(arrays)).createOrReplaceTempView("filtered")
    conditions = ", ".join(f"{where_sql(e, SPARK)} AS c{n}" for n, e in enumerate(expressions))
    found = spark.session.sql(f"SELECT {conditions} FROM filtered").toArrow()
    return [list(row.values()) for row in found.to_pylist()]


def _constant(spark: Spark, given: Filter, columns: Mapping[str, ColumnType], value: str) -> Any:
    """The truth of a filter where every column is the same SQL expression."""
    condition = where_sql(parse_where(given, columns), SPARK, lambda _, __: value)
    return spark.session.sql(f"SELECT {condition}").collect()[0][0]


def test_the_cases_of_the_contract(spark: Spark) -> None:
    columns = {name: ColumnType(type_) for name, type_ in CASE_TYPES.items()}
    expressions = [parse_where(case["where"], columns) for case in CASES["cases"]]
    found = _truths(spark, columns, CASES["rows"], expressions)
    assert [list(truths) for truths in zip(*found, strict=True)] == [case["truth"] for case in CASES["cases"]]


@settings(MANY, max_examples=examples(5))
@given(st.lists(where(), min_size=10, max_size=30), st.lists(rows(), min_size=10, max_size=40))
def test_spark_and_python_and_the_model_agree(spark: Spark, written: list[Filter], some: list[Row]) -> None:
    expressions = [parse_where(filter_, COLUMNS) for filter_ in written]
    by_model = [[naive(filter_, row) for filter_ in written] for row in some]
    assert [[evaluate(expression, row) for expression in expressions] for row in some] == by_model
    found = _truths(spark, COLUMNS, some, expressions)
    different = [
        (filter_, row[name], name)
        for row, truths, wanted in zip(some, found, by_model, strict=True)
        for filter_, truth, want in zip(written, truths, wanted, strict=True)
        for name in COLUMN_TYPES
        if truth is not want and name in filter_
    ]
    assert different == []
    assert found == by_model


@settings(MANY, max_examples=examples(2))
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=50, max_size=100))
def test_a_text_is_the_same_text_in_spark(spark: Spark, texts: list[str]) -> None:
    columns = [where_sql(parse_where({"s": {"_eq": text}}, COLUMNS), SPARK)[6:] for text in texts]
    (row,) = (
        spark.session.sql("SELECT " + ", ".join(f"{c} AS c{n}" for n, c in enumerate(columns))).toArrow().to_pylist()
    )
    assert list(row.values()) == texts


def test_doubles_are_compared_as_doubles(spark: Spark) -> None:
    columns = {"x": ColumnType("double")}
    for operand in (0.1, 1e22, 5e-324, 1.7976931348623157e308, 2.0**53, 123456789.123456789):
        assert _constant(spark, {"x": {"_eq": operand}}, columns, f"CAST('{operand!r}' AS DOUBLE)") is True
        assert _constant(spark, {"x": {"_in": [operand, -1]}}, columns, f"CAST('{operand!r}' AS DOUBLE)") is True


def test_names_are_quoted(spark: Spark) -> None:
    names = ["order", "Mixed", "a`b", "a.b", "%s"]
    columns = {name: ColumnType("int") for name in names}
    condition = where_sql(parse_where({name: {"_gt": 1} for name in names}, columns), SPARK)
    table = ", ".join(f"2 AS {SPARK.quoted(name)}" for name in names)
    assert spark.session.sql(f"SELECT {condition} FROM (SELECT {table})").collect()[0][0] is True


def test_the_largest_filters_run(spark: Spark) -> None:
    deep: Filter = {"i": {"_eq": 1}}
    for number in range(DEPTH_MAX):
        deep = {"_and": [deep, {"i": {"_gt": -number}}]} if number % 2 else {"_or": [deep, {"i": {"_lt": number}}]}
    for written, value in [
        (deep, "1"),
        ({"i": {"_in": list(range(SIZE_MAX - 5))}}, "1"),
        ({"_or": [{"i": {"_gt": n}} for n in range(SIZE_MAX // 3 - 1)]}, "1"),
        ({"s": {"_neq": "'\\" * (TEXT_LENGTH_MAX // 2)}}, "'a'"),
    ]:
        assert _constant(spark, written, COLUMNS, value) is True
