"""States: what is kept of the rows of an open window, so that more rows can be added and nothing is rounded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tidelock.columns import BIGINT, STRING, TIMESTAMP, ColumnType
from tidelock.definitions.aggregates import Aggregate

AMOUNT = ColumnType("decimal", 38, 9)


def result_type(aggregate: Aggregate, column: ColumnType | None) -> ColumnType:
    """The type of an aggregate over a column of that type; None: a path, which is a text."""
    match aggregate.function:
        case "count":
            return BIGINT
        case "sum" | "avg":
            return AMOUNT
    return column or STRING


def state_columns(aggregates: Sequence[Aggregate], types: Mapping[str, ColumnType]) -> dict[str, ColumnType]:
    """What is kept of them, numbered: the names of the results may be as long as Postgres allows."""
    return {
        name: type_
        for number, aggregate in enumerate(aggregates)
        for name, type_ in _state(number, aggregate, types.get(aggregate.column or ""))
    }


def _state(number: int, aggregate: Aggregate, type_: ColumnType | None) -> Iterator[tuple[str, ColumnType]]:
    if aggregate.function in ("sum", "avg"):
        yield f"sum_{number}", AMOUNT
    if aggregate.function in ("count", "avg"):
        yield f"count_{number}", BIGINT
    if aggregate.function in ("min", "max", "first", "last"):
        yield f"value_{number}", type_ or STRING
    if aggregate.function in ("first", "last"):
        yield f"time_{number}", TIMESTAMP
        yield f"sequence_{number}", BIGINT
