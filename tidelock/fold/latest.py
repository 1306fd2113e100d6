"""Latest rows: key and row of every event of a keyed stream, as Spark SQL.

A row travels as texts, in as many columns as the widest table has, and gets its types in the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidelock.columns import ColumnType, table_column
from tidelock.definitions import Stream
from tidelock.fold.calculations import Calculation
from tidelock.fold.kernel.latest import VALUE, LatestTable
from tidelock.fold.readings import Reading, by_stream, readings
from tidelock.fold.slots import WHOLE, Slots
from tidelock.spark import casts
from tidelock.tables import UNDECLARED, Table, latest_table


@dataclass(frozen=True, slots=True)
class Latest:
    """A keyed stream and its table."""

    stream: Stream
    table: Table
    #: SQL of the table's columns, typed, in order
    values: tuple[tuple[ColumnType, str], ...]


class LatestSteps:
    """The steps of all keyed streams together."""

    def __init__(self, slots: Slots, calculated: Mapping[str, Mapping[str, Calculation]]) -> None:
        self._readings = {name: reading for name, reading in readings(slots).items() if reading.stream.key}
        self.latest = {
            name: _latest(reading, slots, calculated.get(name, {})) for name, reading in self._readings.items()
        }
        self.width = max((len(latest.values) for latest in self.latest.values()), default=0)

    @property
    def columns(self) -> list[str]:
        """The columns that have a row."""
        return [VALUE.format(number=number) for number in range(self.width)]

    def prepared(self) -> list[str]:
        """The key of an event's row, and the row."""
        keys = {name: reading.joined(reading.stream.key) for name, reading in self._readings.items()}
        return [f"{by_stream(keys, 'STRING')} AS `$key`", *(self._value(number) for number in range(self.width))]

    def kernel(self) -> tuple[LatestTable, ...]:
        """What the kernel has to know of them."""
        return tuple(LatestTable(name, latest.table, latest.stream.live) for name, latest in self.latest.items())

    def _value(self, number: int) -> str:
        texts = {
            name: casts.transport(*latest.values[number])
            for name, latest in self.latest.items()
            if number < len(latest.values)
        }
        return f"{by_stream(texts, 'STRING')} AS {VALUE.format(number=number)}"


def _latest(reading: Reading, slots: Slots, calculated: Mapping[str, Calculation]) -> Latest:
    table = latest_table(reading.stream, {name: calculation.type for name, calculation in calculated.items()})
    values = row_columns(reading, slots) | {name: calculation.sql for name, calculation in calculated.items()}
    return Latest(reading.stream, table, tuple((type_, values[name]) for name, type_ in table.columns.items()))


def row_columns(reading: Reading, slots: Slots) -> dict[str, str]:
    """SQL of what a table of a stream's rows has of an event, but for calculated columns."""
    stream = reading.stream
    if stream.columns:
        return {name: reading.typed(name) for name in stream.columns}
    values = {table_column(name): reading.typed(name) for name in stream.key}
    values |= {name: name for name in UNDECLARED if name != "data"}
    return values | {"data": slots.slot(stream.name, WHOLE)}
