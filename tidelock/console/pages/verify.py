"""Verify: the checks of the ledger, run in the background, and what to do about a difference."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from tidelock.console.api import ApiError
from tidelock.console.frame import Visit, page
from tidelock.console.icons import svg
from tidelock.console.parts.forms import button
from tidelock.console.parts.texts import chip, code_block, empty, panel, row
from tidelock.console.parts.times import ended

Json = dict[str, Any]

_TURN_S = 0.7
#: check -> what it proves, and what to do if it finds a difference
_CHECKS = {
    "chain": (
        "Every commit's digest covers the previous one: nothing was changed, moved or inserted.",
        "Somebody wrote to the database directly. Restore an earlier backup, and find out who can write there.",
    ),
    "density": (
        "No number is missing except those that a commit recorded as skipped.",
        "Rows were deleted. Restore a backup; compare with the mirror and the lake.",
    ),
    "order": (
        "Source timestamps only increase, and control events have commits of their own.",
        "The order was tampered with. Restore an earlier backup.",
    ),
    "content": (
        "Each event still has the content it was hashed with.",
        "A row was changed. Restore a backup; the mirror and the lake have the event as recorded.",
    ),
    "identities": (
        "Each key belongs to the event that was recorded under it.",
        "Duplicates may be recorded again, or new events refused as duplicates. Restore the table `identities`.",
    ),
    "corrections": (
        "Each correction is noted with the event that it corrects.",
        "An event may be corrected twice, or a correction not be counted. Restore the table `corrections`.",
    ),
    "anchor": (
        "The file outside the database agrees: the tail was not cut off.",
        "The database is older than the file: was a backup restored? Then move the file away, and keep it.",
    ),
}
_ALL = "tidelock verify"


@page("/verify", title="Verify", about="Check that the ledger is what was recorded")
async def verify(visit: Visit) -> None:
    try:
        state = await visit.api.get("/admin/verify")
    except ApiError as error:
        if error.status != 403:
            raise
        with panel():
            text = "The chain covers the events of all tenants, so checking it requires a key of all tenants."
            empty(
                "shield", "This needs another key", text, "tidelock keys create --tenant '*' --scope admin --scope read"
            )
        return
    _VerifyBoard(visit, state)


class _VerifyBoard:
    """The current run."""

    def __init__(self, visit: Visit, state: Json) -> None:
        self._visit = visit
        self._shown: Json | None = None
        with panel():
            with row("tl-tools"):
                self._title = ui.label("").classes("tl-verify-title")
                ui.element("div").classes("tl-grow")
                may = "admin" in visit.scopes
                self._button = button("Check now", self._press, icon="shield", primary=True) if may else None
            self._bar = ui.linear_progress(0, show_value=False, size="6px").classes("tl-progress")
            self._note = ui.label("").classes("tl-faint")
            self._first = ui.element("div")
            self._results = ui.element("div").classes("tl-checks")
        with panel("Everything else", "checks that need Spark or other stores run in a terminal"):
            ui.label(
                "It checks the same and more: the tables against a fresh fold of the ledger, and Kafka, ClickHouse "
                "and the lake against the ledger, event by event."
            )
            code_block(_ALL)
        self._show(state)
        visit.every(_TURN_S, self._turn)

    async def _turn(self) -> None:
        self._show(await self._visit.api.get("/admin/verify"))

    async def _press(self) -> None:
        running = self._shown is not None and self._shown["state"] == "running"

        async def act() -> None:
            self._show(await self._visit.api.send("DELETE" if running else "POST", "/admin/verify"))

        await self._visit.tried(act)

    def _show(self, state: Json) -> None:
        if state == self._shown:
            return
        settled = self._shown is None or self._shown["state"] != state["state"]
        self._shown = state
        running = state["state"] == "running"
        self._title.set_text(_title(state))
        self._note.set_text(_note(state))
        self._bar.set_visibility(running)
        self._bar.set_value(state["done"] / state["total"] if state["total"] else 0)
        if self._button is not None:
            self._button.set("Stop" if running else "Check now", "close" if running else "shield")
        if settled:
            self._settle(state)

    def _settle(self, state: Json) -> None:
        self._first.clear()
        self._results.clear()
        if state["first"] is not None:
            with self._first, ui.element("div").classes("tl-finding tl-bad"):
                ui.html(svg("alert"), sanitize=False)
                with ui.element("div").classes("tl-finding-text"):
                    ui.label("First difference").classes("tl-finding-title")
                    ui.label(state["first"])
        with self._results:
            found = {check["name"]: check for check in state["checks"]}
            for name in dict.fromkeys([*found, *_CHECKS]):
                _check(name, found.get(name), running=state["state"] == "running")


def _check(name: str, found: Json | None, *, running: bool) -> None:
    proves, mend = _CHECKS.get(name, ("", ""))
    with ui.element("div").classes("tl-check"):
        if found is None:
            chip("running" if running else "not run", "calm" if running else "plain")
        else:
            chip("ok" if found["ok"] else "differs", "good" if found["ok"] else "bad")
        with ui.element("div").classes("tl-check-text"):
            ui.label(name).classes("tl-finding-title")
            ui.label(found["detail"] if found else proves).classes("tl-muted")
            if found and not found["ok"] and mend:
                ui.label(mend).classes("tl-mend")


def _title(state: Json) -> str:
    match state["state"]:
        case "running":
            return "Checking"
        case "done":
            return "The ledger is what was recorded" if state["ok"] else "The ledger differs from what was recorded"
        case "failed":
            return "The check could not run"
        case "stopped":
            return "Stopped"
        case _:
            return "Not checked since this server started"


def _note(state: Json) -> str:
    if state["state"] == "running":
        return f"{state['done']:,} of {state['total']:,} sequences" if state["total"] else "starting"
    if state["error"] is not None:
        return str(state["error"])
    if state["finishedAt"] is None:
        return "It reads every event once, in a separate process; producers and readers continue."
    return ended(state)
