"""Touched: which derived rows an event belongs to, as small queries by key. Pure: from an event and the definitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tidelock.columns import data_path, table_column
from tidelock.console.eventtimes import time_of
from tidelock.console.exact import write
from tidelock.durations import parse_duration
from tidelock.instants import SECOND, format_instant, parse_rfc3339
from tidelock.periods import period_start

Json = dict[str, Any]

# A row lies in size / step hopping windows; more than these are not shown.
_HOPS_MAX = 20
# Sessions that began longer than this before the event are not searched for.
_SESSION_NS = 24 * 3600 * SECOND
_ENVELOPE = {
    "customer_ref": "customerRef",
    "resource_id": "resourceId",
    "occurred_at": "occurredAt",
    "received_at": "receivedAt",
    "causality_key": "causalityKey",
    "correlation_id": "correlationId",
    "causation_id": "causationId",
    "ingress_sequence": "ingressSequence",
    "idempotency_key": "idempotencyKey",
}


@dataclass(frozen=True, slots=True)
class Lookup:
    """A query for the rows of a table that an event touched."""

    table: str
    where: Json
    #: its relation to the event
    what: str
    #: its table in the list: several meters share one
    name: str
    tone: str = "plain"

    @property
    def query(self) -> str:
        return write(self.where)


def lookups(event: Json, definitions: Json) -> Iterator[Lookup]:
    """Every query by key and time."""
    sequence, stream = event["ingressSequence"], event["stream"]
    declared = definitions["streams"].get(stream, {})
    if declared.get("key"):
        yield Lookup(stream, _key(event, declared, declared["key"]), "latest row of its key", stream)
    named = [name for name, meter in definitions["meters"].items() if meter["stream"] == stream]
    windows = {name: window for name, window in definitions["windows"].items() if window["stream"] == stream}
    for name in dict.fromkeys([stream, *named]):
        where = {"source": _eq(name), "ingress_sequence": _eq(sequence)}
        yield Lookup("error_rows", where, "does not fit", f"error of {name}", "warn")
    if event["op"] == "delete":
        return
    for name in named:
        yield from _of_meter(event, name, definitions["meters"][name])
    for name, window in windows.items():
        yield from _of_window(event, name, window, declared)
    ordered = [f"{stream}_ordered"] if declared.get("ordered") else []
    for name in [*windows, *ordered]:
        where = {"window": _eq(name), "ingress_sequence": _eq(sequence)}
        yield Lookup("late_rows", where, "arrived too late", f"late for {name}", "warn")
    for name in ordered:
        yield Lookup(name, {"ingress_sequence": _eq(sequence)}, "its position in event-time order", name)


def _of_meter(event: Json, name: str, meter: Json) -> Iterator[Lookup]:
    if event["customerRef"] is None:
        return
    start = format_instant(period_start(meter["period"], parse_rfc3339(event["occurredAt"])))
    of_customer = {"metric": _eq(name), "customer_ref": _eq(event["customerRef"])}
    about = f"counter of its {meter['period']}" + (", where its filter matches" if meter.get("where") else "")
    yield Lookup("counters", {**of_customer, "period_start": _eq(start)}, about, name)
    where = {"metric": _eq(name), "ingress_sequence": _eq(event["ingressSequence"])}
    yield Lookup("adjustments", where, "arrived too late: an adjustment", f"adjustment of {name}", "warn")


def _of_window(event: Json, name: str, window: Json, declared: Json) -> Iterator[Lookup]:
    own = window["eventtime"]["enabled"]
    time = time_of(event, declared.get("eventtime")) if own else int(event["sourceTimestamp"])
    if time is None:
        return
    group = _key(event, declared, window["group_by"])
    frame = window["window"]
    if "session" in frame:
        began = {"_lte": format_instant(time), "_gte": format_instant(time - _SESSION_NS)}
        where = {**group, "window_start": began, "window_end": {"_gt": format_instant(time)}}
        yield Lookup(name, where, "its session, once closed", name)
    elif starts := [format_instant(start) for start in _starts(frame, time)]:
        yield Lookup(name, {**group, "window_start": {"_in": starts}}, "its window, once closed", name)


def value_of(event: Json, declared: Json, column: str) -> Any:
    """The value of a column: a declared member of data, else the envelope's, else a path into data."""
    data = event["data"]
    if column in declared.get("columns", {}):
        return data.get(column) if isinstance(data, Mapping) else None
    if (path := data_path(column)) is not None:
        for member in path:
            data = data.get(member) if isinstance(data, Mapping) else None
        return data
    return event.get(_ENVELOPE.get(column, column))


def _starts(frame: Json, time: int) -> list[int]:
    """Starts of the windows that contain an instant; none for a count window, which has no times."""
    if "tumbling" in frame:
        size = step = parse_duration(frame["tumbling"])
    elif "hopping" in frame:
        size, step = map(parse_duration, frame["hopping"])
    else:
        return []
    newest = time // step * step
    return list(range(newest, max(time - size, newest - _HOPS_MAX * step), -step))


def _key(event: Json, declared: Json, columns: list[str]) -> Json:
    return {table_column(column): _eq(value_of(event, declared, column)) for column in columns}


def _eq(value: Any) -> Json:
    return {"_is_null": True} if value is None else {"_eq": value}
