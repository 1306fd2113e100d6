"""Expressions: filters as values. Equal filters are equal expressions, however they were written.

Negations are pushed down to the comparisons, nested conjunctions and alternatives are flattened, sorted and
deduplicated, and `_eq` is an `_in` of one value. Each of these steps holds in three-valued logic too, where `a or not
a` is not true. So the result for a row does not change, unknown included, and views can be shared by equality.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tidelock.canonical import canonical_json
from tidelock.columns import ColumnType
from tidelock.where.operands import Operand, operand_form

Order = Literal["<", "<=", ">", ">="]

_OPPOSITE: dict[Order, Order] = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_NAMES: dict[Order, str] = {"<": "_lt", "<=": "_lte", ">": "_gt", ">=": "_gte"}


@dataclass(frozen=True, slots=True)
class _Node:
    #: canonical JSON, in the form a filter is written in
    text: str = field(init=False, repr=False, compare=False)

    def _seal(self, text: str) -> None:
        object.__setattr__(self, "text", text)


@dataclass(frozen=True, slots=True)
class IsNull(_Node):
    """Whether a column has no value; never unknown."""

    column: str
    type: ColumnType
    negated: bool

    def __post_init__(self) -> None:
        self._seal(canonical_json({self.column: {"_is_null": not self.negated}}))

    @property
    def used_columns(self) -> frozenset[str]:
        return frozenset({self.column})


@dataclass(frozen=True, slots=True)
class OneOf(_Node):
    """Whether a column is equal to one of the operands: `_eq`, `_in`, and negated `_neq`, `_nin`."""

    column: str
    type: ColumnType
    #: at least one, sorted, each once
    operands: tuple[Operand, ...]
    negated: bool

    def __post_init__(self) -> None:
        forms = [operand_form(self.type, operand) for operand in self.operands]
        if len(forms) == 1:
            condition = {"_neq" if self.negated else "_eq": forms[0]}
        else:
            condition = {"_nin" if self.negated else "_in": forms}
        self._seal(canonical_json({self.column: condition}))

    @property
    def used_columns(self) -> frozenset[str]:
        return frozenset({self.column})


@dataclass(frozen=True, slots=True)
class Bound(_Node):
    """Whether a column lies on one side of an operand."""

    column: str
    type: ColumnType
    operator: Order
    operand: Operand

    def __post_init__(self) -> None:
        form = operand_form(self.type, self.operand)
        self._seal(canonical_json({self.column: {_NAMES[self.operator]: form}}))

    @property
    def used_columns(self) -> frozenset[str]:
        return frozenset({self.column})


@dataclass(frozen=True, slots=True)
class All(_Node):
    """A conjunction; of nothing, it is true."""

    parts: tuple[Expression, ...]

    def __post_init__(self) -> None:
        self._seal('{"_and":[' + ",".join(part.text for part in self.parts) + "]}")

    @property
    def used_columns(self) -> frozenset[str]:
        return frozenset().union(*(part.used_columns for part in self.parts))


@dataclass(frozen=True, slots=True)
class Either(_Node):
    """An alternative; of nothing, it is false."""

    parts: tuple[Expression, ...]

    def __post_init__(self) -> None:
        self._seal('{"_or":[' + ",".join(part.text for part in self.parts) + "]}")

    @property
    def used_columns(self) -> frozenset[str]:
        return frozenset().union(*(part.used_columns for part in self.parts))


Expression: TypeAlias = IsNull | OneOf | Bound | All | Either

TRUE = All(())
FALSE = Either(())


def one_of(column: str, type_: ColumnType, operands: Iterable[Operand]) -> Expression:
    values = tuple(sorted(set(operands)))
    return OneOf(column, type_, values, negated=False) if values else FALSE


def negation(expression: Expression) -> Expression:
    match expression:
        case IsNull(column=column, type=type_, negated=negated):
            return IsNull(column, type_, not negated)
        case OneOf(column=column, type=type_, operands=operands, negated=negated):
            return OneOf(column, type_, operands, not negated)
        case Bound(column=column, type=type_, operator=operator, operand=operand):
            return Bound(column, type_, _OPPOSITE[operator], operand)
        case All(parts=parts):
            return either(map(negation, parts))
        case Either(parts=parts):
            return all_of(map(negation, parts))


def all_of(parts: Iterable[Expression]) -> Expression:
    return _combined(All, FALSE, parts)


def either(parts: Iterable[Expression]) -> Expression:
    return _combined(Either, TRUE, parts)


def _combined(kind: type[All | Either], absorbing: Expression, parts: Iterable[Expression]) -> Expression:
    """The parts under one kind of node; `absorbing` decides alone, even if another part is unknown."""
    flat: list[Expression] = []
    for part in parts:
        flat += part.parts if isinstance(part, kind) else (part,)
    if absorbing in flat:
        return absorbing
    by_text = {part.text: part for part in _merged(flat, negated=kind is All)}
    if len(by_text) == 1:
        return next(iter(by_text.values()))
    return kind(tuple(by_text[text] for text in sorted(by_text)))


def _merged(parts: list[Expression], *, negated: bool) -> Iterator[Expression]:
    """Alternatives over values of one column become one `_in`; exclusions in a conjunction become one `_nin`."""
    operands: dict[tuple[str, ColumnType], set[Operand]] = {}
    for part in parts:
        if isinstance(part, OneOf) and part.negated == negated:
            operands.setdefault((part.column, part.type), set()).update(part.operands)
        else:
            yield part
    for (column, type_), values in operands.items():
        yield OneOf(column, type_, tuple(sorted(values)), negated)
