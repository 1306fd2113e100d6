"""Aggregates: what a window may select, a whitelist."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidelock.columns import ColumnType

#: by name, of a hundred values the rank of the one that it is
PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}
FUNCTIONS = ("count", "sum", "min", "max", "avg", "first", "last", "unique_count", *PERCENTILES)
ALLOWED = f"count(*) or one of {' '.join(FUNCTIONS)} over a column, such as sum(quantity)"

#: of sums and averages, and so of the decimals that can be added up without loss
AMOUNT_DECIMALS = 9

_CALL = re.compile(r"\s*([A-Za-z_0-9]+)\s*\(\s*(\S+)\s*\)\s*")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A function over a column."""

    #: one of `FUNCTIONS`
    function: str
    #: None: `count(*)`, every row
    column: str | None

    def __str__(self) -> str:
        return f"{self.function}({self.column or '*'})"

    def objection(self, column: ColumnType) -> str | None:
        """Why the function cannot be over a column of that type; None: it can."""
        added = self.function in ("sum", "avg")
        calculates = added or self.function in PERCENTILES
        compares = self.function in ("min", "max", "unique_count")
        if (calculates and not column.numeric) or (compares and column.name == "json"):
            return f'{self.function} has no meaning for column "{self.column}", which is {column}'
        if self.function == "unique_count" and column.name == "double":
            return f'unique_count needs values with one text, and column "{self.column}" is {column}'
        if added and column.name == "decimal" and column.scale > AMOUNT_DECIMALS:
            return (
                f'{self.function} is exact to {AMOUNT_DECIMALS} decimals, and column "{self.column}" is {column}; '
                f"add up a column with fewer, or a calculated one, CAST(... AS DECIMAL(28,{AMOUNT_DECIMALS}))"
            )
        return None


def parse_aggregate(text: str) -> Aggregate:
    """The aggregate a text names. Raises ValueError with what is allowed."""
    match = _CALL.fullmatch(text)
    if match is None or match[1].lower() not in FUNCTIONS:
        raise ValueError(ALLOWED)
    function, column = match[1].lower(), match[2]
    if column == "*" and function != "count":
        raise ValueError(f"{function} over a column; only count takes *")
    return Aggregate(function, None if column == "*" else column)
