"""Numbers: what quantities are counted in. Whole numbers where every value of a range fits them, otherwise decimals.

A running aggregate of 64-bit numbers costs a fraction of one of decimals with 38 digits, and both are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.definitions import Meter
from tidelock.fold.arrow import column
from tidelock.fold.threads import each

_DECIMAL = pa.decimal128(38, 9)
#: decimal places that are tried
_SCALES = (0, 3, 6, 9)
_BOUND = Decimal(2**63 - 1)
#: columns of counters, and of what Spark makes of them, that are numbers
_COLUMNS = frozenset(
    "agg_sum agg_max agg_min agg_last value total adj_sum adj_max adj_min quantity amount".split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class Numbers:
    """How quantities are written in Spark: as decimals, or as whole numbers of their last decimal place."""

    #: decimal places that are made whole; None: decimals

    scale: int | None = None

    @property
    def type(self) -> str:
        return "DECIMAL(38,9)" if self.scale is None else "BIGINT"

    @property
    def zero(self) -> str:
        return "0BD" if self.scale is None else "0L"

    def written(self, quantity: str) -> str:
        """A decimal as such a number."""
        if self.scale is None:
            return quantity
        return f"CAST(CAST({quantity} AS DECIMAL(19,{self.scale})) * 1{'0' * self.scale}BD AS BIGINT)"

    def count(self, count: str) -> str:
        """A count as such a number."""
        return f"CAST({count} AS DECIMAL(38,9))" if self.scale is None else f"({count}) * 1{'0' * self.scale}L"

    def sum(self, left: str, right: str, sign: str = "+") -> str:
        """Exact: of two decimal(38,9) Spark would give up a decimal place."""
        if self.scale is not None:
            return f"({left} {sign} {right})"
        return f"CAST(CAST({left} AS DECIMAL(37,9)) {sign} CAST({right} AS DECIMAL(37,9)) AS DECIMAL(38,9))"

    def read(self, rows: pa.Table) -> pa.Table:
        """The rows with decimals again."""
        if self.scale is None:
            return rows
        scale, names = self.scale, [name for name in rows.column_names if name in _COLUMNS]
        whole = [column(rows, name) for name in names]
        made = each(lambda numbers: _decimals(numbers, scale), whole, rows.num_rows)
        for name, decimals in zip(names, made, strict=True):
            rows = rows.set_column(rows.column_names.index(name), name, decimals)
        return rows


WIDE = Numbers()

#: what has to be known of a range's entries to choose, as Spark SQL
EXTENT = "SELECT count(*) AS entries, max(quantity) AS greatest, min(quantity) AS least, " + ", ".join(
    f"bool_or(quantity <> CAST(CAST(quantity AS DECIMAL(38,{scale})) AS DECIMAL(38,9))) AS beyond_{scale}"
    for scale in _SCALES[:-1]
)


def narrowable(meters: Sequence[Meter]) -> bool:
    """Averages are divided, and groups are few: they stay decimals."""
    return not any(meter.aggregation == "avg" or meter.group_by for meter in meters)


def choose(extent: pa.Table, stored: pa.Table) -> Numbers:
    """The smallest numbers that hold every value of a range, stored ones, and all their sums."""
    (facts,) = extent.to_pylist()
    known = [column(stored, name) for name in stored.column_names if name in _COLUMNS]
    largest = max((_largest(values) for values in known), default=Decimal(0))
    span = max(abs(facts["greatest"] or 0), abs(facts["least"] or 0)) * facts["entries"] + 2 * largest
    for scale in _SCALES:
        if not facts.get(f"beyond_{scale}") and all(_fits(values, scale) for values in known):
            counted = facts["entries"] + max((_largest(column(stored, name)) for name in _COUNTS), default=0)
            return Numbers(scale) if max(span, counted * 2) * 10**scale < _BOUND else WIDE
    return WIDE


_COUNTS = ("agg_count", "adj_count")


def _largest(values: pa.Array) -> Decimal:
    bounds = pc.min_max(values).as_py()
    return Decimal(max(abs(bounds["min"] or 0), abs(bounds["max"] or 0)))


def _fits(values: pa.Array, scale: int) -> bool:
    try:
        values.cast(pa.decimal128(38, scale))
    except pa.ArrowInvalid:
        return False
    return True


def _decimals(numbers: pa.Array, scale: int) -> pa.Array:
    """Whole numbers as the decimals they stand for: the same 128 bits, with a point put in."""
    whole = numbers.cast(pa.decimal128(38, 0))
    placed = pa.Array.from_buffers(pa.decimal128(38, scale), len(whole), whole.buffers(), offset=whole.offset)
    return placed.cast(_DECIMAL)
