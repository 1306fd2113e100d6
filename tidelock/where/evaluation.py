"""Evaluation of a filter for one row, by walking it: the plain meaning, to which faster ways are compared."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidelock.where.expressions import All, Bound, Either, Expression, IsNull, OneOf

_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def evaluate(expression: Expression, row: Mapping[str, Any]) -> bool | None:
    """True, false, or None for unknown.

    A row has, by column name, a str, int, float, Decimal, bool, date, or None; instants are int nanoseconds. A path
    must have a value of the kind it is compared with.
    """
    match expression:
        case IsNull(column=column, negated=negated):
            return (row[column] is None) != negated
        case OneOf(column=column, operands=operands, negated=negated):
            value = row[column]
            return None if value is None else (value in operands) != negated
        case Bound():
            return _within(expression, row[expression.column])
        case All(parts=parts):
            return _decided((evaluate(part, row) for part in parts), by=False)
        case Either(parts=parts):
            return _decided((evaluate(part, row) for part in parts), by=True)


def _within(bound: Bound, value: Any) -> bool | None:
    if value is None:
        return None
    if value != value:
        return bound.operator in (">", ">=")  # NaN is greater than every number, to Postgres and to Spark
    return _ORDERS[bound.operator](value, bound.operand)


def _decided(truths: Iterable[bool | None], *, by: bool) -> bool | None:
    """One `by` decides; without it one unknown is unknown."""
    unknown = False
    for truth in truths:
        if truth is by:
            return by
        unknown = unknown or truth is None
    return None if unknown else not by
