"""Conditions: the operators of one column, with operands of its type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidelock.columns import ColumnType
from tidelock.sections import shown
from tidelock.where.expressions import Bound, Expression, IsNull, Order, negation, one_of
from tidelock.where.operands import Operand, parse_operand, type_by_operand
from tidelock.where.places import Place

#: told of every operand and its place before it is looked at
Count = Callable[[Place, object], None]

_ORDERS: dict[str, Order] = {"_gt": ">", "_lt": "<", "_gte": ">=", "_lte": "<="}
_OPERATORS = ("_eq", "_neq", *_ORDERS, "_in", "_nin", "_is_null")
_JSON = ColumnType("json")


@dataclass(frozen=True, slots=True)
class Condition:
    """One operator of one column."""

    column: str
    #: None: a path, which is compared as what the operand is
    type: ColumnType | None
    operator: str
    place: Place
    count: Count

    def read(self, given: object) -> Expression:
        """The condition with what is given as its operand. Raises InvalidFilter."""
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
            raise self.place.invalid(f'_is_null of column "{self.column}" takes true or false, not {shown(given)}')
        return IsNull(self.column, self.type or _JSON, negated=not given)

    def _list(self, given: object) -> list[object]:
        return list(self.place.items(given, f'a list of values of column "{self.column}"'))

    def _one_of(self, items: list[object], single: Place | None = None) -> Expression:
        places = [single or self.place.item(i) for i in range(len(items))]
        type_ = self._type_for(items[0], places[0]) if items else _JSON
        operands = [self._operand(type_, item, place) for item, place in zip(items, places, strict=True)]
        return one_of(self.column, type_, operands)

    def _type_for(self, given: object, place: Place) -> ColumnType:
        if (type_ := self.type or type_by_operand(given)) is not None:
            return type_
        if given is None:
            raise self._null(place)
        allowed = "a text, an exact number or true or false"
        raise place.invalid(f'column "{self.column}" is compared with {allowed}; {shown(given)} is none')

    def _operand(self, type_: ColumnType, given: object, place: Place) -> Operand:
        self.count(place, given)
        if given is None:
            raise self._null(place)
        try:
            return parse_operand(type_, given)
        except ValueError as error:
            takes = f'column "{self.column}" is {type_}, so {self.operator} takes {error}'
            raise place.invalid(f"{takes}; {shown(given)} is not allowed") from None

    def _null(self, place: Place) -> Exception:
        return place.invalid(f'nothing compares with null; for that column "{self.column}" has _is_null')
