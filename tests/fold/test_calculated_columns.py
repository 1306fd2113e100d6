"""Calculated columns: formulas are checked at the start, give what arithmetic gives, and never fail."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.budgets import examples
from tidelock.columns import parse_column_type
from tidelock.definitions import Stream
from tidelock.errors import SettingsError
from tidelock.fold.latest import Calculation, compile_calculations
from tidelock.spark.runtime import Spark

COLUMNS = {
    "i": "int",
    "k": "int",
    "b": "bigint",
    "c": "bigint",
    "x": "double",
    "p": "decimal(18,4)",
    "r": "decimal(18,4)",
    "q": "decimal(38,9)",
    "n": "decimal(38,0)",
    "s": "string",
    "o": "boolean",
    "t": "timestamp",
    "y": "date",
    "j": "json",
}
ARROW = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "decimal(18,4)": pa.decimal128(18, 4),
    "decimal(38,9)": pa.decimal128(38, 9),
    "decimal(38,0)": pa.decimal128(38, 0),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "timestamp": pa.int64(),
    "date": pa.date32(),
    "json": pa.string(),
}
#: an example is many Spark queries
MANY = settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])
Row = dict[str, Any]

_EXACT = Context(prec=200)
_NUMBERS = {"int": 2**31, "bigint": 2**63, "timestamp": 2**63}
_TEXTS = [
    "",
    "1",
    "-1.5",
    " 7 ",
    "abc",
    "1e-1000000000",
    "1e999999999",
    "NaN",
    "2026-01-31",
    "true",
    "é\U00010000",
    "0" * 500,
]


def _values(type_: str) -> st.SearchStrategy[Any]:
    if type_ in _NUMBERS:
        bound = _NUMBERS[type_]
        return st.sampled_from([-bound, bound - 1, -1, 0, 1]) | st.integers(-bound, bound - 1) | st.integers(-99, 99)
    if type_.startswith("decimal"):
        parsed = parse_column_type(type_)
        digits = 10**parsed.precision - 1
        whole = (
            st.sampled_from([-digits, digits, 0, 1, -1]) | st.integers(-digits, digits) | st.integers(-(10**9), 10**9)
        )
        return whole.map(lambda number: Decimal(number).scaleb(-parsed.scale, _EXACT))
    return {
        "double": st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, 1e308, -1e308, 5e-324]),
        "string": st.sampled_from(_TEXTS),
        "json": st.just("{}"),
        "boolean": st.booleans(),
        "date": st.dates() | st.sampled_from([date.min, date.max]),
    }[type_]


def _rows() -> st.SearchStrategy[Row]:
    return st.fixed_dictionaries({name: st.none() | _values(type_) for name, type_ in COLUMNS.items()})


def _calls(names: str, *arguments: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(lambda name, *given: f"{name}({', '.join(given)})", st.sampled_from(names.split()), *arguments)


def _casts(types: str, *values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds("CAST({} AS {})".format, st.one_of(values), st.sampled_from(types.split()))


Strategies = tuple[st.SearchStrategy[str], ...]


def _formulas() -> st.SearchStrategy[str]:
    """Mostly such that Spark finds no fault with their types."""
    strategies: Strategies = (
        st.sampled_from(["i", "k", "b", "c", "x", "p", "r", "q", "n", "t", "0", "1", "-1", "2.5", "1e3", "NULL"]),
        st.sampled_from(["s", "j", "'a'", "customer_ref"]),
        st.sampled_from(["o", "TRUE", "NULL"]),
        st.sampled_from(["y", "DATE '2026-02-28'"]),
    )
    for _ in range(3):
        strategies = _nested(*strategies)
    return st.one_of(strategies)


def _nested(
    number: st.SearchStrategy[str],
    text: st.SearchStrategy[str],
    truth: st.SearchStrategy[str],
    day: st.SearchStrategy[str],
) -> Strategies:
    """Numbers, texts, truths and days that are made of others."""
    moment = _calls("timestamp_micros", st.sampled_from(["b", "t", "t div 1000"])) | _casts("timestamp", text, day)
    whole = st.sampled_from(["i", "k", "0", "-1", "2147483647"])
    numbers = (
        number
        | st.builds("({} {} {})".format, number, st.sampled_from(["+", "-", "*", "/", "%"]), number)
        | st.builds("({} div {})".format, st.sampled_from("ibct"), st.sampled_from("kcbt"))
        | st.builds("-{}".format, number)
        | _calls("abs floor ceil round bround sqrt exp ln log10 sign", number)
        | _calls("coalesce nullif greatest least power mod", number, number)
        | _calls("round", number, st.sampled_from(["0", "2", "38"]))
        | _casts("int bigint smallint double float decimal(38,9) decimal(5,2) decimal(38,38)", number, text, truth)
        | st.builds("CASE WHEN {} THEN {} ELSE {} END".format, truth, number, number)
        | _calls("length ascii", text)
        | _calls("year quarter month day dayofweek weekday dayofyear unix_date", day)
        | _calls("datediff", day, day)
        | _calls("hour minute second unix_micros unix_seconds year", moment)
    )
    texts = (
        _calls("upper lower trim reverse initcap md5 sha1", text)
        | _calls("substr left right", text, whole)
        | _calls("substr", text, whole, whole)
        | _calls("replace translate", text, st.just("'1'"), st.just("'ab'"))
        | _casts("string", number, truth, day, moment)
        | st.builds("({} || {})".format, text, number)
    )
    truths = (
        st.builds("({} {} {})".format, number, st.sampled_from(["=", "<", ">=", "<>"]), number)
        | st.builds("({} BETWEEN {} AND {})".format, text, text, text)
        | st.builds("({} {} {})".format, truth, st.sampled_from(["AND", "OR"]), truth)
        | _calls("contains startswith endswith", text, text)
        | _casts("boolean", number, text)
    )
    days = _calls("date_add date_sub add_months", day, whole) | _calls("last_day", day) | _casts("date", text, moment)
    return numbers, texts, truths, days


def _compiled(spark: Spark, **formulas: str) -> dict[str, Calculation]:
    columns = {name: parse_column_type(type_) for name, type_ in COLUMNS.items()}
    stream = Stream("trades", ("i",), columns, calculated=formulas)
    return dict(compile_calculations(spark.session, stream, lambda name: f"`{name}`"))


def _computed(spark: Spark, rows: list[Row], *calculations: Calculation) -> list[list[Any]]:
    """The values of each calculation."""
    table = pa.table({name: pa.array([row[name] for row in rows], ARROW[type_]) for name, type_ in COLUMNS.items()})
    frame = spark.session.createDataFrame(table).selectExpr("*", "'me' AS customer_ref")
    found = frame.selectExpr(*(f"{each.sql} AS c{number}" for number, each in enumerate(calculations)))
    return [column.to_pylist() for column in found.toArrow().columns]


@settings(MANY, max_examples=examples(2))
@given(st.lists(_formulas(), min_size=30, max_size=40), st.lists(_rows(), min_size=10, max_size=20))
def test_no_formula_fails_on_any_row(spark: Spark, formulas: list[str], rows: list[Row]) -> None:
    compiled = []
    for formula in formulas:
        with suppress(SettingsError):
            compiled.append(_compiled(spark, a=formula)["a"])
    for calculation, found in zip(compiled, _computed(spark, rows, *compiled), strict=True):
        if calculation.type.name == "double":
            assert all(value is None or math.isfinite(value) for value in found)


def _within(bound: int) -> Callable[[int], int | None]:
    return lambda number: number if -bound <= number < bound else None


def _truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


@settings(MANY, max_examples=examples(2))
@given(st.lists(_rows(), min_size=100, max_size=200))
def test_whole_numbers_are_computed_exactly_or_not_at_all(spark: Spark, rows: list[Row]) -> None:
    operations: dict[str, Callable[[int, int], int]] = {
        "+": operator.add,
        "-": operator.sub,
        "*": operator.mul,
        "%": lambda a, b: a - b * _truncated(a, b),
        "div": _truncated,
    }
    for a, b, bound in (("i", "k", 2**31), ("b", "c", 2**63)):
        compiled = _compiled(spark, **{f"c{n}": f"{a} {sign} {b}" for n, sign in enumerate(operations)})
        found = _computed(spark, rows, *compiled.values())
        for (sign, computed), calculation, values in zip(operations.items(), compiled.values(), found, strict=True):
            assert calculation.type.name == ("bigint" if bound == 2**63 or sign == "div" else "int")
            limit = _within(2**63 if sign == "div" else bound)
            undefined = [None in (row[a], row[b]) or (sign in ("%", "div") and row[b] == 0) for row in rows]
            assert values == [
                None if nothing else limit(computed(row[a], row[b]))
                for row, nothing in zip(rows, undefined, strict=True)
            ]


@settings(MANY, max_examples=examples(2))
@given(st.lists(_rows(), min_size=100, max_size=200))
def test_decimals_are_computed_exactly(spark: Spark, rows: list[Row]) -> None:
    operations: dict[str, Callable[[Decimal, Decimal], Decimal]] = {
        "+": _EXACT.add,
        "-": _EXACT.subtract,
        "*": _EXACT.multiply,
        "%": _EXACT.remainder,
        "/": _EXACT.divide,
    }
    compiled = _compiled(spark, **{f"c{n}": f"p {sign} r" for n, sign in enumerate(operations)})
    found = _computed(spark, rows, *compiled.values())
    for (sign, computed), calculation, values in zip(operations.items(), compiled.values(), found, strict=True):
        digits = Decimal(1).scaleb(-calculation.type.scale)
        undefined = [None in (row["p"], row["r"]) or (sign in "%/" and row["r"] == 0) for row in rows]
        wanted = [
            None if nothing else computed(row["p"], row["r"]).quantize(digits, ROUND_HALF_UP, _EXACT)
            for row, nothing in zip(rows, undefined, strict=True)
        ]
        assert values == [w if w is None or abs(w) < 10 ** (38 - calculation.type.scale) else None for w in wanted]


@settings(MANY, max_examples=examples(2))
@given(st.lists(_rows(), min_size=100, max_size=200))
def test_signs_change_without_loss(spark: Spark, rows: list[Row]) -> None:
    columns = {"i": 2**31, "b": 2**63, "q": None, "n": None, "x": None}
    compiled = _compiled(
        spark, **{f"minus_{c}": f"-{c}" for c in columns}, **{f"abs_{c}": f"abs({c})" for c in columns}
    )
    found = dict(zip(compiled, _computed(spark, rows, *compiled.values()), strict=True))
    for name, bound in columns.items():
        for made, change in (("minus", lambda n: -Fraction(n)), ("abs", lambda n: abs(Fraction(n)))):
            wanted = [None if row[name] in (None, -bound if bound else None) else change(row[name]) for row in rows]
            values = [None if value is None else Fraction(value) for value in found[f"{made}_{name}"]]
            assert values == wanted


@pytest.mark.parametrize(
    ("formula", "type_", "value"),
    [
        ("p * i", "decimal(29,4)", Decimal("5.0000")),
        ("i / 4", "double", 0.5),
        ("s || '-' || i", "string", "it's-2"),
        ("replace(s, 'it''s', 'a')", "string", "a"),
        ("CASE WHEN i > 1 AND NOT o THEN 'more' ELSE 'less' END", "string", "less"),
        ("timestamp_micros(t div 1000)", "timestamp", 1_769_904_000_000_001_000),
        ("t + 1", "bigint", 1_769_904_000_000_001_003),
        ("year(timestamp_micros(t div 1000))", "int", 2026),
        ("date_add(y, i)", "date", date(2026, 2, 2)),
        ("CAST(i AS SMALLINT)", "int", 2),
        ("CAST(x AS FLOAT)", "double", 1.5),
        ("x * 1e308 * 1e308", "double", None),
        ("CAST(s AS INT)", "int", None),
        ("i IN (1, 2, 3) OR i BETWEEN 5 AND 7", "boolean", True),
        ("s LIKE 'it%' AND s IS NOT NULL", "boolean", True),
        ("1 - -i * 2 + (3 - 1)", "int", 7),
        ("date_add(DATE '9999-12-31', 1)", "date", None),
        ("customer_ref || `s`", "string", "meit's"),
    ],
)
def test_formulas(spark: Spark, formula: str, type_: str, value: Any) -> None:
    row = dict.fromkeys(COLUMNS) | {"i": 2, "p": Decimal("2.5"), "s": "it's", "o": True, "x": 1.5}
    row |= {"t": 1_769_904_000_000_001_002, "y": date(2026, 1, 31)}
    calculation = _compiled(spark, a=formula)["a"]
    assert str(calculation.type) == type_
    assert _computed(spark, [row], calculation) == [[value]]


@pytest.mark.parametrize(
    ("formula", "told"),
    [
        ("price * 2", 'there is no column "price". Columns: i, k, b'),
        ("a + 1", 'no column "a"'),
        *((f"{name}(i)", f"the function {name} is not allowed") for name in ("rand", "sum", "explode", "raise_error")),
        *((f"{name}()", f"the function {name} is not allowed") for name in ("uuid", "now", "row_number")),
        ("assert_true(o)", "assert_true is not allowed"),
        ("java_method('java.lang.System', 'exit', 1)", "java_method is not allowed"),
        ("reflect('java.lang.System', 'exit', 1)", "reflect is not allowed"),
        ("current_timestamp", "no column"),
        ("(SELECT 1)", "no column"),
        ("sum(i) OVER ()", "sum is not allowed"),
        ("i; DROP TABLE x", "';"),
        ("i -- all", "no column"),
        ("s + 1", "string was given where a number is needed"),
        ("i = '5'", "CAST"),
        ("y + 1", "date was given"),
        ("'a\\n'", "cannot contain backslashes"),
        ("NULL", "which is not a column type"),
        ("i +", "not expected"),
        ("CAST(i AS array<int>)", "cannot cast to"),
        ("1e400", "range"),
        ("round(x, i)", "number of digits"),
        ("(" * 60 + "i" + ")" * 60, "nested"),
        ("i + " * 3000 + "i", "longer"),
    ],
)
def test_what_is_not_allowed_is_refused_at_the_start(spark: Spark, formula: str, told: str) -> None:
    with pytest.raises(SettingsError) as refused:
        _compiled(spark, a=formula)
    message = refused.value.message
    assert message.startswith("streams.trades.calculated.a in tidelock.toml: ")
    assert told in message
    assert "Allowed: + - * /" in message
    assert refused.value.field == "streams.trades.calculated.a"
