"""The worked cases of event time: `cases/eventtime.json` as ordered output, `cases/windows.json` as windows.

A case has collections at chosen source timestamps, definitions in the shape of tidelock.toml, and what comes of them.
Of tables only names and values are told, so that the fold can be asked the same as the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.model.events import Event
from tests.model.samples import at
from tests.model.values import SECOND, instant_text, key_text

Case = Mapping[str, Any]
#: source timestamp, and events without the numbers that the ledger gives them
Collection = tuple[int, list[dict[str, Any]]]
#: tenant and key
Key = tuple[str, str]

_CASES = Path(__file__).parent.parent / "cases"
ORDERED_CASES: list[Case] = json.loads((_CASES / "eventtime.json").read_text())
WINDOW_CASES: list[Case] = json.loads((_CASES / "windows.json").read_text(), parse_float=Decimal)

STREAM = "rows"
#: the stream of windows by arrival, where cases share a ledger
ARRIVALS = "arrivals"
ORDERED = "rows_ordered"
WINDOW = "totals"
#: when the cases of windows begin; those of ordered output have no source timestamps, and begin then too
START = at("2026-02-01")

_TYPES = {"s": ("unixtimestamp_s", SECOND), "ms": ("unixtimestamp_ms", 10**6)}


def ordered_definitions(case: Case) -> dict[str, Any]:
    """A stream whose ordered output is what the case is about."""
    kind, _ = _TYPES[case["unit"]]
    time = {"column": "ts", "type": kind, "late_tolerance": f"{case['late_tolerance']}{case['unit']}"}
    return {"streams": {STREAM: {"columns": {"ts": "bigint"}, "ordered": True, "eventtime": time}}}


def ordered_collections(case: Case) -> list[Collection]:
    """The n-th collection comes n seconds after the start. Empty ones are none to the ledger, but have a step too."""
    return [
        (START + number * SECOND, [{"stream": STREAM, "data": json.dumps({"ts": time})} for time in times])
        for number, times in enumerate(case["collections"], start=1)
    ]


def ordered_steps(case: Case) -> list[dict[str, Any]]:
    """After each collection: `released` and `late` (sequence and time in nanoseconds), and the watermark."""
    _, unit = _TYPES[case["unit"]]
    return [
        {
            "released": [(row["ingress_sequence"], row["t"] * unit) for row in step["released"]],
            "late": [(row["ingress_sequence"], row["t"] * unit) for row in step["late"]],
            "watermark": step["watermark"] * unit,
        }
        for step in case["steps"]
    ]


def ordered_held(case: Case) -> list[int]:
    """Sequences that are held at the end."""
    return [row["ingress_sequence"] for row in case["buffered_at_end"]]


def window_definitions(case: Case) -> dict[str, Any]:
    """A window by the column `g`, with the count of its rows and the sum of `q`."""
    ((kind, size),) = case["window"].items()
    declared = [f"{each}s" for each in size] if kind == "hopping" else size if kind == "count" else f"{size}s"
    time: dict[str, Any] = {"enabled": case["time"] == "event"}
    if time["enabled"]:
        time["late_tolerance"] = f"{case['late_tolerance']}s"
    stream = {
        "columns": {"g": "string", "q": "int", "ts": "bigint"},
        "eventtime": {"column": "ts", "type": "unixtimestamp_ns"},
    }
    window = {
        "stream": STREAM,
        "window": {kind: declared},
        "eventtime": time,
        "group_by": ["g"],
        "select": {"rows": "count(*)", "total": "sum(q)"},
    }
    return {"streams": {STREAM: stream}, "windows": {WINDOW: window}}


def shared_definitions() -> tuple[dict[str, dict[str, Any]], list[str], list[str]]:
    """Definitions of all cases, the window of each case of windows, and the stream of each case of ordered output.

    For a ledger in which each case has tenants of its own. Equal definitions are one, because a range takes the longer
    the more there are. Rows of other cases do no harm, except in a window by arrival, which has a stream of its own.
    """
    toml: dict[str, dict[str, Any]] = {"streams": {}, "windows": {}}
    windows = []
    for case in WINDOW_CASES:
        own = window_definitions(case)
        stream = ARRIVALS if case["time"] == "processing" else STREAM
        toml["streams"][stream] = own["streams"][STREAM]
        windows.append(_named(WINDOW, own["windows"][WINDOW] | {"stream": stream}, toml["windows"]))
    ordered = [ordered_definitions(case)["streams"][STREAM] for case in ORDERED_CASES]
    streams = [_named("line", stream, toml["streams"]) for stream in ordered]
    return toml, windows, streams


def _named(kind: str, form: Mapping[str, Any], forms: dict[str, Any]) -> str:
    """The name of a definition of this form."""
    found = [name for name, there in forms.items() if name.startswith(kind) and there == form]
    name = found[0] if found else f"{kind}_{len(forms)}"
    forms[name] = form
    return name


def window_collections(case: Case) -> list[Collection]:
    return [(_instant(collection["at"]), _drafts(collection)) for collection in case["collections"]]


def closed_windows(case: Case) -> dict[Key, tuple[int, dict[str, Any]]]:
    """Every closed window with the source timestamp of its closing."""
    found: dict[Key, tuple[int, dict[str, Any]]] = {}
    for row in case["closed"]:
        start = _instant(row["start"])
        ((_, size),) = case["window"].items()
        seconds = size[0] if isinstance(size, list) else size
        end = _instant(row["end"]) if "end" in row else start + seconds * SECOND
        ordinal = {"window_ordinal": row["window_ordinal"]} if "window_ordinal" in row else {}
        key = key_text([row["g"], str(row["window_ordinal"]) if ordinal else instant_text(start)])
        span = {"window_start": start, "window_end": end}
        columns = {"g": row["g"], **ordinal, **span, "rows": row["count"], "total": Decimal(row["sum"])}
        found[row["tenant"], key] = (_instant(row["closed_at"]), columns)
    return found


def late_reasons(case: Case) -> dict[tuple[str, int], str]:
    """By tenant and sequence."""
    return {(row["tenant"], row["ingress_sequence"]): row["reason"] for row in case["late"]}


def case_events(collections: list[Collection]) -> list[Event]:
    """Collections as a ledger has them. They arrive at their source timestamp."""
    events: list[Event] = []
    for time, drafts in collections:
        for draft in drafts:
            events.append(Event(len(events) + 1, time, occurred_at=time, received_at=time, **draft))
    return events


def _drafts(collection: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "control" in collection:
        data = json.dumps({"type": collection["control"]})
        return [{"stream": "_tidelock", "tenant_id": "_tidelock", "data": data}]
    return [
        {
            "stream": STREAM,
            "tenant_id": row.get("tenant", "default"),
            "data": json.dumps({"g": row["g"], "q": row.get("q", 1), "ts": _instant(row["t"])}),
        }
        for row in collection["rows"]
    ]


def _instant(seconds: int | Decimal) -> int:
    return START + int(seconds * SECOND)
