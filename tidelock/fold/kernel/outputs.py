"""Outputs: windows, and streams' ordered output. Each has its own watermark for every tenant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidelock.columns import STRING, ColumnType
from tidelock.definitions import Count, Definitions, Stream, Window
from tidelock.sections import Section
from tidelock.tables import (
    Table,
    column_types,
    held_ordered_table,
    held_table,
    holds,
    open_table,
    ordered_table,
    window_table,
)

_FILE = "tidelock.toml"

#: types of calculated columns by stream, as reported by Spark
Calculated = Mapping[str, Mapping[str, ColumnType]]


@dataclass(frozen=True, slots=True)
class Output:
    """An output of a stream, in its own time."""

    stream: str
    #: released rows or closed windows
    table: Table
    #: None: ordered output
    window: Window | None
    #: types of the columns that a window uses
    types: Mapping[str, ColumnType]
    #: how far behind the latest event a row may be; None: rows are ordered by arrival, and none is late
    late_tolerance_ns: int | None
    idle_timeout_ns: int | None
    live: bool
    #: windows that are open
    open: Table | None = None
    #: rows that are held
    held: Table | None = None

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def singly(self) -> bool:
        """Whether it needs rows one by one, in order; others aggregate them."""
        return self.window is None or isinstance(self.window.frame, Count)

    @property
    def by_event_time(self) -> bool:
        return self.late_tolerance_ns is not None

    @property
    def time(self) -> str:
        """The column of a prepared range with a row's time."""
        return "event_time" if self.by_event_time else "source_timestamp"

    @property
    def group_types(self) -> tuple[ColumnType, ...]:
        columns = self.window.group_by if self.window is not None else ()
        return tuple(self.types.get(column, STRING) for column in columns)


def outputs_of(definitions: Definitions, calculated: Calculated) -> list[Output]:
    """Every output. Raises SettingsError if a window cannot use the type of a calculated column."""
    windows = [
        _window(window, definitions.streams.get(window.stream), calculated.get(window.stream, {}))
        for window in definitions.windows.values()
    ]
    return windows + [_ordered(stream) for stream in definitions.streams.values() if stream.ordered]


def _window(window: Window, stream: Stream | None, calculated: Mapping[str, ColumnType]) -> Output:
    types = column_types(window, stream, calculated)
    _check(window, types, calculated)
    return Output(
        window.stream,
        window_table(window, types),
        window=window,
        types=types,
        late_tolerance_ns=window.eventtime.late_tolerance_ns if window.eventtime.enabled else None,
        idle_timeout_ns=window.eventtime.idle_timeout_ns,
        live=window.live,
        open=open_table(window, types),
        held=held_table(window, types) if holds(window) else None,
    )


def _ordered(stream: Stream) -> Output:
    assert stream.eventtime is not None, "ordered streams have event time"
    tolerance_ns, idle_ns = stream.eventtime.late_tolerance_ns, stream.eventtime.idle_timeout_ns
    table, held = ordered_table(stream), held_ordered_table(stream)
    return Output(
        stream.name,
        table,
        window=None,
        types={},
        late_tolerance_ns=tolerance_ns,
        idle_timeout_ns=idle_ns,
        live=stream.live,
        held=held,
    )


def _check(window: Window, types: Mapping[str, ColumnType], calculated: Mapping[str, ColumnType]) -> None:
    """Checks that need the types reported by Spark."""
    section = _section(Section("windows", {}, _FILE), window.name)
    for column in window.group_by:
        if column in calculated and types[column].name == "double":
            raise section.fail("group_by", f'column "{column}" is double; group columns need types with one text form')
    for name, aggregate in window.select.items():
        column = aggregate.column or ""
        if column in calculated and (why := aggregate.objection(types[column])) is not None:
            raise _section(section, "select").fail(name, why)


def _section(parent: Section, name: str) -> Section:
    return Section(parent.key(name), {}, _FILE)
