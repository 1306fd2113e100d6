"""Ledgers written down shortly, for examples."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from tests.model.events import Event
from tests.model.fold import fold
from tests.model.tables import Row, State
from tests.model.values import instant


def at(text: str) -> int:
    """An instant; a bare date is its midnight, a bare time lies in the tenth of March."""
    if ":" not in text:
        text += "T00:00:00Z"
    return instant(text if "T" in text else f"2026-03-10T{text}Z")


def recorded(*collections: Iterable[Mapping[str, Any]], stream: str = "s") -> list[Event]:
    """Collections of events as a ledger has them; the n-th has source timestamp n * 100."""
    events: list[Event] = []
    for number, collection in enumerate(collections, start=1):
        for given in collection:
            fields = {"stream": stream, "occurred_at": at("2026-03-10"), "customer_ref": "c", **given}
            if isinstance(fields.get("data"), dict):
                fields["data"] = json.dumps(fields["data"])
            event = Event(len(events) + 1, number * 100, **fields)
            target = event.target_sequence
            events.append(event if target is None else event.correcting(events[target - 1]))
    return events


def void(sequence: int, **more: Any) -> dict[str, Any]:
    """A correction of the event with that sequence."""
    return {"op": "void", "target_sequence": sequence, **more}


def amend(sequence: int, quantity: int | None = None, **more: Any) -> dict[str, Any]:
    """The same with what replaces it."""
    said = {} if quantity is None else {"quantity": Decimal(quantity)}
    return {"op": "amend", "target_sequence": sequence, **said, **more}


def alone(*events: Mapping[str, Any], stream: str = "s") -> list[Event]:
    """Events that are a collection each."""
    return recorded(*([event] for event in events), stream=stream)


def metered(events: list[Event], **meter: Any) -> State:
    """What one meter makes of the events of its stream."""
    return fold(events, {"meters": {"s": meter}})


def counter(state: State) -> Row:
    """The only counter there is."""
    (row,) = state.table("counters").values()
    return row


def errors(state: State) -> list[tuple[str, int, str]]:
    """Source, sequence and code of the error rows."""
    rows = state.table("error_rows").values()
    return sorted((row["source"], row["ingress_sequence"], row["code"]) for row in rows)


#: control events
TICK = {"stream": "_tidelock", "tenant_id": "_tidelock", "data": {"type": "tick"}}
DRAIN = {"stream": "_tidelock", "tenant_id": "_tidelock", "data": {"type": "drain"}}


def timed(ts: Any, tenant_id: str = "default", **data: Any) -> dict[str, Any]:
    """An event that says when it happened, in nanoseconds since 1970."""
    return {"tenant_id": tenant_id, "data": {"ts": ts, **data}}


def windowed(events: list[Event], window: Mapping[str, Any], **given: Any) -> State:
    """What a window `w` and the ordered output make of events of `timed`; `given` is for both, by event time."""
    columns = {"ts": "bigint", "g": "string", "q": "bigint"}
    time = {"column": "ts", "type": "unixtimestamp_ns"}
    declared = {"stream": "s", "eventtime": {"enabled": True, **given}, "select": {"n": "count(*)"}, **window}
    stream = {"columns": columns, "ordered": True, "eventtime": time | given}
    return fold(events, {"streams": {"s": stream}, "windows": {"w": declared}})


def closed(state: State, window: str = "w") -> list[tuple[int, int, int, Any]]:
    """Closing source timestamp, start, end and the aggregates of closed windows, in order of closing."""
    found = [
        (state.source_timestamps[window][key], row["window_start"], row["window_end"], *_rest(row))
        for key, row in state.table(window).items()
    ]
    return sorted(found, key=lambda each: each[:3])


def _rest(row: Row) -> list[Any]:
    return [value for name, value in row.items() if not name.startswith("window_")]


def late(state: State, window: str = "w") -> list[tuple[int, int, str]]:
    """Sequence, watermark and reason of the late rows of a window."""
    rows = [row for row in state.table("late_rows").values() if row["window"] == window]
    return sorted((row["ingress_sequence"], row["watermark"], row["reason"]) for row in rows)


def released(state: State, stream: str = "s") -> list[tuple[int, int, int]]:
    """Releasing source timestamp, event time and sequence of ordered output, by position."""
    table = state.table(f"{stream}_ordered")
    rows = sorted(table.items(), key=lambda item: item[1]["position"])
    times = state.source_timestamps.get(f"{stream}_ordered", {})
    return [(times[key], row["event_time"], row["ingress_sequence"]) for key, row in rows]
