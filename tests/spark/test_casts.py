"""Casts: Spark reads and writes values byte for byte as the reference model does, and never fails.

Each example is a column of many texts, so that one Spark job tries them all.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.budgets import examples
from tests.model import meters, values
from tests.spark.texts import INSTANTS, ODD, TYPES, doubles, read, signed, texts_of
from tidelock.columns import ColumnType, parse_column_type
from tidelock.spark import casts
from tidelock.spark.runtime import Spark

ARROW = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.int64(),
    "date": pa.date32(),
}
#: what is wrong is told by itself, and making such an example smaller takes minutes
MANY = settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])


def _ask(spark: Spark, columns: dict[str, pa.Array], *expressions: str) -> list[pa.Array]:
    """The values of SQL expressions over columns."""
    spark.session.createDataFrame(pa.table(columns)).createOrReplaceTempView("given")
    found = spark.session.sql("SELECT " + ", ".join(f"{e} AS c{n}" for n, e in enumerate(expressions)) + " FROM given")
    return [column.combine_chunks() for column in found.toArrow().columns]


@pytest.mark.parametrize("type_", TYPES)
def test_odd_texts_are_read_as_the_model_reads_them(spark: Spark, type_: str) -> None:
    _check_reading(spark, type_, [*ODD, None])


@pytest.mark.parametrize("type_", TYPES)
@settings(MANY, max_examples=examples(2))
@given(st.data())
def test_texts_are_read_as_the_model_reads_them(spark: Spark, type_: str, data: st.DataObject) -> None:
    _check_reading(spark, type_, data.draw(st.lists(texts_of(type_), min_size=200, max_size=400)))


def _check_reading(spark: Spark, name: str, texts: list[str | None]) -> None:
    type_ = parse_column_type(name)
    wanted = [read(name, text) for text in texts]
    value = casts.typed(type_, "t")
    canonical = "''" if name == "double" else casts.canonical(type_, "v")
    given = {"t": pa.array(texts, pa.string())}
    fits, typed = _ask(spark, given, casts.fits(type_, "t"), value)
    found = zip(fits.to_pylist(), map(signed, typed.to_pylist()), strict=True)
    given_found_wanted = zip(texts, found, ((fit, signed(value)) for fit, value in wanted), strict=True)
    assert [each for each in given_found_wanted if each[1] != each[2]] == []
    arrow = pa.decimal128(type_.precision, type_.scale) if type_.name == "decimal" else ARROW[name]
    assert typed.type == arrow
    carried, written = _ask(spark, {"v": typed}, casts.transport(type_, "v"), canonical)
    assert pc.cast(carried, arrow).equals(typed)
    if name != "double":
        assert written.to_pylist() == [None if v is None else values.text(name, v) for _, v in wanted]


@pytest.mark.parametrize("type_", [None, *TYPES])
@settings(MANY, max_examples=examples(2))
@given(st.data())
def test_quantities_are_those_of_the_model(spark: Spark, type_: str | None, data: st.DataObject) -> None:
    texts = data.draw(st.lists(texts_of(type_ or "double"), min_size=200, max_size=400))
    given: list[Any] = texts if type_ is None else [_narrow(read(type_, text)[1]) for text in texts]
    column = None if type_ is None else parse_column_type(type_)
    arrow = pa.decimal128(column.precision, column.scale) if column and column.name == "decimal" else None
    _check_quantities(spark, type_, pa.array(given, arrow or ARROW[type_ or "string"]))


@settings(MANY, max_examples=examples(8))
@given(st.lists(doubles(), min_size=300, max_size=600))
def test_a_double_counts_as_the_decimal_it_is_written_as(spark: Spark, doubles: list[float]) -> None:
    _check_quantities(spark, "double", pa.array(doubles, pa.float64()))


def _check_quantities(spark: Spark, type_: str | None, given: pa.Array) -> None:
    column = None if type_ is None else parse_column_type(type_)
    (found,) = _ask(spark, {"v": given}, casts.quantity(column, "v"))
    assert found.type == pa.decimal128(38, 9)
    trio = [
        (repr(value), _plain(number), _plain(meters.quantity_of(type_, value)))
        for value, number in zip(given.to_pylist(), found.to_pylist(), strict=True)
    ]
    assert [each for each in trio if each[1] != each[2]] == []


def _narrow(value: Any) -> Any:
    """A decimal without more zeros than Arrow has digits."""
    return Decimal(values.decimal_text(value)) if isinstance(value, Decimal) else value


def _plain(number: Decimal | None) -> str | None:
    return None if number is None else values.decimal_text(number)


@settings(MANY, max_examples=examples(3))
@given(st.lists(INSTANTS, min_size=100, max_size=500))
def test_instants_have_their_text_and_their_periods(spark: Spark, instants: list[int]) -> None:
    instants += [-9_214_560_000 * 10**9, 9_214_646_400 * 10**9 - 1, -1, 0, 1, -(10**9), -(10**9) - 1]
    periods = ["hour", "day", "week", "month"]
    text, *starts = _ask(
        spark,
        {"t": pa.array(instants, pa.int64())},
        casts.instant_text("t"),
        *(casts.period_start(period, "t") for period in periods),
    )
    assert text.to_pylist() == [values.instant_text(instant) for instant in instants]
    for period, found in zip(periods, starts, strict=True):
        assert found.type == pa.int64()
        assert found.to_pylist() == [meters.period_start(period, instant) for instant in instants]


def test_no_bigint_is_too_large_for_a_period_or_a_text(spark: Spark) -> None:
    given = {"t": pa.array([-(2**63), 2**63 - 1, None], pa.int64())}
    text, *_ = _ask(
        spark, given, casts.instant_text("t"), *(casts.period_start(p, "t") for p in ("hour", "day", "week", "month"))
    )
    assert text.to_pylist() == ["1677-09-21T00:12:43.145224192Z", "2262-04-11T23:47:16.854775807Z", None]


@settings(MANY, max_examples=examples(3))
@given(st.lists(st.tuples(*[st.none() | st.text(st.characters(exclude_categories=["Cs"]))] * 2), min_size=100))
def test_texts_become_the_json_that_python_writes(spark: Spark, pairs: list[tuple[str | None, str | None]]) -> None:
    pairs += [(chr(code) + "\\u000B" + chr(127 + code), chr(code)) for code in range(256)]
    a, b = (pa.array([pair[n] for pair in pairs], pa.string()) for n in (0, 1))
    string, array = _ask(spark, {"a": a, "b": b}, casts.json_string("a"), casts.json_array(["a", "b"]))
    assert string.to_pylist() == [None if x is None else json.dumps(x, ensure_ascii=False) for x, _ in pairs]
    assert array.to_pylist() == [values.key_text(pair) for pair in pairs]


@pytest.mark.parametrize("type_", [*TYPES, None])
def test_very_long_texts_do_no_harm(spark: Spark, type_: str | None) -> None:
    """A hundred thousand characters, a million in the soak. What took time by their square would not end."""
    size = min(examples(10**5), 10**6)
    zeros = "0" * size
    texts = ["1" + zeros, f"0.{zeros}1e{size + 1}", "9" * size, zeros + "1", "1." + zeros, zeros, "1e" + "9" * size]
    texts += ["a" * size, f"2026-01-31T00:00:00.{zeros}Z", " " * size, "-" * size, "1." * (size // 2), '"' * size]
    given = {"t": pa.array(texts, pa.string())}
    column: ColumnType | None = None if type_ is None else parse_column_type(type_)
    if column is None:
        quantity, array = _ask(spark, given, casts.quantity(None, "t"), casts.json_array(["t", "t"]))
        assert [n for n, found in enumerate(quantity.to_pylist()) if found is not None] == [1, 3, 4, 5]
        assert [json.loads(found) for found in array.to_pylist()] == [[text, text] for text in texts]
        return
    fits, typed = _ask(spark, given, casts.fits(column, "t"), casts.typed(column, "t"))
    reading = [n for n, fit in enumerate(fits.to_pylist()) if fit]
    assert reading == [n for n, value in enumerate(typed.to_pylist()) if value is not None]
    assert reading == [n for n, text in enumerate(texts) if read(type_ or "", text)[0]]


def test_what_has_no_one_text_has_none() -> None:
    with pytest.raises(ValueError, match="no one text"):
        casts.canonical(ColumnType("double"), "v")
    with pytest.raises(ValueError, match="is not a period"):
        casts.period_start("year", "t")


def test_the_bounds_of_instants_are_whole_years() -> None:
    assert datetime.fromtimestamp(casts._SECONDS[0], UTC) == datetime(1678, 1, 1, tzinfo=UTC)
    assert datetime.fromtimestamp(casts._SECONDS[1] + 1, UTC) == datetime(2262, 1, 1, tzinfo=UTC)
