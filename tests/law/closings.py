"""Random closes for the law: of some meters or all, through ends near the events, for a tenant or for all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Any

from tests.model import Event
from tests.model.billing_cases import CONTROL, closing
from tests.model.meters import period_end
from tests.model.values import instant, nanoseconds
from tidelock.definitions import parse_definitions
from tidelock.fold.redefine.catalog import unit_hashes

#: a change: source timestamp, row (table, tenant, key), old and new columns
AnyChange = tuple[int, tuple[str, str, str], Mapping[str, Any] | None, Mapping[str, Any] | None]

#: ends of hours, days, weeks and months among the events' times, and some that end nothing
_ENDS = [
    *["2026-03-04T12:00:00Z", "2026-03-01T01:00:00Z", "2026-03-04T00:00:00Z", "2026-03-02T00:00:00Z"],
    *["2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z", "2026-03-03T00:00:00.000000001Z", "2026-03-09T00:00:00Z"],
    *["1970-01-01T00:00:00Z", "1678-02-01T00:00:00Z"],
]


def closes(
    toml: Mapping[str, Mapping[str, Any]], tenants: Sequence[str], chance: Random, count: int
) -> list[Mapping[str, Any]]:
    """Control events to choose from."""
    meters = {name: meter for name, meter in toml.get("meters", {}).items() if isinstance(meter, Mapping)}
    if not meters:
        return []
    hashes = unit_hashes(parse_definitions(dict(toml)))
    found: list[Mapping[str, Any]] = []
    for _ in range(count):
        named = chance.sample(sorted(meters), chance.choice([1, len(meters), 1 + len(meters) // 2]))
        tenant = chance.choice([None, None, chance.choice(tenants)])
        data = closing({name: meters[name] for name in named}, chance.choice(_ENDS), tenant)
        for name, said in data["meters"].items():
            said["hash"] = hashes[f"meters.{name}"]
            if chance.random() < 0.1:
                said["definition"]["statements"] = False
        found.append(data)
    return found


def moved_after_close(events: Sequence[Event], toml: Mapping[str, Any], changes: Sequence[AnyChange]) -> list[str]:
    """Counters whose value or watermark a change moved though their period was closed by then; there must be none."""
    closed_at: dict[tuple[str, str | None], list[tuple[int, int]]] = {}
    for event in events:
        said = json.loads(event.data or "{}") if event.stream == CONTROL else {}
        for name, meter in said.get("meters", {}).items():
            ends = closed_at.setdefault((name, said["tenantId"]), [])
            ends.append((event.source_timestamp, instant(meter["through"])))
    moved = []
    for time, (table, tenant, key), old, new in changes:
        if table != "counters" or new is None:
            continue
        name, _, start = json.loads(key)
        # The first period begins before the first instant that an event may have.
        began = nanoseconds(datetime.fromisoformat(start))
        end = period_end(toml["meters"][name].get("period", "month"), began)
        closes = [*closed_at.get((name, None), []), *closed_at.get((name, tenant), [])]
        if not any(at < time and end <= through for at, through in closes):
            continue
        before = (new["value"], new["watermark_ts"]) if old is None else (old["value"], old["watermark_ts"])
        if (new["value"], new["watermark_ts"]) != before or (old is None and new["watermark_ts"] != "None"):
            moved.append(f"{tenant} {key} at {time}: {old} -> {new}")
    return moved
