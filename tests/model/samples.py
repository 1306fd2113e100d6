"""Ledgers written down shortly, for examples."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
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
            events.append(Event(len(events) + 1, number * 100, **fields))
    return events


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
