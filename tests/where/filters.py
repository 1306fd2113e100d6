"""Random filters and rows to try them on, and other ways to write the same filter."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from random import Random
from typing import Any

from hypothesis import strategies as st

from tests.model import filters
from tests.model.values import instant_text
from tidelock.columns import ColumnType, parse_column_type

Filter = dict[str, Any]
Row = dict[str, Any]
#: column -> what a row may have and a filter compare with
Values = Mapping[str, list[Any]]

COLUMN_TYPES = {
    "s": "string",
    "i": "int",
    "b": "bigint",
    "p": "decimal(18,4)",
    "q": "decimal(38,9)",
    "f": "decimal(5,5)",
    "x": "double",
    "o": "boolean",
    "t": "timestamp",
    "y": "date",
    "j": "json",
}
COLUMNS: dict[str, ColumnType] = {name: parse_column_type(text) for name, text in COLUMN_TYPES.items()}

# Few values, so that rows and operands meet; among them what languages read differently: letter case and accents,
# both sides of the surrogates, quotes, escapes, and what looks like a parameter or a variable.
_TEXTS = [
    *["", " ", "a", "A", "b", "ab", "a b", "é", "e\u0301", "Z", "z", "_", "\uffff", "\U00010000", "\ue000\ue001"],
    *["'", "''", "\\", "\\'", "\\n", "\n", "\\u0041", "${env:HOME}", "$1", "%s", "%%", "{}", "{x}", '"', "?", ":a"],
    *["-- a", "/*", ";", "it's \\ 100% ${a} {b}", "NULL", "true", "1"],
]
_VALUES: Values = {
    "s": _TEXTS,
    "i": [-(2**31), -1, 0, 1, 2, 2**31 - 1],
    "b": [-(2**63), -1, 0, 1, 2**53 + 1, 2**63 - 1],
    "p": [Decimal(text) for text in ("-1.5", "0", "0.0001", "1.5", "2", "99999999999999.9999")],
    "q": [
        Decimal(text) for text in ("-9.999999999", "0", "0.000000001", "1", "99999999999999999999999999999.999999999")
    ],
    "f": [Decimal(text) for text in ("-0.99999", "0", "0.00001", "0.5")],
    "x": [-1.7976931348623157e308, -0.1, 0.0, 5e-324, 0.1, 0.30000000000000004, 2.0, 1e22, 1.7976931348623157e308],
    "o": [False, True],
    "t": [-5, 0, 1_769_904_000_000_000_000, 1_769_904_000_000_000_001],
    "y": [date(1, 1, 1), date(1969, 12, 31), date(2026, 1, 31), date(9999, 12, 31)],
}
#: what rows may have beside values that operands can be
_ONLY_IN_ROWS: dict[str, list[Any]] = {"x": [float("nan"), float("inf"), float("-inf"), -0.0], "j": ["{}", "1"]}

_ORDERS = ("_eq", "_neq", "_gt", "_lt", "_gte", "_lte")


def rows(values: Values = _VALUES) -> st.SearchStrategy[Row]:
    columns = {
        name: st.sampled_from([None, *values.get(name, []), *_ONLY_IN_ROWS.get(name, [])]) for name in COLUMN_TYPES
    }
    return st.fixed_dictionaries(columns)


def where(values: Values = _VALUES) -> st.SearchStrategy[Filter]:
    """Filters with everything in them."""
    return st.recursive(_conditions(values), lambda inner: _nested(inner, values), max_leaves=8)


def any_values() -> st.SearchStrategy[Values]:
    """A few values of each column, any that it can have."""
    return st.fixed_dictionaries({name: st.lists(each, min_size=1, max_size=4) for name, each in _any_value().items()})


def _any_value() -> dict[str, st.SearchStrategy[Any]]:
    return {
        "s": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
        "i": st.integers(-(2**31), 2**31 - 1),
        "b": st.integers(-(2**63), 2**63 - 1),
        "p": _decimals(18, 4),
        "q": _decimals(38, 9),
        "f": _decimals(5, 5),
        "x": st.floats(allow_nan=False, allow_infinity=False),
        "o": st.booleans(),
        "t": st.integers(-92 * 10**17, 92 * 10**17),
        "y": st.dates(),
    }


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    return st.integers(1 - 10**precision, 10**precision - 1).map(lambda digits: Decimal(f"{digits}E-{scale}"))


def naive(given: Filter, row: Row) -> bool | None:
    """The truth of a filter as it is written, by the reference model."""
    return filters.truth(given, lambda name: (COLUMN_TYPES[name], row[name]))


def rewritten(given: Filter, random: Random) -> Filter:
    """The same filter, written in another way."""
    members = [_rewritten_member(name, value, random) for name, value in given.items()]
    random.shuffle(members)
    members += random.choices(members, k=random.randrange(2)) if members else []
    ways: list[Filter] = [{"_and": members}, {"_not": {"_or": [{"_not": member} for member in members]}}]
    names = [name for member in members for name in member]
    if len(set(names)) == len(names):
        ways.append({name: value for member in members for name, value in member.items()})
    return _wrapped(random.choice(ways), random)


def _wrapped(given: Filter, random: Random) -> Filter:
    ways: list[Filter] = [given, given, {"_and": [given]}, {"_or": [given]}, {"_not": {"_not": given}}]
    ways += [{"_and": [given, {}]}, {"_or": [given, {"_or": []}, given]}, {"_and": [{"_and": [given]}, {"_and": []}]}]
    return random.choice(ways)


def _rewritten_member(name: str, value: Any, random: Random) -> Filter:
    match name:
        case "_and" | "_or":
            parts = [rewritten(each, random) for each in value]
            random.shuffle(parts)
            return {name: parts}
        case "_not":
            return {name: rewritten(value, random)}
    conditions = [{name: _rewritten_condition(name, op, operand, random)} for op, operand in value.items()]
    random.shuffle(conditions)
    return conditions[0] if len(conditions) == 1 else {"_and": conditions}


def _rewritten_condition(name: str, operator: str, operand: Any, random: Random) -> Filter:
    match operator:
        case "_eq" | "_neq" if random.random() < 0.5:
            return {{"_eq": "_in", "_neq": "_nin"}[operator]: [respelled(name, operand, random)] * random.randint(1, 2)}
        case "_in" | "_nin":
            operands = [respelled(name, each, random) for each in operand]
            operands += random.choices(operands, k=random.randrange(2)) if operands else []
            random.shuffle(operands)
            return {operator: operands}
        case "_is_null":
            return {operator: operand}
    return {operator: respelled(name, operand, random)}


def respelled(name: str, operand: Any, random: Random) -> Any:
    """The same operand in other digits."""
    match COLUMNS[name].name:
        case "int":
            return random.choice([operand, Decimal(operand), Decimal(f"{operand}.00")])
        case "bigint" | "decimal":
            number = Decimal(operand)
            padded = f"{number:f}" + ("0" if "." in f"{number:f}" else ".0")
            return random.choice([operand, number, f"{number:f}", f"{number:E}", Decimal(padded), padded])
        case "timestamp":
            return random.choice([operand, operand.replace("Z", "+00:00"), operand.replace("T", "t")])
    return operand


def _conditions(values: Values) -> st.SearchStrategy[Filter]:
    return st.dictionaries(st.sampled_from(list(COLUMN_TYPES)), st.none(), max_size=2).flatmap(
        lambda names: st.fixed_dictionaries({name: _operators(name, values) for name in names})
    )


def _operators(name: str, values: Values) -> st.SearchStrategy[Filter]:
    choices: dict[str, st.SearchStrategy[Any]] = {"_is_null": st.booleans()}
    if name in values:
        operand = st.sampled_from([_operand(name, value) for value in values[name]])
        choices |= dict.fromkeys(_ORDERS, operand)
        choices |= dict.fromkeys(("_in", "_nin"), st.lists(operand, max_size=3))
    return st.lists(st.sampled_from(list(choices)), max_size=2, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({operator: choices[operator] for operator in names})
    )


def _operand(name: str, value: Any) -> Any:
    """A value of a row as JSON has it."""
    match COLUMNS[name].name:
        case "timestamp":
            return instant_text(value)
        case "date":
            return value.isoformat()
        case "double":
            return Decimal(repr(value))
    return value


def _nested(inner: st.SearchStrategy[Filter], values: Values) -> st.SearchStrategy[Filter]:
    logic = {"_and": st.lists(inner, max_size=3), "_or": st.lists(inner, max_size=3), "_not": inner}
    names = st.lists(st.sampled_from(list(logic)), min_size=1, max_size=2, unique=True)
    nested = names.flatmap(lambda chosen: st.fixed_dictionaries({name: logic[name] for name in chosen}))
    return st.tuples(nested, _conditions(values)).map(lambda both: both[1] | both[0])
