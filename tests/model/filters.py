"""Filters, evaluated as they are written: no canonical form, three-valued logic spelled out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

from tests.model.values import Misfit, read

Truth = bool | None
#: name of a column -> its type and value; a path has no type, and its value is a text
Lookup = Callable[[str], tuple[str | None, Any]]


def truth(where: Mapping[str, Any], lookup: Lookup) -> Truth:
    return conjunction(_member(name, value, lookup) for name, value in where.items())


def conjunction(truths: Iterable[Truth]) -> Truth:
    found = list(truths)
    if False in found:
        return False
    return None if None in found else True


def alternative(truths: Iterable[Truth]) -> Truth:
    found = list(truths)
    if True in found:
        return True
    return None if None in found else False


def negation(found: Truth) -> Truth:
    return None if found is None else not found


def _member(name: str, value: Any, lookup: Lookup) -> Truth:
    match name:
        case "_and":
            return conjunction(truth(each, lookup) for each in value)
        case "_or":
            return alternative(truth(each, lookup) for each in value)
        case "_not":
            return negation(truth(value, lookup))
    type_, found = lookup(name)
    return conjunction(_condition(operator, type_, found, operand) for operator, operand in value.items())


def _condition(operator: str, type_: str | None, value: Any, operand: Any) -> Truth:
    match operator:
        case "_is_null":
            return (value is None) is operand
        case "_in":
            return alternative(_compared("_eq", type_, value, each) for each in operand)
        case "_nin":
            return conjunction(_compared("_neq", type_, value, each) for each in operand)
        case _:
            return _compared(operator, type_, value, operand)


def _compared(operator: str, type_: str | None, value: Any, operand: Any) -> Truth:
    if type_ is None:
        type_ = _type_by_operand(operand)
        value = _as(type_, value)
    if value is None:
        return None
    left, right = _rank(value), _rank(read(type_, _text(operand)))
    match operator:
        case "_eq":
            return left == right
        case "_neq":
            return left != right
        case "_gt":
            return left > right
        case "_gte":
            return left >= right
        case "_lt":
            return left < right
    assert operator == "_lte"
    return left <= right


def _type_by_operand(operand: Any) -> str:
    if isinstance(operand, bool):
        return "boolean"
    return "string" if isinstance(operand, str) else "decimal(38,9)"


def _as(type_: str, content: str | None) -> Any:
    """Choice: what a path leads to is null where it is not of the operand's kind; it is no error."""
    try:
        return None if content is None else read(type_, content)
    except Misfit:
        return None


def _rank(value: Any) -> tuple[int, Any]:
    """NaN is equal to itself and above all numbers, as in Postgres and Spark."""
    return (1, 0) if isinstance(value, float) and math.isnan(value) else (0, value)


def _text(operand: Any) -> str:
    if isinstance(operand, bool):
        return "true" if operand else "false"
    return str(operand) if isinstance(operand, int | Decimal) else operand
