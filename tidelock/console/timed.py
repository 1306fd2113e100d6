"""Timed outputs: what has a watermark of its own, a window or the ordered output of a stream, as it is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidelock.console.parts.tables import Column, Kind
from tidelock.definitions.eventtimes import EVENTTIME_ALIASES, EVENTTIME_TYPES
from tidelock.durations import parse_duration

Json = dict[str, Any]

_KINDS: Mapping[str, Kind] = {
    "int": "number",
    "bigint": "number",
    "double": "number",
    "decimal": "number",
    "timestamp": "time",
    "json": "mono",
}
_BY_ARRIVAL = (
    "This window goes by when events arrive: nothing is late and nothing is held back, so there is no picture."
)


@dataclass(frozen=True, slots=True)
class TimedOutput:
    """A window, or an ordered output."""

    window: str
    stream: str
    table: str
    columns: Sequence[Column]
    #: the column by which rows are new or old
    newest: str
    #: the definition in a line
    words: str
    #: how events tell their time; None by arrival
    eventtime: Mapping[str, str] | None
    tolerance: str | None
    #: nanoseconds of a tumbling window
    size: int | None

    @property
    def drawn(self) -> bool:
        """Whether the times of events can be read here: types of plugins are known to the fold only."""
        if self.eventtime is None or self.tolerance is None:
            return False
        return self.eventtime.get("type") in (None, *EVENTTIME_TYPES, *EVENTTIME_ALIASES)

    @property
    def undrawn(self) -> str:
        if self.eventtime is None or self.tolerance is None:
            return _BY_ARRIVAL
        return f"The time of these events is read by a plugin ({self.eventtime['type']}), which only the fold has."

    @property
    def rows_about(self) -> str:
        return "Released in the order of their own time" if self.newest == "position" else "Closed, the newest first"

    @property
    def nothing(self) -> str:
        return "Nothing was released yet." if self.newest == "position" else "No window has closed yet."


def outputs_of(definitions: Json) -> dict[str, TimedOutput]:
    """Every one of them, by name."""
    tables = {table["name"]: table["columns"] for table in definitions["tables"]}
    found = [_window(name, form, definitions, tables) for name, form in definitions["windows"].items()]
    ordered = [name for name, form in definitions["streams"].items() if form.get("ordered")]
    found += [_ordered(name, definitions["streams"][name], tables) for name in ordered]
    return {output.window: output for output in found}


def _window(name: str, form: Json, definitions: Json, tables: Json) -> TimedOutput:
    timing = form["eventtime"]
    by_event_time = timing.get("enabled", False)
    stream = definitions["streams"].get(form["stream"], {})
    ((kind, measure),) = form["window"].items()
    size = f"{measure[0]} every {measure[1]}" if isinstance(measure, list) else str(measure)
    how = f"event time, {timing.get('late_tolerance', '0s')} of patience" if by_event_time else "time of arrival"
    groups = f", by {' and '.join(form['group_by'])}" if form["group_by"] else ""
    return TimedOutput(
        name,
        form["stream"],
        name,
        _columns(tables.get(name, {}), first=["window_start"]),
        "window_start",
        f"{kind} {size} over {form['stream']}{groups}; {how}",
        stream.get("eventtime") if by_event_time else None,
        timing.get("late_tolerance", "0s") if by_event_time else None,
        parse_duration(measure) if kind == "tumbling" else None,
    )


def _ordered(stream: str, form: Json, tables: Json) -> TimedOutput:
    name = f"{stream}_ordered"
    tolerance = form["eventtime"].get("late_tolerance", "0s")
    return TimedOutput(
        name,
        stream,
        name,
        _columns(tables.get(name, {}), first=["position"]),
        "position",
        f"{stream} in the order of event time; {tolerance} of patience",
        form["eventtime"],
        tolerance,
        None,
    )


def _columns(declared: Mapping[str, str], *, first: list[str]) -> list[Column]:
    names = [*first, *(name for name in declared if name not in first)]
    return [
        Column(name, name, _KINDS.get(declared[name].partition("(")[0], "text"), wide=at > 4)
        for at, name in enumerate(names)
        if name in declared
    ]
