"""Aggregates: what a window may select, a whitelist."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidelock.columns import ColumnType

FUNCTIONS = ("count", "sum", "min", "max", "avg", "first", "last")
ALLOWED = "count(*) or one of count sum min max avg first last over a column, such as sum(quantity)"

_CALL = re.compile(r"\s*([A-Za-z]+)\s*\(\s*(\S+)\s*\)\s*")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A function over a column."""

    #: one of `FUNCTIONS`
    function: str
    #: None: `count(*)`, every row
    column: str | None

    def __str__(self) -> str:
        return f"{self.function}({self.column or '*'})"

    def takes(self, column: ColumnType) -> bool:
        """Whether the function has a meaning for that type."""
        if self.function in ("sum", "avg"):
            return column.numeric
        return self.function not in ("min", "max") or column.name != "json"


def parse_aggregate(text: str) -> Aggregate:
    """The aggregate a text names. Raises ValueError with what is allowed."""
    match = _CALL.fullmatch(text)
    if match is None or match[1].lower() not in FUNCTIONS:
        raise ValueError(ALLOWED)
    function, column = match[1].lower(), match[2]
    if column == "*" and function != "count":
        raise ValueError(f"{function} over a column; only count takes *")
    return Aggregate(function, None if column == "*" else column)
