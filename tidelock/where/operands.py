"""Operands: the values a filter compares columns with, exact and of the column's own type.

An operand must be a value its column could hold. So no comparison ever needs a wider type, in which Spark would round,
and each value has one form.
"""

from __future__ import annotations

import math
import re
from datetime import date
from decimal import Decimal

from tidelock.columns import STRING, ColumnType
from tidelock.decimals import plain_decimal
from tidelock.instants import format_instant, parse_rfc3339

#: as in rows: integers and instants (nanoseconds) are int, doubles float
Operand = str | int | float | Decimal | bool | date

#: what a path such as `data.a.b` is compared as, which has no type of its own: the operand's kind decides
PATH_NUMBER = ColumnType("decimal", 38, 9)
PATH_BOOLEAN = ColumnType("boolean")

_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_BOUNDS = {"int": 2**31, "bigint": 2**63}
# More than any column holds; the digits of longer ones need not be looked at.
_BITS_MAX = 256


def parse_operand(column: ColumnType, given: object) -> Operand:
    """The column value represented by a JSON value. Raises ValueError with what is allowed."""
    try:
        operand = _parsed(column, given)
    except ValueError:
        operand = None
    if operand is None:
        raise ValueError(_allowed(column))
    return operand


def operand_form(column: ColumnType, operand: Operand) -> object:
    """The JSON value of an operand, from which `parse_operand` restores it."""
    if column.name == "timestamp":
        assert isinstance(operand, int)
        return format_instant(operand)
    match operand:
        case date():
            return operand.isoformat()
        case float():
            return Decimal(repr(operand))
        case _:
            return operand


def type_by_operand(given: object) -> ColumnType | None:
    """The type as which a path is compared with this operand; None if no comparison is possible."""
    match given:
        case str():
            return STRING
        case bool():
            return PATH_BOOLEAN
        case int() | Decimal():
            return PATH_NUMBER
        case _:
            return None


def _parsed(column: ColumnType, given: object) -> Operand | None:
    match column.name:
        case "string":
            return given if isinstance(given, str) and _is_text(given) else None
        case "int" | "bigint":
            return _whole(given, _BOUNDS[column.name], texts=column.name == "bigint")
        case "decimal":
            plain = _plain(given, column.precision - column.scale, column.scale, texts=True)
            return None if plain is None else Decimal(plain)
        case "double":
            return _double(given)
        case "boolean":
            return given if isinstance(given, bool) else None
        case "timestamp":
            return parse_rfc3339(given) if isinstance(given, str) else None
        case "date":
            return date.fromisoformat(given) if isinstance(given, str) and _DAY.fullmatch(given) else None
        case _:
            return None


def _is_text(given: str) -> bool:
    """Whether Postgres can hold it: no NUL, no lone surrogates."""
    return "\0" not in given and not any("\ud800" <= character <= "\udfff" for character in given)


def _plain(given: object, whole_digits: int, decimals: int, *, texts: bool) -> str | None:
    """A number's text without trailing zeros; None if it is not a number or has too many digits."""
    match given:
        case bool():
            return None
        case int():
            return plain_decimal(str(given), whole_digits, decimals) if given.bit_length() <= _BITS_MAX else None
        case Decimal():
            return plain_decimal(str(given), whole_digits, decimals)
        case str() if texts:
            return plain_decimal(given, whole_digits, decimals)
        case _:
            return None


def _whole(given: object, bound: int, *, texts: bool) -> int | None:
    plain = _plain(given, 19, 0, texts=texts)
    return int(plain) if plain is not None and -bound <= int(plain) < bound else None


def _double(given: object) -> float | None:
    if isinstance(given, bool) or not isinstance(given, int | float | Decimal):
        return None
    try:
        number = float(given)
    except (OverflowError, ValueError):
        return None
    # Adding 0.0 makes -0.0 the 0.0 it is equal to.
    return number + 0.0 if math.isfinite(number) else None


def _allowed(column: ColumnType) -> str:
    match column.name:
        case "string":
            return "a string without NUL or lone surrogates"
        case "int":
            return "a whole number from -2147483648 to 2147483647"
        case "bigint":
            return "a whole number from -9223372036854775808 to 9223372036854775807, or as a string"
        case "decimal":
            whole = column.precision - column.scale
            return f"a number with at most {whole} digits before and {column.scale} after the point, or as a string"
        case "double":
            return "a number in the range of a double"
        case "boolean":
            return "true or false"
        case "timestamp":
            return "an RFC 3339 timestamp of 1678 to 2261 such as 2026-01-31T23:59:59.5Z, to the nanosecond"
        case _:
            return "a day such as 2026-01-31"
