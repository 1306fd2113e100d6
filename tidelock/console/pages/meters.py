"""Meters: other definitions before they are in force, tried on an event and on all of the ledger."""

from __future__ import annotations

from typing import Any

import msgspec
from nicegui import ui

from tidelock.console.api import ApiError
from tidelock.console.frame import Visit, page
from tidelock.console.pages.explain import explain_link
from tidelock.console.parts.forms import area, button, field
from tidelock.console.parts.numbers import figure, signed
from tidelock.console.parts.tables import Column, Row, rows_table
from tidelock.console.parts.texts import Tone, empty, panel, row
from tidelock.console.parts.times import ended

Json = dict[str, Any]

_DIFF = "/v1/meters/diff"
_TURN_S = 0.7
#: counters that are shown; and the most that are downloaded through the page
_SHOWN_MAX, _EXPORT_ROWS_MAX = 500, 100_000
_EVENT = '{\n  "stream": "api_calls",\n  "customerRef": "cus_1",\n  "quantity": 2\n}'
_HINT = '[meters.api_calls]\naggregation = "sum"\nperiod = "day"'
_OUTCOMES: dict[str, tuple[str, Tone]] = {
    "folded": ("counts", "good"),
    "adjusted": ("adjustment", "warn"),
    "error": ("error", "bad"),
    "not_counted": ("not counted", "plain"),
}


@page("/meters", title="Meters", about="Try definitions on an event and on the ledger, before they are in force")
async def meters(visit: Visit) -> None:
    definitions = None
    if "admin" in visit.scopes:
        with panel("Definitions", "the text of a tidelock.toml; leave it empty to try an event on the current ones"):
            definitions = area("Definitions", hint=_HINT)
    _Trial(visit, definitions)
    with panel("All events", "fold the ledger by these definitions beside the current ones; nothing changes") as place:
        try:
            state = await visit.api.get(_DIFF, limit=1)
        except ApiError as error:
            if error.status != 403:
                raise
            text = "A comparison covers the customers of all tenants, so it requires a key of all tenants."
            command = "tidelock keys create --tenant '*' --scope admin --scope read"
            empty("bars", "This needs another key", text, command)
            return
        _ComparisonBoard(visit, state, definitions, place)


class _Trial:
    """One event, and what each meter would make of it."""

    def __init__(self, visit: Visit, definitions: ui.textarea | None) -> None:
        self._visit = visit
        self._definitions = definitions
        with panel("One event", "as it would be sent; it is not recorded") as self._panel:
            self._event = area("Event", _EVENT)
            with row("tl-tools"):
                button("Try", self._press, icon="play", primary=True)
                self._verdict = ui.label("").classes("tl-muted tl-trial")
        self._table: ui.table | None = None

    async def _press(self) -> None:
        try:
            event = msgspec.Raw((self._event.value or "").encode())
            msgspec.json.decode(event)
            asked = {"event": event, "definitions": (self._definitions and self._definitions.value) or None}
            self._show(await self._visit.api.send("POST", "/v1/meters/try", asked))
        except msgspec.DecodeError as problem:
            self._say(f"the event is not JSON: {problem}", bad=True)
        except ApiError as error:
            self._say(error.message, bad=True)

    def _say(self, text: str, *, bad: bool = False) -> None:
        self._verdict.set_text(text)
        self._verdict.classes(add="tl-bad-text") if bad else self._verdict.classes(remove="tl-bad-text")
        if self._table is not None:
            self._table.delete()
            self._table = None

    def _show(self, found: Json) -> None:
        self._say(_verdict(found), bad=found["error"] is not None)
        # Most meters are on other streams: they come last.
        items = sorted(found["items"], key=lambda item: item["reason"] == "other_stream")
        rows = [_tried_row(item) for item in items]
        with self._panel:
            self._table = rows_table(_TRIED_COLUMNS, rows, key="metric", nothing="There is no meter.")


def _verdict(found: Json) -> str:
    if found["error"] is not None:
        return f"It would be rejected: {found['error']['message']}"
    if found["ingressSequence"] is not None:
        return f"A {found['verdict']} of sequence {found['ingressSequence']:,}: it would not count again."
    return f"It would be accepted, as of sequence {found['throughSequence']:,}."


_TRIED_COLUMNS = (
    Column("metric", "Meter"),
    Column("outcome", "", "chip"),
    Column("period", "Period", "time", wide=True),
    Column("group", "Group", wide=True),
    Column("quantity", "Quantity", "number"),
    Column("why", "Why", "words"),
)


def _start(instant: str | None) -> str | None:
    """Of a period: the day, and the time unless it starts with the day."""
    if instant is None:
        return None
    day, clock = instant[:10], instant[11:16]
    return day if clock == "00:00" else f"{day} {clock}"


def _tried_row(item: Json) -> Row:
    outcome, tone = _OUTCOMES[item["outcome"]]
    return {
        "metric": item["metric"],
        "outcome": outcome,
        "outcome_tone": tone,
        "period": _start(item["periodStart"]),
        "period_title": f"{item['periodStart']} to {item['periodEnd']}" if item["periodStart"] else None,
        "group": item["group"],
        "quantity": figure(item["quantity"]),
        "why": item["why"],
    }


class _ComparisonBoard:
    """The current comparison, and how to start one."""

    def __init__(self, visit: Visit, state: Json, definitions: ui.textarea | None, place: ui.element) -> None:
        self._visit = visit
        self._place = place
        self._definitions = definitions
        self._shown: Json | None = None
        with row("tl-tools"):
            self._title = ui.label("").classes("tl-verify-title")
            ui.element("div").classes("tl-grow")
            self._csv = button("CSV", self._export)
            self._button = None
            if definitions is not None:
                self._metric = field("Meter", hint="all that differ")
                self._button = button("Compare", self._press, icon="bars", primary=True)
        self._bar = ui.linear_progress(0, show_value=False, size="6px").classes("tl-progress")
        self._note = ui.label("").classes("tl-faint")
        self._trouble = ui.label("").classes("tl-bad-text tl-compare-trouble")
        self._trouble.set_visibility(False)
        self._table: ui.table | None = None
        visit.soon(lambda: self._show(state))
        visit.every(_TURN_S, self._turn)

    async def _turn(self) -> None:
        await self._show(await self._visit.api.get(_DIFF, limit=1))

    async def _press(self) -> None:
        running = self._shown is not None and self._shown["state"] == "running"
        definitions = "" if self._definitions is None else self._definitions.value or ""
        asked = {"definitions": definitions, "metric": self._metric.value or None}
        self._say_trouble("")
        if not running and not definitions.strip():
            self._say_trouble("write or paste definitions first, all that you want in force")
            return
        try:
            answer = await (
                self._visit.api.send("DELETE", _DIFF) if running else self._visit.api.send("POST", _DIFF, asked)
            )
        except ApiError as error:
            self._say_trouble(error.message)
            return
        await self._show(answer)

    def _say_trouble(self, text: str) -> None:
        self._trouble.set_text(text)
        self._trouble.set_visibility(bool(text))

    async def _export(self) -> None:
        async def act() -> None:
            ui.download(await self._visit.api.csv(_DIFF), "meters-diff.csv")

        await self._visit.tried(act)

    async def _show(self, state: Json) -> None:
        run = {name: value for name, value in state.items() if name != "items"}
        if run == self._shown:
            return
        settled = self._shown is None or self._shown["state"] != run["state"] or run["state"] != "running"
        self._shown = run
        running = run["state"] == "running"
        self._title.set_text(_title(run))
        self._note.set_text(_note(run))
        self._bar.set_visibility(running)
        self._bar.set_value(run["done"] / run["total"] if run["total"] else 0)
        if self._button is not None:
            self._button.set("Stop" if running else "Compare", "close" if running else "bars")
        if settled:
            await self._settle(run)

    async def _settle(self, run: Json) -> None:
        differ = run["count"] or 0
        self._csv.show(0 < differ <= _EXPORT_ROWS_MAX)
        found = await self._visit.api.get(_DIFF, limit=_SHOWN_MAX) if differ else {"items": []}
        rows = [_differing_row(at, item) for at, item in enumerate(found["items"])]
        if self._table is not None:
            self._table.delete()
            self._table = None
        if rows:
            with self._place:
                self._table = rows_table(_DIFFERING_COLUMNS, rows, key="_key")


def _title(run: Json) -> str:
    match run["state"]:
        case "running":
            return "Comparing"
        case "done" if run["count"]:
            return f"{run['count']:,} {'counter' if run['count'] == 1 else 'counters'} would differ"
        case "done":
            return "No counter would differ"
        case "failed":
            return "The comparison failed"
        case "stopped":
            return "Stopped"
        case _:
            return "Not compared since this server started"


def _note(run: Json) -> str:
    if run["state"] == "running":
        return f"{run['done']:,} of {run['total']:,} events" if run["total"] else "starting Spark"
    if run["error"] is not None:
        return str(run["error"])
    if run["finishedAt"] is None:
        return "It reads every event of the changed meters once, in a separate process with a Spark of its own."
    parts = [ended(run)]
    if run["state"] == "done":
        names = ", ".join(run["meters"])
        parts.append(f"{names or 'no meter differs'}, through sequence {run['throughSequence']:,}")
        if run["count"] > _SHOWN_MAX:
            parts.append(f"the {_SHOWN_MAX} greatest differences")
        if run["count"] > _EXPORT_ROWS_MAX:
            parts.append("tidelock meters diff --csv writes all")
        elif run["count"]:
            parts.append("to put them in force, copy them to tidelock.toml and run tidelock replay")
    return "; ".join(parts)


_DIFFERING_COLUMNS = (
    Column("customer", "Customer"),
    Column("metric", "Meter"),
    Column("tenant", "Tenant", wide=True),
    Column("period", "Period", "time"),
    Column("before", "Value", "number", wide=True),
    Column("after", "Would be", "number"),
    Column("total_before", "Total", "number", wide=True),
    Column("total_after", "Would be", "number", wide=True),
    Column("difference", "Difference", "number"),
)


def _differing_row(at: int, item: Json) -> Row:
    page_of = explain_link(item["metric"], item["customerRef"], item["tenantId"], item["periodStart"])
    return {
        "_key": at,
        # A counter that is new has no page yet.
        "_href": page_of if item["totalBefore"] is not None else None,
        "customer": item["customerRef"],
        "metric": item["metric"],
        "tenant": item["tenantId"],
        "period": _start(item["periodStart"]),
        "period_title": item["periodStart"],
        "before": figure(item["valueBefore"]),
        "after": figure(item["valueAfter"]),
        "total_before": figure(item["totalBefore"]),
        "total_after": figure(item["totalAfter"]),
        "difference": signed(item["difference"]),
    }
