"""Postgres reads and writes values as the reference model does, and never fails: what explaining rests on.

Each example is a column of many texts, so that one query tries them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal, localcontext
from typing import Any

import psycopg
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.budgets import examples
from tests.conftest import Databases
from tests.model import meters, values
from tests.spark.texts import INSTANTS, ODD, TYPES, doubles, read, signed, texts_of
from tidelock.columns import ColumnType, parse_column_type
from tidelock.periods import period_start
from tidelock.usage import casts

pytestmark = pytest.mark.check

MANY = settings(phases=[Phase.explicit, Phase.reuse, Phase.generate], max_examples=examples(6))

Connection = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def connection(databases: Databases) -> Iterator[Connection]:
    with databases() as database, database.connect_sync() as opened:
        yield opened


def ask(connection: Connection, type_: str, given: Sequence[Any], expression: str) -> list[Any]:
    """What an expression makes of a column `v`, row by row."""
    connection.execute(f"CREATE TEMPORARY TABLE given (n bigint, v {type_})".encode())
    try:
        with connection.cursor() as cursor, cursor.copy("COPY given FROM STDIN") as copy:
            for number, value in enumerate(given):
                copy.write_row((number, value))
        # In bytes: the driver looks for parameters in none.
        return [row[0] for row in connection.execute(f"SELECT {expression} FROM given ORDER BY n".encode())]
    finally:
        connection.execute("DROP TABLE given")


def postgres_type(type_: ColumnType) -> str:
    names = {"string": "text", "int": "bigint", "double": "float8", "timestamp": "bigint", "decimal": "numeric"}
    return names.get(type_.name, type_.name)


def check_reading(connection: Connection, name: str, given: list[str | None]) -> None:
    type_ = parse_column_type(name)
    # No text of the ledger has it.
    texts = [text for text in given if text is None or "\0" not in text]
    wanted = [read(name, text)[1] for text in texts]
    found = ask(connection, "text", texts, casts.typed(type_, "v"))
    trio = zip(texts, map(signed, found), map(signed, wanted), strict=True)
    assert [each for each in trio if each[1] != each[2]] == []
    if name != "double":
        written = ask(connection, postgres_type(type_), wanted, casts.canonical(type_, "v"))
        assert written == [None if value is None else values.text(name, value) for value in wanted]
    quantities = ask(connection, postgres_type(type_), wanted, casts.quantity(type_, "v"))
    check_quantities(name, wanted, quantities)


def check_quantities(name: str | None, given: Sequence[Any], found: Sequence[Decimal | None]) -> None:
    trio = [(repr(v), plain(n), plain(meters.quantity_of(name, v))) for v, n in zip(given, found, strict=True)]
    assert [each for each in trio if each[1] != each[2]] == []


def plain(number: Decimal | None) -> str | None:
    return None if number is None else values.decimal_text(number)


@pytest.mark.parametrize("type_", TYPES)
def test_odd_texts_are_read_as_the_model_reads_them(connection: Connection, type_: str) -> None:
    check_reading(connection, type_, [*ODD, None])


@pytest.mark.parametrize("type_", TYPES)
@MANY
@given(st.data())
def test_texts_are_read_as_the_model_reads_them(connection: Connection, type_: str, data: st.DataObject) -> None:
    check_reading(connection, type_, data.draw(st.lists(texts_of(type_), min_size=100, max_size=300)))


@MANY
@given(st.lists(texts_of("double"), min_size=100, max_size=300))
def test_a_path_counts_as_the_number_it_is(connection: Connection, given: list[str | None]) -> None:
    texts = [text for text in [*given, *ODD] if text is None or "\0" not in text]
    check_quantities(None, texts, ask(connection, "text", texts, casts.quantity(None, "v")))


@MANY
@given(st.lists(doubles(), min_size=100, max_size=300))
def test_a_double_counts_as_the_decimal_it_is_written_as(connection: Connection, given: list[float]) -> None:
    finite = [value for value in given if abs(value) <= 1.7976931348623157e308]
    check_quantities("double", finite, ask(connection, "float8", finite, casts.quantity(ColumnType("double"), "v")))


def test_the_ends_of_doubles_are_found() -> None:
    """Just there Postgres would raise, and must not be asked."""
    end, zero = Decimal(casts.DOUBLE_END), Decimal(casts.DOUBLE_ZERO)
    assert (float(str(end)), float(str(zero))) == (float("inf"), 0.0)
    with localcontext(prec=2000):
        assert (float(str(end - 1)), float(str(zero + zero / 10**9))) == (1.7976931348623157e308, 5e-324)


@pytest.mark.parametrize("period", ["hour", "day", "week", "month"])
@MANY
@given(st.lists(INSTANTS, min_size=100, max_size=300))
def test_periods_begin_where_they_begin_elsewhere(connection: Connection, period: str, given: list[int]) -> None:
    found = ask(connection, "bigint", given, casts.period_start(period, "v"))
    assert found == [period_start(period, instant) for instant in given]


@MANY
@given(st.lists(st.tuples(st.integers(-(10**28), 10**28), st.integers(1, 10**9)), min_size=100, max_size=300))
def test_an_average_is_rounded_once_half_away_from_zero(connection: Connection, given: list[tuple[int, int]]) -> None:
    pairs = [(Decimal(units).scaleb(-9, values.EXACT), count) for units, count in given]
    texts = [f"{total:f} {count}" for total, count in pairs]
    total, count = "split_part(v, ' ', 1)::numeric", "split_part(v, ' ', 2)::bigint"
    found = ask(connection, "text", texts, casts.average(f"({total})", f"({count})"))
    assert list(map(plain, found)) == [plain(meters.average(*pair)) for pair in pairs]
