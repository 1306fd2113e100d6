"""The prefilter: which changes of a segment concern any of some filters, decided on whole columns before rows exist.

A range of the fold may have hundreds of thousands of changes, of which only a few are watched. Whatever passes is
evaluated again row by row: a prefilter may pass too much, never too little.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property, reduce

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.arrow import column
from tidelock.changes.segments import change_schema
from tidelock.tables import Table
from tidelock.views.branches import Branch
from tidelock.where import All, Bound, Either, Expression, IsNull, OneOf
from tidelock.where.operands import Operand

# Beyond this many, filters are not evaluated one by one, but by the columns they all compare for equality.
_FILTERS_MAX = 16
_COMPARISONS = {"<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}


class Prefilter:
    """A condition common to all changes that concern one of some filters. Created once, used by any thread."""

    def __init__(self, expressions: Collection[Expression], branches: Collection[Branch]) -> None:
        """Both belong to the same filters."""
        self._expressions = expressions if len(expressions) <= _FILTERS_MAX else ()
        self._branches = branches

    def apply(self, changes: pa.Table) -> pa.Table:
        """The changes whose old or new row may match a filter."""
        if not self._expressions and self._values is None:
            return changes
        sides = [_Rows(changes, side) for side in ("old", "new")]
        return changes.filter(_any([self._seen(rows) for rows in sides], changes.num_rows))

    @cached_property
    def _values(self) -> dict[str, frozenset[Operand | None]] | None:
        """Values by column, of which every row has one that any of the filters is true for; None: there are none."""
        values: dict[str, set[Operand | None]] = {}
        for branch in self._branches:
            if (name := _narrowest(branch)) is None:
                return None
            values.setdefault(name, set()).update(branch.equal[name])
        return {name: frozenset(found) for name, found in values.items()}

    def _seen(self, rows: _Rows) -> pa.Array:
        if self._expressions:
            return _any([_truth(expression, rows) for expression in self._expressions], len(rows))
        return _any([_equal(rows, name, values) for name, values in (self._values or {}).items()], len(rows))


def prefilter_of(expression: Expression) -> Prefilter:
    """The prefilter of one filter."""
    return Prefilter([expression], ())


def fits(changes: pa.Table, table: Table) -> bool:
    """Whether the changes have the table's types; those from before its definition changed may not."""
    known = change_schema(table.columns).field("new").type
    for side in ("old", "new"):
        for field in changes.schema.field(side).type:
            place = known.get_field_index(field.name)
            if place >= 0 and known.field(place).type != field.type:
                return False
    return True


class _Rows:
    """The old or new rows of changes, column by column."""

    def __init__(self, changes: pa.Table, side: str) -> None:
        self._tenants = column(changes, "tenant_id")
        self._rows = column(changes, side)
        self._exist = self._rows.is_valid()

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, name: str) -> pa.Array | None:
        """None: the segment is from before there was such a column."""
        if name == "tenant_id":
            return self._tenants
        if self._rows.type.get_field_index(name) < 0:
            return None
        return pc.struct_field(self._rows, name)

    @property
    def all(self) -> pa.Array:
        return self._exist

    def those(self, mask: pa.Array) -> pa.Array:
        """Of a mask over columns what is true and of a row that exists."""
        return pc.and_(self._exist, pc.fill_null(mask, False))


def _truth(expression: Expression, rows: _Rows) -> pa.Array:
    """Where a filter is true. Negations are at the comparisons, so what is unknown need not be told from false."""
    match expression:
        case All(parts=parts):
            return reduce(pc.and_, (_truth(part, rows) for part in parts), rows.all)
        case Either(parts=parts):
            return _any([_truth(part, rows) for part in parts], len(rows))
        case _:
            values = rows.column(expression.column)
            return rows.all if values is None else rows.those(_compared(expression, values))


def _compared(condition: IsNull | OneOf | Bound, values: pa.Array) -> pa.Array:
    match condition:
        case IsNull(negated=negated):
            return values.is_valid() if negated else values.is_null()
        case OneOf(operands=operands, negated=negated):
            found = _one_of(values, operands)
            return pc.and_(values.is_valid(), pc.invert(found)) if negated else found
        case Bound(operator=operator, operand=operand):
            found = _COMPARISONS[operator](values, pa.scalar(operand, values.type))
            # NaN is greater than every number here, in Arrow it is not.
            return pc.or_(found, pc.is_nan(values)) if pa.types.is_floating(values.type) and ">" in operator else found


def _one_of(values: pa.Array, operands: Iterable[Operand]) -> pa.Array:
    if pa.types.is_floating(values.type):
        # Among floats a set tells 0.0 from -0.0.
        return _any([pc.equal(values, pa.scalar(operand, values.type)) for operand in operands], len(values))
    return pc.is_in(values, value_set=pa.array(operands, values.type))


def _equal(rows: _Rows, name: str, operands: frozenset[Operand | None]) -> pa.Array:
    values = rows.column(name)
    if values is None:
        return rows.all
    found = _one_of(values, [operand for operand in operands if operand is not None])
    return rows.those(pc.or_(found, values.is_null()) if None in operands else found)


def _any(masks: list[pa.Array], length: int) -> pa.Array:
    return reduce(pc.or_, masks) if masks else pa.repeat(False, length)


def _narrowest(branch: Branch) -> str | None:
    """The column with the fewest values; a tenant has more rows than most values."""
    return min(branch.equal, key=lambda name: (name == "tenant_id", len(branch.equal[name])), default=None)
