"""The parser of filters: from JSON to expressions, within limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from tidelock.columns import ColumnType, data_path
from tidelock.sections import shown
from tidelock.where.conditions import Condition
from tidelock.where.expressions import Expression, all_of, either, negation
from tidelock.where.places import Place

#: levels of `_and`, `_or` and `_not` inside each other
DEPTH_MAX = 64
#: objects, conditions and operands in all
SIZE_MAX = 10_000
#: characters of a filter's JSON text, or of the texts in it
TEXT_LENGTH_MAX = 1 << 20

_LOGIC = ("_and", "_or", "_not")
_TOO_DEEP = f"nested too deeply; at most {DEPTH_MAX} levels are allowed"
_TOO_LARGE = f"too large; at most {SIZE_MAX} conditions and operands of {TEXT_LENGTH_MAX} characters are allowed"


def parse_where(
    given: Mapping[str, object] | str | bytes, columns: Mapping[str, ColumnType], *, paths: bool = False
) -> Expression:
    """A filter over columns, from an object whose numbers are exact (int, Decimal) or from JSON text.

    With `paths` names such as `data.a.b` are columns too. They have no type: the operand decides whether texts, numbers
    or truth values are compared. Raises InvalidFilter.
    """
    if isinstance(given, str | bytes):
        given = _decoded(given)
    return _Parser(columns, paths).expression(given, Place(), 0)


class _Parser:
    """Walks one filter and counts what is in it."""

    def __init__(self, columns: Mapping[str, ColumnType], paths: bool) -> None:
        self._columns = columns
        self._paths = paths
        self._size = 0
        self._text_length = 0

    def expression(self, given: object, place: Place, depth: int) -> Expression:
        if depth > DEPTH_MAX:
            raise place.invalid(_TOO_DEEP)
        self.count(place)
        members = place.members(given, 'an object such as {"price": {"_gt": 10}}')
        return all_of([self._member(name, value, place.member(name), depth) for name, value in members.items()])

    def count(self, place: Place, operand: object = None) -> None:
        self._size += 1
        self._text_length += len(operand) if isinstance(operand, str) else 0
        if self._size > SIZE_MAX or self._text_length > TEXT_LENGTH_MAX:
            raise place.invalid(_TOO_LARGE)

    def _member(self, name: str, given: object, place: Place, depth: int) -> Expression:
        match name:
            case "_and":
                return all_of(self._list(given, place, depth))
            case "_or":
                return either(self._list(given, place, depth))
            case "_not":
                return negation(self.expression(given, place, depth + 1))
            case _:
                return self._conditions(name, given, place)

    def _list(self, given: object, place: Place, depth: int) -> list[Expression]:
        items = place.items(given, "a list of filters")
        return [self.expression(item, place.item(i), depth + 1) for i, item in enumerate(items)]

    def _conditions(self, column: str, given: object, place: Place) -> Expression:
        """All that is said about one column."""
        type_ = self._type(column, place)
        operators = place.members(given, 'an object of operators such as {"_eq": 1}')
        conditions = []
        for operator, operand in operators.items():
            self.count(place)
            condition = Condition(column, type_, operator, place.member(operator), self.count)
            conditions.append(condition.read(operand))
        return all_of(conditions)

    def _type(self, column: str, place: Place) -> ColumnType | None:
        """The type of a column; None for a path."""
        if (type_ := self._columns.get(column)) is not None:
            return type_
        if self._paths and data_path(column) is not None:
            return None
        available = ", ".join([*self._columns, *_LOGIC]) + ", or a path such as data.a.b" * self._paths
        raise place.invalid(f"there is no column {shown(column)}; available: {available}")


def _decoded(text: str | bytes) -> Any:
    if len(text) > TEXT_LENGTH_MAX:
        raise Place().invalid(_TOO_LARGE)
    try:
        return json.loads(
            text, parse_int=_exact, parse_float=_exact, parse_constant=_refused, object_pairs_hook=_without_repetition
        )
    except RecursionError:
        raise Place().invalid(_TOO_DEEP) from None
    except ValueError as error:
        raise Place().invalid(f"it is not JSON: {error}") from None


def _exact(text: str) -> Decimal:
    try:
        return Decimal(text)
    except ArithmeticError:
        raise ValueError(f"{shown(text)} is not a number of a size that can be compared") from None


def _refused(text: str) -> object:
    raise ValueError(f"{text} is not a number of JSON")


def _without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A member that is there twice would drop a condition without a word."""
    members: dict[str, object] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError(f"the member {shown(name)} is there twice")
        members[name] = value
    return members
