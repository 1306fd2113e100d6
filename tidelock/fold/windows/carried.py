"""Carried columns: what outputs need of an event, in its type, as columns of the prepared range.

Streams share them, type by type: a range is as wide as its widest stream, not as all of them together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from tidelock.columns import STRING, TIMESTAMP, ColumnType
from tidelock.definitions.windows import Aggregate
from tidelock.fold import casts
from tidelock.fold.calculations import Calculation
from tidelock.fold.latest import row_columns
from tidelock.fold.readings import Reading, by_stream, readings
from tidelock.fold.slots import Slots
from tidelock.fold.windows.outputs import Output
from tidelock.fold.windows.states import AMOUNT

#: what a column is needed for (the text of a group, a value, something to add up, a column of a row), and its name
_Need = tuple[str, str]


class Carried:
    """The carried columns of some outputs."""

    def __init__(
        self, outputs: Sequence[Output], slots: Slots, calculated: Mapping[str, Mapping[str, Calculation]]
    ) -> None:
        self._slots = slots
        self._calculated = calculated
        #: stream -> need -> column
        self._places: dict[str, dict[_Need, str]] = {}
        #: column -> Spark's type, and SQL by stream
        self._columns: dict[str, tuple[str, dict[str, str]]] = {}
        known = readings(slots)
        for output in outputs:
            reading = known[output.stream]
            for need, type_, sql in self._needed(output, reading):
                self._place(output.stream, need, spark_type(type_), sql)

    @property
    def names(self) -> list[str]:
        return list(self._columns)

    def prepared(self) -> list[str]:
        return [f"{by_stream(sqls, type_)} AS {name}" for name, (type_, sqls) in self._columns.items()]

    def group(self, output: Output, name: str) -> str:
        return self._places[output.stream]["group", name]

    def operand(self, output: Output, aggregate: Aggregate) -> str:
        """The column of what an aggregate is over."""
        return self._places[output.stream][_operand(aggregate)]

    def cell(self, output: Output, name: str) -> str:
        """The column of a column of ordered output."""
        return self._places[output.stream]["row", name]

    def _needed(self, output: Output, reading: Reading) -> Iterator[tuple[_Need, ColumnType, str]]:
        if output.window is None:
            types = output.table.columns
            for name, sql in row_columns(reading, self._slots).items():
                yield ("row", name), types[name], sql
            return
        for name in output.window.group_by:
            yield ("group", name), STRING, self._text(output, reading, name)
        for aggregate in output.window.select.values():
            if (own := aggregate.column) is None:
                continue
            type_ = output.types.get(own)
            need = _operand(aggregate)
            if need[0] == "amount":
                yield need, AMOUNT, _let(self._value(reading, own), partial(casts.quantity, type_))
            else:
                yield need, type_ or STRING, self._value(reading, own)

    def _value(self, reading: Reading, name: str) -> str:
        calculation = self._calculated.get(reading.stream.name, {}).get(name)
        return reading.typed(name) if calculation is None else calculation.sql

    def _text(self, output: Output, reading: Reading, name: str) -> str:
        """The text of a group's column, of instants their nanoseconds: as whoever reads it can tell the value too."""
        type_, value = output.types.get(name, STRING), self._value(reading, name)
        if type_ == TIMESTAMP:
            return f"CAST({value} AS STRING)"
        return _let(value, partial(casts.canonical, type_))

    def _place(self, stream: str, need: _Need, type_: str, sql: str) -> None:
        places = self._places.setdefault(stream, {})
        if need in places:
            return
        prefix = f"carried_{re.sub(r'[^a-z0-9]+', '_', type_.lower()).strip('_')}_"
        name = f"{prefix}{sum(place.startswith(prefix) for place in places.values())}"
        places[need] = name
        self._columns.setdefault(name, (type_, {}))[1][stream] = sql


def spark_type(type_: ColumnType) -> str:
    """Instants are nanoseconds."""
    return {"json": "string", "timestamp": "bigint"}.get(type_.name, str(type_)).upper()


def _operand(aggregate: Aggregate) -> _Need:
    assert aggregate.column is not None, "count(*) is over rows"
    return ("amount" if aggregate.function in ("sum", "avg") else "value"), aggregate.column


def _let(value: str, body: Callable[[str], str]) -> str:
    """What names a value several times, given one that is no name but a computation."""
    if re.fullmatch(r"\w+|`[^`]+`", value):
        return body(value)
    return casts.let("v", value, body("v"))
