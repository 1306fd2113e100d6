"""One event: its identity, its times, its causes and effects, and every derived row it touched."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any
from urllib.parse import quote

from nicegui import ui

from tidelock.console.api import ApiError
from tidelock.console.frame import Visit, page
from tidelock.console.icons import svg
from tidelock.console.lineage import Lookup, lookups

# Declared first: the path of an event matches every name below /events.
from tidelock.console.pages import errors  # noqa: F401
from tidelock.console.pages.batches import batch_link
from tidelock.console.parts.numbers import figure
from tidelock.console.parts.tables import cells, column_of, rows_table
from tidelock.console.parts.texts import chip, empty, facts, json_block, link, panel, row
from tidelock.console.parts.times import ago, milliseconds, whole_time
from tidelock.sections import number_of

Json = dict[str, Any]

# Events of a run drawn, and derived rows shown of one table.
_RUN_MAX, _ROWS_MAX = 60, 10
_SEQUENCE_MAX = 2**63 - 2
_NUMBER = re.compile(r"-?[0-9]+([.][0-9]+)?")

_KEY_SOURCES = {
    "client": "the producer, who sent it",
    "derived": "tenant, stream, customer, resource and time; of a correction its target",
    "none": "nothing: a retry would be recorded as a second event",
}

_STEP, _LANE, _LEFT, _TOP = 74, 58, 128, 30


@page("/events/{sequence}", title="Event", about="Its identity, its time, its causes, and what it led to")
async def event(visit: Visit, sequence: str) -> None:
    found = await _read(visit, int(sequence)) if sequence.isdecimal() and 0 < int(sequence) <= _SEQUENCE_MAX else None
    if found is None:
        with panel():
            empty(
                "search",
                f"There is no event {sequence}",
                "Sequences start at 1; this one may belong to another tenant.",
            )
            link("All events", "/events")
        return
    _steps(found)
    outcomes = ui.element("div").classes("tl-row tl-tools")
    await _correction(visit, found)
    with row():
        _identity(found)
        _clocks(found)
    with row():
        await _run(visit, found)
        with panel("Data"):
            _data(found)
    await _touched(visit, found, outcomes)


def _data(found: Json) -> None:
    if found["data"] is not None:
        json_block(found["data"])
    elif "error" in found:
        ui.label(f"It cannot be shown: {found['error']['message']}.").classes("tl-warn-text")
    else:
        ui.label("It has none.").classes("tl-faint")


async def _read(visit: Visit, sequence: int) -> Json | None:
    items = (await visit.api.exact("/admin/events", after=sequence - 1, before=sequence + 1, limit=1))["items"]
    return items[0] if items else None


def _steps(found: Json) -> None:
    sequence = found["ingressSequence"]
    with row("tl-tools"):
        ui.label(f"{found['stream']} · {sequence:,}").classes("tl-event-name")
        ui.element("div").classes("tl-grow")
        for icon, text, href in (("left", "Before", sequence - 1), ("right", "After", sequence + 1)):
            with ui.element("a").classes("tl-button").props(f'href="/events/{href}"'):
                ui.html(svg(icon), sanitize=False)
                ui.label(text)


async def _correction(visit: Visit, found: Json) -> None:
    """What it corrects, and what corrects it."""
    sequence, target = found["ingressSequence"], found["targetSequence"]
    later = (await visit.api.exact("/admin/events", targetSequence=sequence, limit=1))["items"]
    if target is None and not later:
        return
    with panel("Correction"):
        if target is not None:
            what = "takes it out of the meters" if found["op"] == "void" else "gives it another quantity or other data"
            with row("tl-tools"):
                chip(found["op"], "warn")
                ui.label("This event corrects")
                link(f"sequence {target:,}", f"/events/{target}")
                ui.label(f"and {what}.")
            facts([("Target", found["target"]), ("Reason", found["reason"])])
        for each in later:
            with row("tl-tools"):
                chip("void" if each["op"] == "void" else "amended", "bad" if each["op"] == "void" else "warn")
                ui.label("It was corrected by")
                link(f"sequence {each['ingressSequence']:,}", f"/events/{each['ingressSequence']}")
                ui.label(f"at {each['receivedAt']}" + (f": {each['reason']}" if each["reason"] else ""))


def _identity(found: Json) -> None:
    with panel("Identity"):
        facts(
            [
                ("Key", found["idempotencyKey"]),
                ("Key from", _KEY_SOURCES[found["keySource"]]),
                ("Tenant", found["tenantId"]),
                ("Stream", found["stream"]),
                ("Customer", found["customerRef"]),
                ("Resource", found["resourceId"]),
                ("Quantity", figure(found["quantity"])),
                ("Operation", found["op"]),
                ("Source", found["source"]),
                ("Commit", f"{found['commitId']:,}"),
                *([] if found["reason"] is None or found["target"] is not None else [("Reason", found["reason"])]),
            ]
        )
        if found["batchId"] is not None:
            link(f"Batch {found['batchId']}", batch_link(found["batchId"], found["tenantId"]))


def _clocks(found: Json) -> None:
    """Its three times, with the durations between them."""
    occurred, received = milliseconds(found["occurredAt"]), milliseconds(found["receivedAt"])
    ordered = milliseconds(found["sourceTimestamp"])
    with panel("Three clocks"), ui.element("div").classes("tl-clocks"):
        _clock("Occurred", found["occurredAt"], "the producer's clock")
        _between((received - occurred) / 1000, "later", "earlier: the producer's clock is ahead")
        _clock("Received", found["receivedAt"], "the database's clock")
        _between((ordered - received) / 1000, "later, to keep the order", "")
        _clock("Source timestamp", whole_time(found["sourceTimestamp"]), f"{found['sourceTimestamp']}, the order")


def _clock(name: str, instant: str, note: str) -> None:
    with ui.element("div").classes("tl-clock"):
        ui.label(name).classes("tl-clock-name")
        ui.label(instant).classes("tl-mono")
        ui.label(note).classes("tl-faint")


def _between(seconds: float, later: str, earlier: str) -> None:
    if abs(seconds) < 0.0005:
        text = "the same instant"
    else:
        length = f"{abs(seconds) * 1000:.0f} ms" if abs(seconds) < 1 else ago(abs(seconds))
        text = f"{length} {later if seconds > 0 else earlier}"
    ui.label(text).classes("tl-between")


async def _run(visit: Visit, found: Json) -> None:
    key = found["causalityKey"]
    with panel("Causality", None if key is None else key):
        if key is None:
            text = "It has no causalityKey, so its causes are unknown."
            ui.label(text).classes("tl-faint")
            return
        path = f"/v1/causality/{quote(key, safe='')}"
        told = await visit.api.get(path, limit=_RUN_MAX, tenantId=found["tenantId"])
        here = found["ingressSequence"]
        with ui.element("div").classes("tl-scroll"):
            ui.html(graph(told["items"], here), sanitize=False)
        cut = f"the first {_RUN_MAX} events" if told["next"] else number_of(len(told["items"]), "event")
        with row("tl-tools"):
            ui.label(f"{cut} of this run, in the ledger's order").classes("tl-faint")
            link("Show all", f"/events?causalityKey={quote(key)}")


async def _touched(visit: Visit, found: Json, outcomes: ui.element) -> None:
    definitions = await visit.api.get("/admin/definitions")
    asked = [(each, await _rows(visit, each, found["tenantId"])) for each in lookups(found, definitions)]
    given = [(each, rows) for each, rows in asked if rows]
    if any(each.table == "error_rows" and rows[0]["source"] == found["stream"] for each, rows in given):
        # An event that does not fit its stream touches no table; rows with its key come from other events.
        given = [(each, rows) for each, rows in given if each.tone == "warn"]
    with outcomes:
        chip("accepted", "good", title="Every event in the ledger was accepted once; repeats were duplicates")
        for each, _ in given:
            if each.tone == "warn":
                chip(each.name, "warn", title=each.what)
    with panel("Derived rows", "what the fold made of it, in its current state"):
        if not given:
            empty("layers", "No derived row", _why_none(found, definitions))
        for each, rows in given:
            _rows_of(each, rows)


async def _rows(visit: Visit, asked: Lookup, tenant: str) -> list[Json]:
    try:
        found = await visit.api.exact(f"/v1/tables/{asked.table}", where=asked.query, limit=_ROWS_MAX, tenantId=tenant)
    except ApiError as error:
        # A value that does not fit its column is an error row and in no table.
        if error.status in (404, 422):
            return []
        raise
    items: list[Json] = found["items"]
    return items


def _rows_of(asked: Lookup, rows: list[Json]) -> None:
    with ui.element("div").classes("tl-derived"):
        with row("tl-tools"):
            ui.label(asked.name).classes("tl-derived-name")
            ui.label(asked.what).classes("tl-faint")
        shown = [name for name in rows[0] if name != "tenant_id"]
        columns = [column_of(name, "decimal" if _figure(rows[0][name]) else "string") for name in shown]
        rows_table(columns, [{"$": at, **cells(columns, item)} for at, item in enumerate(rows)], key="$")


def _figure(value: Any) -> bool:
    """Whether it is a number: exact ones are strings."""
    return not isinstance(value, bool) and _NUMBER.fullmatch(str(value)) is not None


def _why_none(found: Json, definitions: Json) -> str:
    stream = found["stream"]
    used = stream in definitions["streams"] or any(
        each["stream"] == stream for kind in ("meters", "windows") for each in definitions[kind].values()
    )
    if not used:
        return f"No meter or window reads {stream}, and it has no key, so it is in the ledger only."
    return "The fold has not reached it yet, or its windows are still open."


def graph(events: Sequence[dict[str, Any]], here: int) -> str:
    """A drawing whose nodes link to their events; the event `here` is marked."""
    lanes = {stream: at for at, stream in enumerate(dict.fromkeys(event["stream"] for event in events))}
    places = {
        event["ingressSequence"]: (_LEFT + _STEP * at, _TOP + _LANE * lanes[event["stream"]])
        for at, event in enumerate(events)
    }
    width = _LEFT + _STEP * len(events)
    height = _TOP * 2 + _LANE * (len(lanes) - 1) + 14
    parts = [f'<svg class="tl-graph" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">']
    for stream, at in lanes.items():
        y = _TOP + _LANE * at
        parts.append(f'<line class="tl-lane" x1="{_LEFT - 20}" x2="{width}" y1="{y}" y2="{y}"/>')
        shown = stream if len(stream) <= 16 else stream[:15] + "…"
        parts.append(f'<text class="tl-lane-name" x="4" y="{y + 4}">{escape(shown)}</text>')
    caused = [event for event in events if event["parent"] in places]
    parts += [_edge(places[event["parent"]], places[event["ingressSequence"]]) for event in caused]
    parts += [_node(event, places[event["ingressSequence"]], here) for event in events]
    return "".join([*parts, "</svg>"])


def _edge(cause: tuple[int, int], effect: tuple[int, int]) -> str:
    (x1, y1), (x2, y2) = cause, effect
    # An effect may be recorded before its cause; then the edge points backward.
    way = 1 if x2 > x1 else -1
    start, end, middle = x1 + 8 * way, x2 - 9 * way, (x1 + x2) / 2
    if y1 == y2:
        # Within a lane the edge curves, or it would cross the nodes between.
        lift = 0 if abs(x2 - x1) <= _STEP else 22
        path = f"M{start} {y1} Q{middle} {y1 - lift} {end} {y2}"
    else:
        path = f"M{start} {y1} C{middle} {y1} {middle} {y2} {end} {y2}"
    tip = f"M{end - 5 * way} {y2 - 4} L{end} {y2} L{end - 5 * way} {y2 + 4}"
    return f'<path class="tl-edge" d="{path}"/><path class="tl-edge-end" d="{tip}"/>'


def _node(event: dict[str, Any], place: tuple[int, int], here: int) -> str:
    sequence, (x, y) = event["ingressSequence"], place
    marked = " tl-node-here" if sequence == here else ""
    title = escape(f"{event['stream']} {sequence:,}, {event['receivedAt']}")
    return (
        f'<a class="tl-node{marked}" href="/events/{sequence}" data-sequence="{sequence}"><title>{title}</title>'
        f'<circle class="tl-node-room" cx="{x}" cy="{y}" r="18"/><circle class="tl-node-dot" cx="{x}" cy="{y}" r="7"/>'
        f'<text x="{x}" y="{y + 23}">{sequence:,}</text></a>'
    )
