"""States: what is kept of the rows of an open window, so that more rows can be added and nothing is rounded.

A state is some columns, numbered as the window selects them. One row has a state, as many have: states are merged, in
Spark or in Arrow, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.columns import BIGINT, STRING, TIMESTAMP, ColumnType
from tidelock.definitions.windows import Aggregate
from tidelock.fold.arrow import column

AMOUNT = ColumnType("decimal", 38, 9)

_EXACT = Context(prec=76, rounding=ROUND_HALF_UP)
_NINE_DECIMALS = Decimal("1e-9")
_SOME = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)


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


def initial(
    aggregates: Sequence[Aggregate], values: Callable[[Aggregate], pa.Array], times: pa.Array, sequences: pa.Array
) -> dict[str, pa.Array]:
    """The states of single rows, given the values that an aggregate is over."""
    found: dict[str, pa.Array] = {}
    for number, aggregate in enumerate(aggregates):
        if aggregate.column is None:
            found[f"count_{number}"] = pa.repeat(pa.scalar(1, pa.int64()), len(times))
            continue
        value = values(aggregate)
        there = pc.is_valid(value)
        if aggregate.function in ("count", "avg"):
            found[f"count_{number}"] = there.cast(pa.int64())
        if aggregate.function != "count":
            found[f"{'sum' if aggregate.function in ('sum', 'avg') else 'value'}_{number}"] = value
        if aggregate.function in ("first", "last"):
            found[f"time_{number}"] = pc.if_else(there, times, None)
            found[f"sequence_{number}"] = pc.if_else(there, sequences, None)
    return found


def aggregated_sql(aggregates: Sequence[Aggregate], value: Callable[[Aggregate], str], time: str) -> dict[str, str]:
    """The states of many rows, as Spark aggregates over the values' columns."""
    found: dict[str, str] = {}
    for number, aggregate in enumerate(aggregates):
        if aggregate.column is None:
            found[f"count_{number}"] = "count(*)"
            continue
        own = value(aggregate)
        place = f"IF({own} IS NULL, NULL, named_struct('t', {time}, 's', ingress_sequence))"
        match aggregate.function:
            case "count" | "avg" | "sum":
                if aggregate.function != "count":
                    found[f"sum_{number}"] = f"sum({own})"
                if aggregate.function != "sum":
                    found[f"count_{number}"] = f"count({own})"
            case "min" | "max":
                found[f"value_{number}"] = f"{aggregate.function}({own})"
            case _:
                end = "min" if aggregate.function == "first" else "max"
                found[f"value_{number}"] = f"{end}_by({own}, {place})"
                found[f"time_{number}"] = f"{end}({place}).t"
                found[f"sequence_{number}"] = f"{end}({place}).s"
    return found


def merged(pieces: pa.Table, ids: pa.Array, aggregates: Sequence[Aggregate], others: Mapping[str, str]) -> pa.Table:
    """One row for all pieces of an id, in the order of the ids, which are dense from 0.

    `others` are the columns beside the states, and how Arrow aggregates them.
    """
    pieces = pieces.append_column("id", ids)
    wanted = [(name, how, _SOME) for name, how in others.items()]
    for number, aggregate in enumerate(aggregates):
        match aggregate.function:
            case "min" | "max":
                wanted.append((f"value_{number}", aggregate.function, _SOME))
            case "sum" | "avg":
                wanted.append((f"sum_{number}", "sum", _SOME))
        if aggregate.function in ("count", "avg"):
            wanted.append((f"count_{number}", "sum", _SOME))
    found = _grouped(pieces, wanted)
    for number, aggregate in enumerate(aggregates):
        if aggregate.function in ("first", "last"):
            place = [f"time_{number}", f"sequence_{number}"]
            ordered = pieces.take(pc.sort_indices(pieces, sort_keys=[(name, "ascending") for name in place]))
            # Arrow finds the first of numbers, not of decimals: so it finds the row. One without a value is none.
            rows = pc.if_else(pc.is_valid(ordered[place[0]]), pa.arange(0, len(ordered)), None)
            ends = column(_grouped(ordered.append_column("row", rows), [("row", aggregate.function, _SOME)]), "row")
            for name in (f"value_{number}", *place):
                found = found.append_column(name, column(ordered, name).take(ends))
    return found.drop_columns(["id"])


def _grouped(pieces: pa.Table, wanted: list[tuple[str, str, pc.ScalarAggregateOptions]]) -> pa.Table:
    found = pieces.group_by("id", use_threads=False).aggregate(wanted)
    found = found.rename_columns(["id", *(name for name, _, _ in wanted)])
    return found.sort_by("id")


def results(aggregates: Mapping[str, Aggregate], states: pa.Table) -> dict[str, pa.Array]:
    """What the window's table has of states."""
    found = {}
    for number, (name, aggregate) in enumerate(aggregates.items()):
        match aggregate.function:
            case "count":
                found[name] = column(states, f"count_{number}")
            case "sum":
                found[name] = column(states, f"sum_{number}")
            case "avg":
                found[name] = _averages(column(states, f"sum_{number}"), column(states, f"count_{number}"))
            case _:
                found[name] = column(states, f"value_{number}")
    return found


def _averages(sums: pa.Array, counts: pa.Array) -> pa.Array:
    """Nine decimals, half away from zero. No count is so large that a quotient of 76 digits looked like a half."""
    values = [
        None if total is None else _EXACT.quantize(_EXACT.divide(total, Decimal(count)), _NINE_DECIMALS)
        for total, count in zip(sums.to_pylist(), counts.to_pylist(), strict=True)
    ]
    return pa.array(values, pa.decimal128(38, 9))
