"""Progress: what a collection does to windows and ordered output, by its rows and by being one more of the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.model.events import Columns, Event, names_of, stream_columns
from tests.model.meters import duration
from tests.model.operators import Operator
from tests.model.tables import State
from tests.model.values import key_text
from tests.model.watermarks import Arrival, Entry, EventTime, Late
from tests.model.windows import Counts, Window, frame, misfit

CONTROL = "_tidelock"

Definitions = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Entering:
    """An event that the windows of its stream take."""

    event: Event
    columns: Columns
    #: None: its stream has none, or the event has none that can be used
    event_time: int | None


def advance(state: State, at: int, events: Sequence[Event], entering: Sequence[Entering], toml: Definitions) -> None:
    """One collection, and those of its events that windows take."""
    for name, window in toml.get("windows", {}).items():
        mine = [each for each in entering if each.event.stream == window["stream"]]
        live = window.get("live", True)
        by_event_time = window.get("eventtime", {}).get("enabled", False)
        for tenant, entries in _by_tenant(mine, None if by_event_time else at):
            operator = state.operators.setdefault((name, tenant), _operator(window))
            _collect(state, name, tenant, operator, at=at, entries=entries, live=live)
        if not by_event_time:
            # Any collection of any tenant moves the time of all.
            for tenant, operator in _tenants(state, name):
                _collect(state, name, tenant, operator, at=at, entries=[], live=live)
    for name, stream in _ordered(toml):
        mine = [each for each in entering if f"{each.event.stream}_ordered" == name]
        for tenant, entries in _by_tenant(mine, None):
            operator = state.operators.setdefault((name, tenant), Operator(_event_time(stream["eventtime"]), Counts(1)))
            closed, late = operator.collect(at, entries)
            _put_ordered(state, name, tenant, closed, stream)
            _put_late(state, name, tenant, late)
    for event in events:
        if event.stream == CONTROL:
            _control(state, at, json.loads(event.data or "{}"), toml)


def _control(state: State, at: int, data: Mapping[str, Any], toml: Definitions) -> None:
    """Ticks drain what is idle, drains the window that they name, or all."""
    live = {name: window.get("live", True) for name, window in toml.get("windows", {}).items()}
    ordered = dict(_ordered(toml))
    for (name, tenant), operator in state.operators.items():
        closed: list[Window] = []
        if data["type"] == "drain" and data.get("window", name) == name:
            closed = operator.drain()
        elif data["type"] == "tick":
            closed = operator.tick(at)
        if name in ordered:
            _put_ordered(state, name, tenant, closed, ordered[name])
        else:
            _put_closed(state, name, tenant, operator, closed, live=live[name])


def _operator(window: Mapping[str, Any]) -> Operator:
    time = window.get("eventtime", {})
    return Operator(
        _event_time(time) if time.get("enabled", False) else Arrival(),
        frame(window["window"]),
        names_of(window.get("group_by", [])),
        window["select"],
    )


def _event_time(declared: Mapping[str, Any]) -> EventTime:
    tolerance = declared.get("late_tolerance", declared.get("lateTolerance", "0s"))
    idle = declared.get("idle_timeout")
    return EventTime(duration(tolerance), None if idle is None else duration(idle))


def _by_tenant(entering: Sequence[Entering], at: int | None) -> Iterator[tuple[str, list[Entry]]]:
    """The rows of each tenant, at one time or by event time, where they have one."""
    for tenant in dict.fromkeys(each.event.tenant_id for each in entering):
        entries = [
            Entry(time, each.event.ingress_sequence, each.columns)
            for each in entering
            if each.event.tenant_id == tenant and (time := each.event_time if at is None else at) is not None
        ]
        if entries:
            yield tenant, entries


def _tenants(state: State, name: str) -> list[tuple[str, Operator]]:
    return [(tenant, operator) for (window, tenant), operator in state.operators.items() if window == name]


def _ordered(toml: Definitions) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, stream in toml.get("streams", {}).items():
        if stream.get("ordered", False):
            yield f"{name}_ordered", stream


def _collect(
    state: State, name: str, tenant: str, operator: Operator, at: int, entries: Sequence[Entry], *, live: bool
) -> None:
    closed, late = operator.collect(at, entries)
    _put_closed(state, name, tenant, operator, closed, live=live)
    _put_late(state, name, tenant, late)
    _put_errors(state, name, tenant, [e for e in entries if e not in [each.entry for each in late]], operator.select)


def _put_closed(
    state: State, name: str, tenant: str, operator: Operator, closed: Sequence[Window], *, live: bool
) -> None:
    for window in closed:
        state.put(name, tenant, operator.key(window), operator.row(window), live=live)


def _put_ordered(state: State, name: str, tenant: str, released: Sequence[Window], stream: Mapping[str, Any]) -> None:
    """Choice: ordered output has the columns of the latest rows without calculated ones, the key's paths too."""
    for window in released:
        (entry,) = window.entries
        own = {"ingress_sequence": entry.sequence, "position": window.ordinal, "event_time": entry.time}
        row = own | stream_columns(entry.columns.without_calculated(), stream)
        state.put(name, tenant, str(entry.sequence), row, live=stream.get("live", True))


def _put_errors(state: State, name: str, tenant: str, accepted: Sequence[Entry], select: Mapping[str, str]) -> None:
    """Choice: of values that a window leaves out; an event has one error row of a name, the stream's or meter's."""
    for entry in accepted:
        key = key_text([name, str(entry.sequence)])
        message = misfit(select, entry.columns)
        if message is not None and (tenant, key) not in state.table("error_rows"):
            own = {"source": name, "ingress_sequence": entry.sequence}
            row = own | {"code": "value_out_of_range", "message": message}
            state.put("error_rows", tenant, key, row)


def _put_late(state: State, name: str, tenant: str, rows: Sequence[Late]) -> None:
    for late in rows:
        row = {
            "window": name,
            "ingress_sequence": late.entry.sequence,
            "event_time": late.entry.time,
            "watermark": late.watermark,
            "reason": late.reason,
        }
        state.put("late_rows", tenant, key_text([name, str(late.entry.sequence)]), row)
