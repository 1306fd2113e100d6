"""Filters on rows in Python: evaluated by walking the expression, which defines the meaning, and compiled, which gives
the same result many times faster.

Negations occur at comparisons only, so a conjunction is true exactly if all its parts are, and an alternative if one
is: false and unknown need not be distinguished.

The compiled text contains only our own names; columns and operands are passed as values. So no part of a filter is ever
executed as code, and filters that differ only in these share the compiled code.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from tidelock.where.expressions import All, Bound, Either, Expression, IsNull, OneOf

_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

Matches = Callable[[Mapping[str, Any]], bool]

#: how many compiled texts are cached, and how long one may be
_KEPT = 1_024
_KEPT_LENGTH_MAX = 4_096
#: parts of a node that are compiled together: thousands at once would take long, and equal chunks are often cached
_PARTS_MAX = 32


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


def compile_where(expression: Expression) -> Matches:
    """A function that returns whether the filter is true of a row. Rows are as for `evaluate`."""
    return _compiled("and", [expression])


def _within(bound: Bound, value: Any) -> bool | None:
    if value is None:
        return None
    if value != value:
        return bound.operator in (">", ">=")  # NaN is greater than every number, to Postgres and to Spark
    return _ORDERS[bound.operator](value, bound.operand)


def _decided(truths: Iterable[bool | None], *, by: bool) -> bool | None:
    """One `by` decides; otherwise one unknown makes the result unknown."""
    unknown = False
    for truth in truths:
        if truth is by:
            return by
        unknown = unknown or truth is None
    return None if unknown else not by


def _compiled(word: Literal["and", "or"], parts: Sequence[Expression]) -> Matches:
    writer = _Writer()
    condition = writer.joined(word, parts)
    names = ",".join(f"v{number}" for number in range(len(writer.values)))
    text = f"lambda {names}:lambda row:{condition}"
    maker = _kept if len(text) <= _KEPT_LENGTH_MAX else _made
    return maker(text)(*writer.values)


def _made(text: str) -> Callable[..., Matches]:
    maker: Callable[..., Matches] = eval(text, {"__builtins__": {}})
    return maker


_kept = lru_cache(_KEPT)(_made)


class _Writer:
    """Writes a condition as Python. Foreign values get names, `v0` and so on, and are passed separately."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def joined(self, word: Literal["and", "or"], parts: Sequence[Expression]) -> str:
        if len(parts) > _PARTS_MAX:
            chunks = [parts[start : start + _PARTS_MAX] for start in range(0, len(parts), _PARTS_MAX)]
            written = [f"{self._named(_compiled(word, chunk))}(row)" for chunk in chunks]
        else:
            written = [self._written(part) for part in parts]
        return written[0] if len(written) == 1 else f"({f' {word} '.join(written)})"

    def _written(self, node: Expression) -> str:
        match node:
            case All(parts=()):
                return "True"
            case Either(parts=()):
                return "False"
            case All(parts=parts):
                return self.joined("and", parts)
            case Either(parts=parts):
                return self.joined("or", parts)
            case IsNull(column=column, negated=negated):
                return f"row[{self._named(column)}] is {'not ' if negated else ''}None"
            case OneOf():
                return self._membership(node)
            case Bound():
                return self._bound(node)

    def _membership(self, node: OneOf) -> str:
        single = len(node.operands) == 1
        column = self._named(node.column)
        operand = self._named(node.operands[0] if single else frozenset(node.operands))
        if node.negated:
            return f"((value:=row[{column}]) is not None and value {'!=' if single else 'not in'} {operand})"
        return f"row[{column}] {'==' if single else 'in'} {operand}"

    def _bound(self, node: Bound) -> str:
        column, operand = self._named(node.column), self._named(node.operand)
        comparison = f"value{node.operator}{operand}"
        if node.type.name == "double" and node.operator in (">", ">="):
            # NaN is greater than every number, to Postgres and to Spark; to Python it compares with nothing.
            comparison = f"not value{'<=' if node.operator == '>' else '<'}{operand}"
        return f"((value:=row[{column}]) is not None and {comparison})"

    def _named(self, value: Any) -> str:
        self.values.append(value)
        return f"v{len(self.values) - 1}"
