"""Overview: incoming events, readers and their lag, and whether anything needs attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nicegui import ui

from tidelock.console import attention
from tidelock.console.api import ApiError
from tidelock.console.attention import Notice
from tidelock.console.frame import Visit, nothing_recorded, page
from tidelock.console.icons import svg
from tidelock.console.parts.charts import axes, bars, chart, tooltip
from tidelock.console.parts.tables import Column, rows_table
from tidelock.console.parts.texts import Stat, code_block, grid, link, panel, row, stat
from tidelock.console.parts.times import ago, milliseconds, since, whole_time
from tidelock.sections import number_of

_MOVING_S, _SLOW_S = 2.0, 15.0
# Triggers checked for dead letters.
_TRIGGERS_MAX = 20
#: verdict -> label and colour
_VERDICTS = {
    "accepted": ("accepted", "accent"),
    "duplicates": ("duplicate", "faint"),
    "conflicts": ("conflict", "warn"),
    "rejected": ("rejected", "bad"),
}


@page("/", title="Overview", about="Incoming events, progress of the readers, and what needs attention")
async def overview(visit: Visit) -> None:
    if await nothing_recorded(visit):
        return
    board = _OverviewBoard(visit)
    await board.move()
    visit.every(_MOVING_S, board.move)
    visit.every(_SLOW_S, board.look_around)


class _OverviewBoard:
    """The parts of the page that change."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._steps: list[dict[str, Any]] = []
        self._readers: list[dict[str, Any]] = []
        #: notices from what is read rarely
        self._around: list[Notice] = []
        self._shown: list[Notice] | None = None
        with grid("tl-four"):
            self._rate = stat("Events a second")
            self._head = stat("Ledger")
            self._fresh = stat("Last event")
            self._behind = stat("Slowest reader")
        self._findings = ui.element("div").classes("tl-findings")
        with row():
            with panel("Throughput", "events per second, last ten minutes", classes="tl-broad"):
                self._chart = chart(_options(), height=232, label="Events per second by verdict")
            with panel("Verdicts", "ten minutes"):
                self._shares = Shares([(told, token) for told, token in _VERDICTS.values()])
        with panel("Readers", "the event through which each is complete"):
            columns = [
                Column("name", "Reader"),
                Column("through", "Through sequence", "number"),
                Column("events", "Behind, events", "number"),
                Column("seconds", "Behind, time", "number"),
                Column("state", "", "chip"),
            ]
            self._table = rows_table(columns, [], key="name", nothing="No reader has started.")

    async def move(self) -> None:
        activity = await self._visit.api.get("/admin/activity", tenantId=self._visit.tenant)
        health = await self._visit.api.get("/admin/event-health", tenantId=self._visit.tenant)
        self._steps, self._readers = activity["items"], health["readers"]
        step_s = activity["stepSeconds"]
        # The last step is incomplete and would always look like a drop.
        over = _since_first(self._steps[:-1])
        rate = sum(step["accepted"] for step in over[-5:]) / (5 * step_s)
        refused = sum(step["rejected"] + step["conflicts"] for step in over[-5:])
        self._rate.set(_rate(rate), f"{refused:,} rejected in ten seconds" if refused else "recorded, over ten seconds")
        _show_head(self._head, self._fresh, health["head"])
        _show_slowest(self._behind, self._readers)
        for series, name in zip(self._chart.options["series"], _VERDICTS, strict=True):
            series["data"] = [[milliseconds(step["at"]), step[name] / step_s] for step in over]
        self._chart.update()
        self._shares.set([sum(step[name] for step in self._steps) for name in _VERDICTS])
        self._table.rows = [_reader(reader) for reader in self._readers]
        self._tell()

    async def look_around(self) -> None:
        """Refresh what changes rarely and costs more to read."""
        api, tenant = self._visit.api, self._visit.tenant
        definitions = await api.get("/admin/definitions")
        errors = await api.get("/v1/errors", limit=1, tenantId=tenant)
        self._around = [
            *attention.of_definitions(definitions),
            *attention.of_dead_letters(await self._dead()),
            *attention.of_errors(errors["items"]),
        ]
        self._tell()

    async def _dead(self) -> list[str]:
        """Triggers with dead letters; empty for a key that may not see them."""
        api = self._visit.api
        try:
            triggers = await api.get("/v1/triggers", limit=_TRIGGERS_MAX)
        except ApiError as error:
            if error.status != 403:
                raise
            return []
        names = [trigger["name"] for trigger in triggers["items"]]
        return [
            name
            for name in names
            if (await api.get(f"/v1/triggers/{name}/deliveries", status="dead", limit=1))["items"]
        ]

    def _tell(self) -> None:
        found = [*attention.of_readers(self._readers), *attention.of_activity(self._steps), *self._around]
        if found == self._shown:
            return
        self._shown = found
        self._findings.clear()
        with self._findings:
            if not found:
                _all_well()
            for finding in found:
                _finding(finding)


def _since_first(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the time before the first response, when the server was not running; at least two minutes remain."""
    first = next((at for at, step in enumerate(steps) if any(step[name] for name in _VERDICTS)), 0)
    return steps[min(first, len(steps) - 60) :]


def _options() -> dict[str, Any]:
    stacked = [bars(told, token, [], stack="verdicts") for told, token in _VERDICTS.values()]
    for series in stacked:
        series["barCategoryGap"] = "12%"
    return {**axes(), "tooltip": tooltip(), "series": stacked}


def _show_head(head: Stat, fresh: Stat, told: dict[str, Any]) -> None:
    age = since(whole_time(told["sourceTimestamp"]))
    head.set(f"{told['ingressSequence']:,}", "last sequence")
    fresh.set(f"{ago(max(age, 0.0))} ago", "by the database's clock", "warn" if age > 60 else "plain")


def _show_slowest(behind: Stat, readers: list[dict[str, Any]]) -> None:
    if not readers:
        behind.set("–", "no readers yet")
        return
    slowest = max(readers, key=lambda reader: reader["lagSeconds"])
    seconds = slowest["lagSeconds"]
    note = f"{slowest['name']}, {number_of(slowest['lagSequences'], 'event')} behind"
    behind.set(ago(seconds), note, "bad" if seconds > 30 else "warn" if seconds > 5 else "good")


def _reader(reader: dict[str, Any]) -> dict[str, Any]:
    seconds = reader["lagSeconds"]
    tone, state = (
        ("bad", "behind") if seconds > 30 else ("warn", "catching up") if seconds > 5 else ("good", "up to date")
    )
    return {
        "name": reader["name"],
        "through": f"{reader['ingressSequence']:,}",
        "events": f"{reader['lagSequences']:,}",
        "seconds": ago(seconds),
        "state": state,
        "state_tone": tone,
    }


def _rate(events: float) -> str:
    return f"{events:,.0f}" if events >= 10 else f"{events:.1f}"


def _all_well() -> None:
    with ui.element("div").classes("tl-finding tl-good"):
        ui.html(svg("check"), sanitize=False)
        ui.label("All clear: readers keep up, and nothing needs fixing.")


def _finding(finding: Notice) -> None:
    with ui.element("div").classes(f"tl-finding tl-{finding.tone}"):
        ui.html(svg("alert"), sanitize=False)
        with ui.element("div").classes("tl-finding-text"):
            ui.label(finding.title).classes("tl-finding-title")
            ui.label(finding.text)
        if finding.command is not None:
            code_block(finding.command)
        if finding.href is not None:
            link("Look", finding.href)


class Shares:
    """Kinds with a colour each; `set` gives the figures."""

    def __init__(self, kinds: Sequence[tuple[str, str]]) -> None:
        """Each kind is its name and the token of its colour."""
        with ui.element("div").classes("tl-shares"):
            with ui.element("div").classes("tl-shares-bar"):
                self._parts = [ui.element("span").style(f"background: var(--{token})") for _, token in kinds]
            self._figures: list[ui.label] = []
            self._percents: list[ui.label] = []
            for name, token in kinds:
                with ui.element("div").classes("tl-share"):
                    ui.element("i").style(f"background: var(--{token})")
                    ui.label(name)
                    self._percents.append(ui.label("").classes("tl-share-percent"))
                    self._figures.append(ui.label("–").classes("tl-share-figure"))

    def set(self, figures: Sequence[int]) -> None:
        whole = sum(figures)
        for part, label, percent, figure in zip(self._parts, self._figures, self._percents, figures, strict=True):
            share = figure / whole if whole else 0.0
            # A small share keeps a visible sliver.
            part.style(f"flex: {share:.5f} 1 {'3px' if figure else '0'}")
            label.set_text(f"{figure:,}")
            percent.set_text(f"{share:.1%}" if whole else "")
