"""The parser of filters: from JSON to expressions, within limits, with errors that name the path to what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tidelock.columns import ColumnType, data_path
from tidelock.errors import RequestError
from tidelock.sections import shown
from tidelock.where.expressions import Bound, Expression, IsNull, Order, all_of, either, negation, one_of
from tidelock.where.operands import Operand, parse_operand, type_by_operand

#: levels of `_and`, `_or` and `_not` inside each other
DEPTH_MAX = 64
#: objects, conditions and operands in all
SIZE_MAX = 10_000
#: characters of a filter's JSON text, or of the texts in it
TEXT_LENGTH_MAX = 1 << 20

_LOGIC = ("_and", "_or", "_not")
_TOO_DEEP = f"nested too deeply; at most {DEPTH_MAX} levels are allowed"
_TOO_LARGE = f"too large; at most {SIZE_MAX} conditions and operands of {TEXT_LENGTH_MAX} characters are allowed"

#: called with every operand and its place before it is checked
Count = Callable[["FilterPath", object], None]

_ORDERS: dict[str, Order] = {"_gt": ">", "_lt": "<", "_gte": ">=", "_lte": "<="}
_OPERATORS = ("_eq", "_neq", *_ORDERS, "_in", "_nin", "_is_null")
_JSON = ColumnType("json")

_NAME_LENGTH_MAX = 100


def parse_where(
    given: Mapping[str, object] | str | bytes, columns: Mapping[str, ColumnType], *, paths: bool = False
) -> Expression:
    """A filter over columns, from an object whose numbers are exact (int, Decimal) or from JSON text.

    With `paths` names such as `data.a.b` are columns too. They have no type: the operand decides whether strings,
    numbers or booleans are compared. Raises InvalidFilter.
    """
    if isinstance(given, str | bytes):
        given = _decoded(given)
    return _Parser(columns, paths).expression(given, FilterPath(), 0)


class _Parser:
    """Walks one filter and counts what is in it."""

    def __init__(self, columns: Mapping[str, ColumnType], paths: bool) -> None:
        self._columns = columns
        self._paths = paths
        self._size = 0
        self._text_length = 0

    def expression(self, given: object, place: FilterPath, depth: int) -> Expression:
        if depth > DEPTH_MAX:
            raise place.invalid(_TOO_DEEP)
        self.count(place)
        members = place.members(given, 'an object such as {"price": {"_gt": 10}}')
        return all_of([self._member(name, value, place.member(name), depth) for name, value in members.items()])

    def count(self, place: FilterPath, operand: object = None) -> None:
        self._size += 1
        self._text_length += len(operand) if isinstance(operand, str) else 0
        if self._size > SIZE_MAX or self._text_length > TEXT_LENGTH_MAX:
            raise place.invalid(_TOO_LARGE)

    def _member(self, name: str, given: object, place: FilterPath, depth: int) -> Expression:
        match name:
            case "_and":
                return all_of(self._list(given, place, depth))
            case "_or":
                return either(self._list(given, place, depth))
            case "_not":
                return negation(self.expression(given, place, depth + 1))
            case _:
                return self._conditions(name, given, place)

    def _list(self, given: object, place: FilterPath, depth: int) -> list[Expression]:
        items = place.items(given, "a list of filters")
        return [self.expression(item, place.item(i), depth + 1) for i, item in enumerate(items)]

    def _conditions(self, column: str, given: object, place: FilterPath) -> Expression:
        """All that is said about one column."""
        type_ = self._type(column, place)
        operators = place.members(given, 'an object of operators such as {"_eq": 1}')
        conditions = []
        for operator, operand in operators.items():
            self.count(place)
            condition = Condition(column, type_, operator, place.member(operator), self.count)
            conditions.append(condition.read(operand))
        return all_of(conditions)

    def _type(self, column: str, place: FilterPath) -> ColumnType | None:
        """The type of a column; None for a path."""
        if (type_ := self._columns.get(column)) is not None:
            return type_
        if self._paths and data_path(column) is not None:
            return None
        available = ", ".join([*self._columns, *_LOGIC]) + ", or a path such as data.a.b" * self._paths
        raise place.invalid(f"there is no column {shown(column)}; available: {available}")


def _decoded(text: str | bytes) -> Any:
    if len(text) > TEXT_LENGTH_MAX:
        raise FilterPath().invalid(_TOO_LARGE)
    try:
        return json.loads(
            text, parse_int=_exact, parse_float=_exact, parse_constant=_refused, object_pairs_hook=_without_repetition
        )
    except RecursionError:
        raise FilterPath().invalid(_TOO_DEEP) from None
    except ValueError as error:
        raise FilterPath().invalid(f"this is not JSON: {error}") from None


def _exact(text: str) -> Decimal:
    try:
        return Decimal(text)
    except ArithmeticError:
        raise ValueError(f"{shown(text)} is not a number of a size that can be compared") from None


def _refused(text: str) -> object:
    raise ValueError(f"{text} is not a JSON number")


def _without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A duplicate member would silently drop a condition."""
    members: dict[str, object] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError(f"the member {shown(name)} appears twice")
        members[name] = value
    return members


@dataclass(frozen=True, slots=True)
class Condition:
    """One operator of one column."""

    column: str
    #: None: a path, compared as the operand's type
    type: ColumnType | None
    operator: str
    place: FilterPath
    count: Count

    def read(self, given: object) -> Expression:
        """The condition with the given operand. Raises InvalidFilter."""
        self._check_operator()
        match self.operator:
            case "_is_null":
                return self._is_null(given)
            case "_eq":
                return self._one_of([given], self.place)
            case "_neq":
                return negation(self._one_of([given], self.place))
            case "_in":
                return self._one_of(self._list(given))
            case "_nin":
                return negation(self._one_of(self._list(given)))
            case operator:
                type_ = self._type_for(given, self.place)
                return Bound(self.column, type_, _ORDERS[operator], self._operand(type_, given, self.place))

    def _check_operator(self) -> None:
        allowed = ("_is_null",) if self.type == _JSON else _OPERATORS
        if self.operator not in allowed:
            kind = "" if self.type is None else f", which is {self.type}"
            message = f'is not an operator of column "{self.column}"{kind}; allowed: {" ".join(allowed)}'
            raise self.place.invalid(f"{shown(self.operator)} {message}")

    def _is_null(self, given: object) -> Expression:
        if not isinstance(given, bool):
            raise self.place.invalid(f'_is_null of column "{self.column}" must be true or false, not {shown(given)}')
        return IsNull(self.column, self.type or _JSON, negated=not given)

    def _list(self, given: object) -> list[object]:
        return list(self.place.items(given, f'a list of values of column "{self.column}"'))

    def _one_of(self, items: list[object], single: FilterPath | None = None) -> Expression:
        places = [single or self.place.item(i) for i in range(len(items))]
        type_ = self._type_for(items[0], places[0]) if items else _JSON
        operands = [self._operand(type_, item, place) for item, place in zip(items, places, strict=True)]
        return one_of(self.column, type_, operands)

    def _type_for(self, given: object, place: FilterPath) -> ColumnType:
        if (type_ := self.type or type_by_operand(given)) is not None:
            return type_
        if given is None:
            raise self._null(place)
        allowed = "a string, an exact number, true or false"
        raise place.invalid(f'column "{self.column}" is compared with {allowed}; {shown(given)} is not allowed')

    def _operand(self, type_: ColumnType, given: object, place: FilterPath) -> Operand:
        self.count(place, given)
        if given is None:
            raise self._null(place)
        try:
            return parse_operand(type_, given)
        except ValueError as error:
            takes = f'column "{self.column}" is {type_}, so {self.operator} takes {error}'
            raise place.invalid(f"{takes}; {shown(given)} is not allowed") from None

    def _null(self, place: FilterPath) -> Exception:
        return place.invalid(f'a comparison with null is never true; use _is_null for column "{self.column}"')


class InvalidFilter(RequestError):
    """A filter that does not fit its columns; `field` is the place in it."""

    code = "invalid_definition"
    http_status = 422


@dataclass(frozen=True, slots=True)
class FilterPath:
    """A path into a filter; "" is the filter itself."""

    path: str = ""

    def member(self, name: str) -> FilterPath:
        short = name if len(name) <= _NAME_LENGTH_MAX else name[:_NAME_LENGTH_MAX] + "..."
        return FilterPath(f"{self.path}.{short}" if self.path else short)

    def item(self, index: int) -> FilterPath:
        return FilterPath(f"{self.path}[{index}]")

    def invalid(self, message: str) -> InvalidFilter:
        return InvalidFilter(f"{self.path or 'the filter'}: {message}", field=self.path or None)

    def members(self, given: object, expected: str) -> Mapping[str, object]:
        """What is there, if it is an object."""
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise self.invalid(f"{_kind(given)} is not allowed; it must be {expected}")
        return given

    def items(self, given: object, expected: str) -> Sequence[object]:
        """What is there, if it is a list."""
        if not isinstance(given, list | tuple):
            raise self.invalid(f"{_kind(given)} is not allowed; it must be {expected}")
        return given


def _kind(given: object) -> str:
    match given:
        case Mapping():
            return "an object"
        case list() | tuple():
            return "a list"
        case None:
            return "null"
        case _:
            return shown(given)
