"""Branches of a filter: conjunctions of conditions that can be looked up; where the filter is true, so is
one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from math import prod
from typing import Any

from tidelock.where import All, Bound, Either, Expression, IsNull, OneOf
from tidelock.where.operands import Operand

#: branches of one filter; alternatives that would exceed this are ignored
BRANCHES_MAX = 256
#: combinations of values of a branch, unless one column alone has more
COMBINATIONS_MAX = 1_024
#: combinations, or conditions, of all branches of a filter: the cost to add and to keep
PLACES_MAX = 20_000

_Atom = OneOf | Bound | IsNull


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """Values of a column between two bounds; None: without an end."""

    column: str
    low: Operand | None = None
    low_included: bool = False
    high: Operand | None = None
    high_included: bool = False


@dataclass(frozen=True, slots=True)
class Branch:
    """Conditions on a row without which a branch is not true."""

    #: column, in alphabetical order -> the values it may have, None for null
    equal: Mapping[str, frozenset[Operand | None]] = field(default_factory=dict)
    range: ColumnRange | None = None

    @property
    def places(self) -> int:
        """How many combinations of values it lies at."""
        return prod(map(len, self.equal.values()))


def branches_of(expression: Expression) -> list[Branch]:
    """The branches of a filter; none if no row can match."""
    found = _branches(_conjunctions(expression))
    if sum(branch.places for branch in found) > PLACES_MAX:
        parts = expression.parts if isinstance(expression, All) else ()
        found = _branches([tuple(part for part in parts if not isinstance(part, All | Either))])
    return [Branch()] if Branch() in found else found


def _branches(conjunctions: Iterable[tuple[_Atom, ...]]) -> list[Branch]:
    found = map(_branch, conjunctions)
    return [branch for branch in found if branch is not None]


def _conjunctions(expression: Expression) -> list[tuple[_Atom, ...]]:
    match expression:
        case Either(parts=parts):
            found = [conjunction for part in parts for conjunction in _conjunctions(part)]
            return found if len(found) <= BRANCHES_MAX else [()]
        case All(parts=parts):
            return _distributed([_conjunctions(part) for part in parts])
        case _:
            return [(expression,)]


def _distributed(alternatives: Iterable[list[tuple[_Atom, ...]]]) -> list[tuple[_Atom, ...]]:
    """Every choice of one conjunction of each; alternatives that would make too many are ignored."""
    taken: list[list[tuple[_Atom, ...]]] = []
    choices, length = 1, 0
    for each in sorted(alternatives, key=len):
        longer = length + max(map(len, each), default=0)
        more = choices * len(each)
        if len(each) == 1 or (more <= BRANCHES_MAX and more * longer <= PLACES_MAX):
            taken.append(each)
            choices, length = more, longer
    return [tuple(chain.from_iterable(choice)) for choice in product(*taken)]


def _branch(atoms: Iterable[_Atom]) -> Branch | None:
    """None where the atoms contradict each other."""
    equal: dict[str, frozenset[Operand | None]] = {}
    bounds: dict[str, list[Bound]] = {}
    for atom in atoms:
        match atom:
            case Bound(column=column):
                bounds.setdefault(column, []).append(atom)
            case OneOf(column=column, operands=operands, negated=False):
                equal[column] = equal.get(column, frozenset(operands)) & frozenset(operands)
            case IsNull(column=column, negated=False):
                equal[column] = equal.get(column, frozenset([None])) & {None}
    if not all(equal.values()):
        return None
    equal = _few(equal)
    ranges = [_range(column, found) for column, found in bounds.items() if column not in equal]
    # Two bounds usually select less than one.
    ranges.sort(key=lambda found: (found.low is None) + (found.high is None))
    return Branch(equal, ranges[0] if ranges else None)


def _few(equal: dict[str, frozenset[Operand | None]]) -> dict[str, frozenset[Operand | None]]:
    """Columns whose combinations are not too many. A long list comes first: its column must have many values."""
    single = {column: values for column, values in equal.items() if len(values) == 1}
    several = sorted((column for column in equal if column not in single), key=lambda column: -len(equal[column]))
    places = 1
    for column in several:
        if places == 1 or places * len(equal[column]) <= COMBINATIONS_MAX:
            single[column] = equal[column]
            places *= len(equal[column])
    return {column: single[column] for column in sorted(single)}


def _range(column: str, bounds: Sequence[Bound]) -> ColumnRange:
    """What is common to all bounds of a column, where at equal operands the one without them is narrower."""
    lows = [(_any(bound.operand), bound.operator == ">") for bound in bounds if bound.operator in (">", ">=")]
    highs = [(_any(bound.operand), bound.operator == "<=") for bound in bounds if bound.operator in ("<", "<=")]
    low, excluded = max(lows, default=(None, True))
    high, included = min(highs, default=(None, False))
    return ColumnRange(column, low, not excluded, high, included)


def _any(operand: Operand) -> Any:
    """Operands of one column can be ordered, which their types do not express."""
    return operand
