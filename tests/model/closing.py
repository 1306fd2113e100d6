"""Closes: control events that end periods of meters, and the statements that they write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.model.events import Event
from tests.model.meters import period_end
from tests.model.tables import State
from tests.model.values import instant


def close(state: State, event: Event, definitions: Mapping[str, Mapping[str, Any]]) -> None:
    """What a control event does if it is a close."""
    said = json.loads(event.data or "{}")
    if said["type"] != "close":
        return
    for name, closed in said["meters"].items():
        meter = definitions.get("meters", {}).get(name)
        # Choice: a meter that is not there any more has no counters left, so there is nothing to close.
        if meter is None:
            continue
        place = (name, said["tenantId"])
        # A close never goes back, whatever a later one says.
        through = instant(closed["through"])
        state.closed[place] = max(through, state.closed.get(place, through))
        # Choice: what is stated, and under which hash, is the event's to say.
        if closed["definition"].get("statements", True):
            _state(state, event, name, meter, tenant=said["tenantId"], hashed=closed["hash"])


def is_closed(state: State, tenant: str, name: str, meter: Mapping[str, Any], start: int) -> bool:
    """Whether the period that starts there lies wholly before an end through which the meter is closed.

    Choice: of a meter whose periods were others when it was closed, those that reach beyond the end stay open.
    """
    end = period_end(meter.get("period", "month"), start)
    return any(end <= through for place, through in state.closed.items() if place in ((name, None), (name, tenant)))


def _state(state: State, event: Event, name: str, meter: Mapping[str, Any], *, tenant: str | None, hashed: str) -> None:
    """One row for each counter in a closed period that has none yet. Choice: they are live, as every meter's are."""
    period, aggregation = meter.get("period", "month"), meter.get("aggregation", "sum")
    for (owner, key), row in list(state.table("counters").items()):
        if row["metric"] != name or tenant not in (None, owner) or (owner, key) in state.table("statements"):
            continue
        if not is_closed(state, owner, name, meter, row["period_start"]):
            continue
        counter = state.counters[owner, *json.loads(key)]
        stated = {
            "metric": name,
            "customer_ref": row["customer_ref"],
            "period_start": row["period_start"],
            "period_end": period_end(period, row["period_start"]),
            "value": counter.folded.value(aggregation),
            "total": counter.together.value(aggregation),
            "event_count": counter.together.count,
            "closed_sequence": event.ingress_sequence,
            "definition": hashed,
        }
        state.put("statements", owner, key, stated)
