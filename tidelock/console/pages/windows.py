"""Windows: watermarks, late rows, and closed windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from tidelock.console.api import query
from tidelock.console.eventtimes import picture
from tidelock.console.frame import Visit, page
from tidelock.console.parts.forms import Segments, button, choice
from tidelock.console.parts.picture import EventTimePicture, LastEvents
from tidelock.console.parts.rowlist import RowList
from tidelock.console.parts.tables import Column, PageTurner, Row, cells, column_of, rows_table
from tidelock.console.parts.texts import empty, grid, panel, row, stat
from tidelock.console.parts.times import ago, clock_time, since
from tidelock.definitions.eventtimes import EVENTTIME_ALIASES, EVENTTIME_TYPES
from tidelock.durations import parse_duration
from tidelock.sections import number_of, shown

Json = dict[str, Any]

_EVERY_S = 3.0
#: events drawn, and events before them that only establish the watermark
_DRAWN = {"150": "150", "400": "400", "900": "900"}
_WARM = 100
_LATE = """query($where: late_rows_bool_exp) {
  late_rows(where: $where, order_by: {ingress_sequence: desc}, limit: 1000) { ingress_sequence watermark reason }
}"""
_WINDOW = """[windows.volume_1m]
stream = "trades"
window = { tumbling = "1m" }
eventtime = { enabled = true, late_tolerance = "5s" }
group_by = ["symbol"]
select = { volume = "sum(quantity)", trades = "count(*)" }"""

_LATE_COLUMNS = [
    Column("ingress_sequence", "Sequence", "number", sorts=True),
    Column("event_time", "Happened", "time", sorts=True),
    Column("watermark", "Watermark then", "time", sorts=True),
    Column("reason", "Reason", "chip", sorts=True),
]

_BY_ARRIVAL = "This window is by arrival: nothing is late or held, so there is no diagram."

_ROWS = 25
_ROWS_EVERY_S = 5.0


@page("/windows", title="Windows", about="When events happened and when they were recorded")
async def windows(visit: Visit) -> None:
    outputs = outputs_of(await visit.api.get("/admin/definitions"))
    if not outputs:
        text = "A window groups events by the time they happened. Define one in tidelock.toml and restart:"
        empty("window", "No windows defined", text, _WINDOW)
        return
    wanted = visit.query.get("window", next(iter(outputs)))
    if wanted not in outputs:
        empty("window", "No such window", f"{shown(wanted)} is not defined; available: {', '.join(outputs)}.")
        return
    tenants = await _tenants(visit, wanted)
    tenant = visit.tenant or visit.query.get("tenantId") or (tenants[0] if tenants else None)
    _choices(visit, outputs, wanted, tenants, tenant)
    await WindowView(visit, outputs[wanted], tenant).show()


async def _tenants(visit: Visit, window: str) -> list[str]:
    """Tenants with rows, the latest first."""
    if visit.tenant is not None:
        return [visit.tenant]
    told = (await visit.api.get("/admin/event-health", window=window))["windows"]
    return [each["tenantId"] for each in sorted(told, key=lambda each: each["maxTimestampSeen"] or "", reverse=True)]


def _choices(visit: Visit, outputs: Json, window: str, tenants: list[str], tenant: str | None) -> None:
    def go() -> None:
        asked = {"window": chosen.value}
        # Another window may have other tenants.
        if visit.tenant is None and of_tenant is not None and chosen.value == window:
            asked["tenantId"] = of_tenant.value
        ui.navigate.to(f"/windows?{urlencode(asked)}")

    with row("tl-tools"):
        chosen = choice("Window", list(outputs), window, act=go)
        of_tenant = None
        if visit.tenant is None and tenant is not None:
            of_tenant = choice("Tenant", list(dict.fromkeys([*tenants, tenant])), tenant, act=go)
        ui.label(outputs[window].words).classes("tl-about tl-grow")


class WindowView:
    """One window, or ordered output, of one tenant."""

    def __init__(self, visit: Visit, output: TimedOutput, tenant: str | None) -> None:
        self._visit = visit
        self._output = output
        self._tenant = tenant
        self._events = None if tenant is None else LastEvents(visit.api, output.stream, tenant)

    async def show(self) -> None:
        with grid():
            self._watermark = stat("Watermark")
            self._seen = stat("Latest event time")
            self._late = stat("Late rows")
            self._held = stat("Held back")
        if self._output.drawn:
            with panel():
                with row("tl-tools"):
                    with ui.element("div").classes("tl-grow"):
                        ui.label(f"The last events of {self._output.stream}").classes("tl-h2")
                        ui.label("When they happened (vertical) and when they were recorded (horizontal)").classes(
                            "tl-about"
                        )
                    self._drawn = Segments(_DRAWN, "400", self._resize, label="Events drawn")
                    self._pause = button("Pause", self._toggle, icon="pause")
                self._picture = EventTimePicture()
                self._nothing = ui.label("").classes("tl-about")
        else:
            with panel():
                ui.label(self._output.undrawn).classes("tl-about")
        of_tenant = {} if self._tenant is None else {"tenant_id": {"_eq": self._tenant}}
        if self._output.newest != "position":
            await OpenRows(self._visit, self._output, self._tenant).show()
        await self._rows(self._output.table, self._output.columns, self._output.newest, of_tenant)
        if self._output.tolerance is not None:
            await self._late_rows({"window": {"_eq": self._output.window}, **of_tenant})
        self._timer = self._visit.every(_EVERY_S, self._read)

    async def _rows(self, table: str, columns: Sequence[Column], newest: str, where: Json) -> None:
        async def made(items: list[Json]) -> list[Row]:
            return [cells(columns, item) for item in items]

        with panel(self._output.rows_title, self._output.rows_about):
            rows = RowList(self._visit, table, columns, made, sort=(newest, True))
            rows.where = where
            names = [column.name for column in columns]
            rows.draw(names, nothing=self._output.nothing, labels=("Newer", "Older"), rows=_ROWS)
        await self._visit.tried(rows.read)
        self._visit.every(_ROWS_EVERY_S, rows.again)

    async def _late_rows(self, where: Json) -> None:
        async def made(items: list[Json]) -> list[Row]:
            return [
                {**cells(_LATE_COLUMNS, item), "reason_tone": "warn", "_href": f"/events/{item['ingress_sequence']}"}
                for item in items
            ]

        with panel("Late rows", "Events at or behind the watermark, or before a drain; they are in no window"):
            rows = RowList(self._visit, "late_rows", _LATE_COLUMNS, made, sort=("ingress_sequence", True))
            rows.where = where
            names = [column.name for column in _LATE_COLUMNS]
            rows.draw(names, nothing="Nothing arrived too late.", labels=("Newer", "Older"), rows=_ROWS)
        await self._visit.tried(rows.read)
        self._visit.every(_ROWS_EVERY_S, rows.again)

    async def _read(self) -> None:
        health = await self._visit.api.get("/admin/event-health", window=self._output.window, tenantId=self._tenant)
        states = health["windows"]
        if states and self._tenant is None:
            # The tenant was not known when the page was created.
            ui.navigate.reload()
            return
        self._show_state(states[0] if states else None)
        if self._output.drawn:
            await self._draw(health)

    def _show_state(self, state: Json | None) -> None:
        if state is None:
            self._watermark.set("–", "no events yet")
            return
        mark, seen = state["watermark"], state["maxTimestampSeen"]
        self._watermark.set(clock_time(mark) or "–", f"{ago(since(mark))} behind now" if mark else "")
        self._seen.set(clock_time(seen) or "–", "of events that were not late")
        late = state["lateDroppedCount"]
        self._late.set(f"{late:,}", "in no window", "warn" if late else "plain")
        raised = state["watermarkEmittedCount"]
        self._held.set(f"{state['bufferSize']:,}", f"raised {number_of(raised, 'time')}")

    async def _draw(self, health: Json) -> None:
        output, last, drawn = self._output, self._events, int(self._drawn.value)
        assert output.eventtime is not None
        assert output.tolerance is not None
        if last is not None:
            await last.read(health["head"]["ingressSequence"], drawn + _WARM)
        events = [] if last is None else last.items
        self._picture.set_visibility(bool(events))
        if last is None:
            self._nothing.set_text(
                f"No events of {output.stream} have been folded yet. The overview shows how far the fold is."
            )
        else:
            self._nothing.set_text("" if events else f"No event of {output.stream} is among the last million.")
        if last is None or not events:
            return
        where = {
            "window": {"_eq": output.window},
            "tenant_id": {"_eq": self._tenant},
            "ingress_sequence": {"_gte": str(events[0]["ingressSequence"])},
        }
        late = (await query(self._visit.api, _LATE, {"where": where}))["late_rows"]
        warm = max(0, len(events) - drawn) if last.more else 0
        known = {int(each["ingress_sequence"]): each for each in late}
        judged = next((each["ingressSequence"] for each in health["readers"] if each["name"] == "fold"), 0)
        found = picture(events, output.eventtime, output.tolerance, known, judged=judged, warm=warm)
        self._picture.show(found, output.size)

    async def _resize(self, _: str) -> None:
        await self._visit.tried(self._read)

    def _toggle(self) -> None:
        if self._timer.active:
            self._timer.deactivate()
            self._pause.set("Go on", "play")
        else:
            self._timer.activate()
            self._pause.set("Pause", "pause")


@dataclass(frozen=True, slots=True)
class TimedOutput:
    """A window, or an ordered output."""

    window: str
    stream: str
    table: str
    columns: Sequence[Column]
    #: the column that orders rows by age
    newest: str
    #: the definition in one line
    words: str
    #: where events have their time; None: time of arrival
    eventtime: Mapping[str, str] | None
    tolerance: str | None
    #: nanoseconds of a tumbling window
    size: int | None

    @property
    def drawn(self) -> bool:
        """Whether event times can be read here: only the fold knows plugin types."""
        if self.eventtime is None or self.tolerance is None:
            return False
        return self.eventtime.get("type") in (None, *EVENTTIME_TYPES, *EVENTTIME_ALIASES)

    @property
    def undrawn(self) -> str:
        if self.eventtime is None or self.tolerance is None:
            return _BY_ARRIVAL
        return (
            f"The time of these events is parsed by a plugin ({self.eventtime['type']}), which runs only in the fold."
        )

    @property
    def rows_title(self) -> str:
        return "Rows" if self.newest == "position" else "Closed"

    @property
    def rows_about(self) -> str:
        return "Released in event-time order" if self.newest == "position" else "Final, newest first"

    @property
    def nothing(self) -> str:
        return "Nothing has been released yet." if self.newest == "position" else "No window has closed yet."


def outputs_of(definitions: Json) -> dict[str, TimedOutput]:
    """All outputs, by name."""
    tables = {table["name"]: table["columns"] for table in definitions["tables"]}
    found = [_window(name, form, definitions, tables) for name, form in definitions["windows"].items()]
    ordered = [name for name, form in definitions["streams"].items() if form.get("ordered")]
    found += [_ordered(name, definitions["streams"][name], tables) for name in ordered]
    return {output.window: output for output in found}


def _window(name: str, form: Json, definitions: Json, tables: Json) -> TimedOutput:
    timing = form["eventtime"]
    by_event_time = timing.get("enabled", False)
    stream = definitions["streams"].get(form["stream"], {})
    ((kind, measure),) = form["window"].items()
    size = f"{measure[0]} every {measure[1]}" if isinstance(measure, list) else str(measure)
    how = f"event time, {timing.get('late_tolerance', '0s')} of lateness" if by_event_time else "time of arrival"
    groups = f", by {' and '.join(form['group_by'])}" if form["group_by"] else ""
    return TimedOutput(
        window=name,
        stream=form["stream"],
        table=name,
        columns=_columns(tables.get(name, {}), first=["window_start"]),
        newest="window_start",
        words=f"{kind} {size} over {form['stream']}{groups}; {how}",
        eventtime=stream.get("eventtime") if by_event_time else None,
        tolerance=timing.get("late_tolerance", "0s") if by_event_time else None,
        size=parse_duration(measure) if kind == "tumbling" else None,
    )


def _ordered(stream: str, form: Json, tables: Json) -> TimedOutput:
    name = f"{stream}_ordered"
    tolerance = form["eventtime"].get("late_tolerance", "0s")
    return TimedOutput(
        window=name,
        stream=stream,
        table=name,
        columns=_columns(tables.get(name, {}), first=["position"]),
        newest="position",
        words=f"{stream} in event-time order; {tolerance} of lateness",
        eventtime=form["eventtime"],
        tolerance=tolerance,
        size=None,
    )


def _columns(declared: Mapping[str, str], *, first: list[str]) -> list[Column]:
    names = [*first, *(name for name in declared if name not in first)]
    return [
        column_of(name, declared[name], wide=at > 4, sorts=declared[name] != "json")
        for at, name in enumerate(names)
        if name in declared
    ]


class OpenRows:
    """Open windows, which still change."""

    def __init__(self, visit: Visit, output: TimedOutput, tenant: str | None) -> None:
        self._visit = visit
        self._output = output
        self._tenant = tenant
        self._turning = PageTurner(visit, self._read)

    async def show(self) -> None:
        with panel("Open", "Not closed yet: as they would be now. The next event may change them"):
            columns = [Column("state", "", "chip"), *(replace(each, sorts=False) for each in self._output.columns)]
            self._table = rows_table(columns, [], key="_key", nothing="No window is open.")
            self._turning.draw()
        self._visit.every(_EVERY_S, self._read)

    async def _read(self) -> None:
        path, of_tenant = f"/v1/tables/{self._output.table}", {"tenantId": self._tenant}
        found = await self._visit.api.exact(path, open="true", limit=_ROWS, cursor=self._turning.cursor, **of_tenant)
        rows = [
            {"_key": number, "state": "open", "state_tone": "calm", **cells(self._output.columns, item)}
            for number, item in enumerate(found["items"])
        ]
        if rows != self._table.rows:
            self._table.rows = rows
        self._turning.took(found)
