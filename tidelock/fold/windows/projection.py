"""The projection: what outputs need of an event, in its type, as columns of the prepared range.

Streams share them, type by type: a range is as wide as its widest stream, not as all of them together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from tidelock.columns import AMOUNT, BOOLEAN, DOUBLE, STRING, TIMESTAMP, ColumnType
from tidelock.definitions.windows import Aggregate
from tidelock.fold.kernel.outputs import Output
from tidelock.fold.kernel.takings import Need, Projection, operand
from tidelock.fold.latest import Calculation, row_columns
from tidelock.fold.streams import QUANTITY_TEXT, Slots, StreamSql, by_stream, sql_of_streams
from tidelock.spark import casts


class ProjectionSteps:
    """Builds the projection of some outputs."""

    def __init__(
        self, outputs: Sequence[Output], slots: Slots, calculated: Mapping[str, Mapping[str, Calculation]]
    ) -> None:
        self._slots = slots
        self._calculated = calculated
        self._places: dict[str, dict[Need, str]] = {}
        #: column -> Spark's type, and SQL by stream
        self._columns: dict[str, tuple[str, dict[str, str]]] = {}
        known = sql_of_streams(slots)
        for output in outputs:
            stream_sql = known[output.stream]
            for need, type_, sql in self._needed(output, stream_sql):
                self._place(output.stream, need, *_transported(type_, sql))

    def prepared(self) -> list[str]:
        return [f"{by_stream(sqls, type_)} AS {name}" for name, (type_, sqls) in self._columns.items()]

    def kernel(self) -> Projection:
        """Their description for the kernel."""
        return Projection(self._places, tuple(self._columns))

    def _needed(self, output: Output, stream_sql: StreamSql) -> Iterator[tuple[Need, ColumnType, str]]:
        if output.window is None:
            types = output.table.columns
            for name, sql in row_columns(stream_sql, self._slots).items():
                yield ("row", name), types[name], sql
            return
        for name in output.window.group_by:
            yield ("group", name), STRING, self._text(output, stream_sql, name)
        for aggregate in output.window.select.values():
            if aggregate.column is not None:
                yield from self._operand(output, stream_sql, aggregate)

    def _operand(
        self, output: Output, stream_sql: StreamSql, aggregate: Aggregate
    ) -> Iterator[tuple[Need, ColumnType, str]]:
        kind, name = need = operand(aggregate)
        type_ = output.types.get(name)
        if kind == "text" and type_ is None:
            yield need, STRING, stream_sql.json(name)
            return
        value = self._value(stream_sql, name)
        match kind:
            case "amount":
                sql = value if _is_quantity(value) else _let(value, partial(casts.quantity, type_))
                yield need, AMOUNT, sql
                if (wrong := _beyond_amounts(type_, value, sql)) is not None:
                    yield (f"{kind} misfit", name), BOOLEAN, wrong
            case "number" if type_ is None:
                sql = _let(value, partial(casts.typed, DOUBLE))
                yield need, DOUBLE, sql
                yield (f"{kind} misfit", name), BOOLEAN, f"{casts.is_number(value)} AND {sql} IS NULL"
            case "number":
                yield need, DOUBLE, f"CAST({value} AS DOUBLE)"
            case "text" if type_ == DOUBLE:
                # Java before 19 formats some differently: the kernel counts them by their bits.
                yield need, DOUBLE, value
            case "text":
                yield need, STRING, self._text(output, stream_sql, name)
            case _:
                yield need, type_ or STRING, value

    def _value(self, stream_sql: StreamSql, name: str) -> str:
        calculation = self._calculated.get(stream_sql.stream.name, {}).get(name)
        return stream_sql.typed(name) if calculation is None else calculation.sql

    def _text(self, output: Output, stream_sql: StreamSql, name: str) -> str:
        """The string of a group column, for instants their nanoseconds, from which the value can be recovered."""
        type_, value = output.types.get(name, STRING), self._value(stream_sql, name)
        if type_ == TIMESTAMP:
            return f"CAST({value} AS STRING)"
        return _let(value, partial(casts.canonical, type_))

    def _place(self, stream: str, need: Need, type_: str, sql: str) -> None:
        places = self._places.setdefault(stream, {})
        if need in places:
            return
        prefix = f"projected_{re.sub(r'[^a-z0-9]+', '_', type_.lower()).strip('_')}_"
        name = f"{prefix}{sum(place.startswith(prefix) for place in places.values())}"
        places[need] = name
        self._columns.setdefault(name, (type_, {}))[1][stream] = sql


def _transported(type_: ColumnType, sql: str) -> tuple[str, str]:
    """Spark's type, and the SQL. Instants are nanoseconds; the envelope's quantity is the text that Postgres wrote,
    which Arrow makes a decimal of in a fraction of the time that Java needs."""
    if _is_quantity(sql):
        return "STRING", QUANTITY_TEXT
    return {"json": "string", "timestamp": "bigint"}.get(type_.name, str(type_)).upper(), sql


def _is_quantity(sql: str) -> bool:
    """Whether it is the envelope's, unchanged."""
    return sql.strip("`") == "quantity"


def _beyond_amounts(type_: ColumnType | None, value: str, amount: str) -> str | None:
    """Whether a number does not fit the range of amounts; None: all of its type do. Non-numbers are not amounts."""
    if type_ is None:
        return f"{casts.is_number(value)} AND {amount} IS NULL"
    large = type_.name == "decimal" and type_.precision - type_.scale > casts.QUANTITY_WHOLE
    if type_.name == "double" or (large and not _is_quantity(value)):
        return f"{value} IS NOT NULL AND {amount} IS NULL"
    return None


def _let(value: str, body: Callable[[str], str]) -> str:
    """A template that uses a value several times, for a value that is a computation."""
    if re.fullmatch(r"\w+|`[^`]+`", value):
        return body(value)
    return casts.let("v", value, body("v"))
