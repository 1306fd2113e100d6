"""A counter explained: its figures, what they consist of, its other periods, its groups, and its events."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from nicegui import ui
from nicegui.events import EChartPointClickEventArguments

from tidelock.console.api import ApiError
from tidelock.console.frame import Visit
from tidelock.console.icons import svg
from tidelock.console.parts.charts import axes, bars, chart, colour, tooltip
from tidelock.console.parts.forms import button, field
from tidelock.console.parts.numbers import figure, signed
from tidelock.console.parts.tables import Column, PageTurner, Row, rows_table
from tidelock.console.parts.texts import Tone, chip, empty, link, panel, row
from tidelock.console.parts.times import clock_time, period_name
from tidelock.instants import SECOND, format_instant, parse_rfc3339

Json = dict[str, Any]

_ROWS = 50
_PARTS: dict[str, tuple[str, Tone, str]] = {
    "folded": ("on time", "calm", "counted in the value"),
    "adjusted": ("late", "warn", "counted in the total only"),
    "withdrawn": ("corrected late", "warn", "counted in the value, and no longer in the total"),
    "void": ("void", "calm", "takes an earlier event out"),
    "amend": ("amendment", "calm", "replaces an earlier event"),
    "error": ("error", "bad", "something is missing or does not fit"),
    "filtered": ("filtered", "plain", "left out by the meter's filter"),
    "deleted": ("removal", "plain", "removes a row, so it is not counted"),
    "pending": ("later", "plain", "recorded after the sequence through which this is complete"),
}
# A customer and a group may have an empty name; other empty parameters count as absent.
_NAMES = frozenset({"customerRef", "group"})
_ASKED = ("metric", "customerRef", "tenantId", "period", "group", "groupNull", "asOf")

_DAY = 86_400 * SECOND
#: period -> how far the chart extends to both sides
_AROUND = {"hour": 2 * _DAY, "day": 31 * _DAY, "week": 182 * _DAY, "month": 550 * _DAY}
_ADDED = ("sum", "count")
#: period -> what its chart divides it into
_FINER = {"day": "hour", "week": "day", "month": "day"}


def explain_link(metric: str, customer: str, tenant: str, period: str) -> str:
    """The page that explains a counter."""
    asked = {"metric": metric, "customerRef": customer, "tenantId": tenant, "period": period}
    return f"/counters/explain?{urlencode(asked)}"


async def explained(visit: Visit) -> None:
    """The page of one counter."""
    asked = {name: visit.query[name] for name in _ASKED if visit.query.get(name) or name in visit.query.keys() & _NAMES}
    if "metric" not in asked or "customerRef" not in asked:
        empty("bars", "Which counter?", "Choose a counter in the list.")
        link("All counters", "/counters")
        return
    _way_back(asked)
    try:
        found = await visit.api.exact("/v1/explain", **asked, limit=_ROWS)
    except ApiError as error:
        if error.status not in (400, 404):
            raise
        empty("bars", "Nothing to explain", error.message)
        return
    _headline(found)
    with row("tl-explain"):
        with panel("How it is made up", classes="tl-broad"):
            _composition(found)
        with panel("By which rules"):
            _rules(visit, found, asked)

    async def others() -> None:
        await period_chart(visit, found, asked)
        if not asked.keys() & {"group", "groupNull"}:
            await _parts_chart(visit, found, asked)
            await _groups(visit, found, asked)

    visit.soon(others)
    await Events(visit, asked, found).show()


def _way_back(asked: Json) -> None:
    with ui.element("div").classes("tl-crumbs"):
        link("Counters", "/counters")
        link(asked["metric"], f"/counters?{urlencode({'metric': asked['metric']})}")
        whose: Json = {name: asked[name] for name in ("customerRef", "tenantId") if name in asked}
        link(asked["customerRef"] or "(empty)", f"/counters/customer?{urlencode(whose)}")
        if asked.keys() & {"group", "groupNull"}:
            ui.label(_group_name(asked.get("group")))


def _headline(found: Json) -> None:
    """The number, and why in a sentence."""
    with ui.element("section").classes("tl-panel tl-answer"):
        with ui.element("div").classes("tl-answer-main"):
            about = (
                f"{found['metric']} of {found['customerRef']} in {period_name(found['period'], found['periodStart'])}"
            )
            ui.label(about).classes("tl-stat-name")
            ui.label(figure(found["total"]) or "–").classes("tl-answer-figure").props('data-is="total"')
            ui.label(found["why"]).classes("tl-answer-why")
        with ui.element("dl").classes("tl-answer-facts"):
            _fact("On time", figure(found["value"]), "value")
            _fact("Late", figure(found["adjustment"]), "adjustment", warn=found["adjustment"] not in (None, "0"))
            _fact("Latest event", clock_time(found["watermark"]), "watermark", title=found["watermark"])
            _fact("Sequences", _range(found["firstSequence"], found["lastSequence"]), "sequences")
            _fact("Complete through", f"{found['throughSequence']:,}", "through")


def _fact(name: str, value: str | None, mark: str, *, warn: bool = False, title: str | None = None) -> None:
    with ui.element("div"):
        with ui.element("dt"):
            ui.label(name)
        with ui.element("dd").classes("tl-warn-text" if warn else "").props(f'data-is="{mark}"') as made:
            ui.label("–" if value is None else value)
        if title is not None:
            made._props["title"] = title


def _composition(found: Json) -> None:
    """What became of the events, as one bar and a line each."""
    counts = {
        "folded": found["folded"]["count"],
        "adjusted": found["adjusted"]["count"],
        "withdrawn": found["withdrawn"]["count"],
        "error": found["errors"]["count"],
        "filtered": found["filtered"],
        "deleted": found["deleted"],
        "pending": found["pending"],
    }
    shown = {part: count for part, count in counts.items() if count or part in ("folded", "adjusted")}
    with ui.element("div").classes("tl-made"):
        for part, count in shown.items():
            if count:
                # At least a sliver of each: rare outcomes are what people look for.
                ui.element("span").classes(f"tl-made-{_PARTS[part][1]}").style(f"flex: {count} 1 4px")
    with ui.element("div").classes("tl-parts"):
        for part, count in shown.items():
            name, tone, about = _PARTS[part]
            with ui.element("div").classes("tl-part"):
                chip(name, tone)
                ui.label(f"{count:,}").classes("tl-part-count").props(f'data-is="count-{part}"')
                ui.label(_figures(found, part) or about).classes("tl-about")


def _figures(found: Json, part: str) -> str | None:
    if part == "error":
        return ", ".join(f"{count:,} {code}" for code, count in found["errors"]["codes"].items() if count) or None
    if part not in ("folded", "adjusted", "withdrawn") or not found[part]["count"]:
        return None
    figures = found[part]
    told = {"sum": "sum", "avg": "sum", "max": "max", "min": "min", "last": "last"}.get(found["aggregation"])
    amount = "" if told is None else f"{told} {figure(figures[told])}, "
    return f"{amount}sequences {_range(figures['firstSequence'], figures['lastSequence'])}"


def _rules(visit: Visit, found: Json, asked: Json) -> None:
    words = found["definition"]
    ui.label(f"{words[:1].upper()}{words[1:]}.").classes("tl-words")
    agrees = found["agrees"]
    if agrees is None:
        chip(f"as of sequence {asked.get('asOf', '')}", "calm", title="Recomputed from the ledger as of that sequence")
    else:
        with ui.element("div").classes("tl-agrees" if agrees else "tl-agrees tl-bad"):
            ui.html(svg("check" if agrees else "alert"), sanitize=False)
            ui.label(
                "Recomputed from the ledger just now: the stored counter agrees."
                if agrees
                else "The stored counter differs from what the ledger gives: run tidelock recompute --check."
            )
    with row("tl-tools"):
        as_of = field("As of sequence", asked.get("asOf", ""), hint=str(found["throughSequence"]))

        def look() -> None:
            wanted = {**asked, "period": found["periodStart"]}
            wanted.pop("asOf", None)
            if as_of.value:
                wanted["asOf"] = as_of.value
            ui.navigate.to(f"/counters/explain?{urlencode(wanted)}")

        as_of.on("keydown.enter", look)
        button("Show", look)


async def _groups(visit: Visit, found: Json, asked: Json) -> None:
    """The breakdown, if the meter has one."""
    wanted = {name: asked[name] for name in ("metric", "customerRef", "tenantId", "asOf") if name in asked}
    try:
        usage = await visit.api.get(
            "/v1/usage", **wanted, groupBy="true", **{"from": found["periodStart"], "to": found["periodEnd"]}
        )
    except ApiError as error:
        # A meter without groups has no breakdown; one with very many would be unreadable.
        if error.status != 400:
            raise
        return
    with panel("By group"):
        rows = [_group_row(item, found, asked) for item in usage["items"]]
        columns = [
            Column("group", "Group"),
            Column("total", "Total", "number"),
            Column("adjustment", "Late", "chip"),
            Column("value", "On time", "number", wide=True),
        ]
        rows_table(columns, rows, key="_key", nothing="No group has been counted yet.")


def _group_row(item: Json, found: Json, asked: Json) -> Row:
    of_group = {"groupNull": "true"} if item["group"] is None else {"group": item["group"]}
    wanted = {**asked, "period": found["periodStart"], **of_group}
    return {
        "_key": f"{item['group'] is None}{item['group']}",
        "_href": f"/counters/explain?{urlencode(wanted)}",
        "group": _group_name(item["group"]),
        "total": figure(item["total"]),
        "value": figure(item["value"]),
        "adjustment": signed(item["adjustment"]),
        "adjustment_tone": "warn",
    }


def _group_name(group: str | None) -> str:
    return "none" if group is None else group or "(empty)"


class Events:
    """The events of the counter in ledger order, each with what became of it."""

    def __init__(self, visit: Visit, asked: Json, first: Json) -> None:
        self._visit = visit
        # All pages of one moment: later events would change the figures while paging.
        self._asked = {**asked, "period": first["periodStart"], "asOf": first["throughSequence"] or None}
        self._first = first
        self._turning = PageTurner(visit, self._read)

    async def show(self) -> None:
        with panel("Events", "In ledger order, with the running total"):
            columns = [
                Column("sequence", "Sequence", "number"),
                Column("part", "Counted", "chip"),
                Column("counted", "Quantity", "number"),
                Column("change", "Change", "number", wide=True),
                Column("total", "Total after", "number"),
                Column("occurred", "Occurred", "time", wide=True),
                Column("group", "Group", wide=True),
                Column("data", "Data", "mono", wide=True),
            ]
            self._table = rows_table(columns, [], key="sequence", nothing="No events in this period.")
            self._turning.draw()
        self._fill(self._first)

    def _fill(self, found: Json) -> None:
        self._table.rows = [_event_row(event) for event in found["items"]]
        self._turning.took(found)

    async def _read(self) -> None:
        self._fill(await self._visit.api.exact("/v1/explain", **self._asked, limit=_ROWS, cursor=self._turning.cursor))


def _event_row(event: Json) -> Row:
    name, tone, about = _PARTS[event["part"]]
    if event["corrects"] is not None:
        tone, about = _corrects(event)
    elif event["correctedBy"] is not None:
        name, about = f"{name}, corrected", f"{about}; corrected by {event['correctedBy']:,}"
    return {
        "sequence": figure(event["ingressSequence"]),
        "_href": f"/events/{event['ingressSequence']}",
        "part": name,
        "part_tone": tone,
        "part_title": event["message"] or about,
        "counted": figure(event["counted"]),
        "change": _signed(event["change"]),
        "total": figure(event["total"]),
        "occurred": clock_time(event["occurredAt"]),
        "occurred_title": event["occurredAt"],
        "group": event["group"],
        "data": event["message"] or _linked(event) or _short(event["data"]),
    }


def _corrects(event: Json) -> tuple[Tone, str]:
    """Of a correction: whether it was in time, and of what."""
    about = f"corrects {event['corrects']:,}"
    if event["adjustedReason"] is None:
        return "calm", about if event["total"] is not None else f"{about}, which is not counted here"
    too_late = "after the close" if event["adjustedReason"] == "closed" else "too late"
    return "warn", f"{about} {too_late}: only the total changes"


def _signed(number: str | None) -> str | None:
    return number if number in (None, "0") else signed(number)


def _linked(event: Json) -> str | None:
    """What is read before the data: which event it corrects, or which corrects it."""
    if event["corrects"] is not None:
        return f"corrects {event['corrects']:,}"
    return None if event["correctedBy"] is None else f"corrected by {event['correctedBy']:,}"


def _short(data: Any) -> str | None:
    if not isinstance(data, dict):
        return None if data is None else str(data)[:80]
    return "  ".join(f"{name}={value}" for name, value in data.items())[:120]


def _range(first: int | None, last: int | None) -> str | None:
    if first is None or last is None:
        return None
    return f"{first:,}" if first == last else f"{first:,} – {last:,}"


async def period_chart(visit: Visit, found: Json, asked: Json) -> None:
    """The periods around the explained one; a click explains another."""
    start, around = parse_rfc3339(found["periodStart"]), _AROUND[found["period"]]
    wanted = {name: asked[name] for name in ("metric", "customerRef", "tenantId", "asOf") if name in asked}
    try:
        usage = await visit.api.get(
            "/v1/usage", **wanted, **{"from": format_instant(start - around), "to": format_instant(start + around)}
        )
    except ApiError as error:
        if error.status != 400:
            raise
        return
    items = usage["items"]
    if len(items) < 2:
        return
    with panel(
        f"By {found['period']}", "Late events arrived after their counter had moved on; click a bar to explain it"
    ):
        options = period_bars(items, found["period"], found["aggregation"], marked=found["periodStart"])
        made = chart(options, height=220, label=f"{found['metric']} by {found['period']}")

    def explain(clicked: EChartPointClickEventArguments) -> None:
        period = items[clicked.data_index]["periodStart"]
        ui.navigate.to(f"/counters/explain?{urlencode({**asked, 'period': period})}")

    made.on_point_click(explain)


async def _parts_chart(visit: Visit, found: Json, asked: Json) -> None:
    """The days or hours of the period that is explained."""
    if (window := _FINER.get(found["period"])) is None or found["total"] is None:
        return
    wanted = {name: asked[name] for name in ("metric", "customerRef", "tenantId", "asOf") if name in asked}
    between = {"from": found["periodStart"], "to": found["periodEnd"]}
    try:
        usage = await visit.api.get("/v1/usage", **wanted, window=window, **between)
    except ApiError as error:
        # There may be more events than can be read in time.
        if error.status != 400:
            raise
        return
    if len(usage["items"]) < 2:
        return
    with panel(f"This {found['period']} by {window}", "From the events of each, by the decisions of this counter"):
        chart(
            period_bars(usage["items"], window, found["aggregation"]),
            height=200,
            label=f"{found['metric']} by {window}",
        )


def period_bars(items: list[Json], period: str, aggregation: str, *, marked: str | None = None) -> Json:
    """A chart of periods with late usage on top; a marked one stands out."""
    base = axes(time=False)
    base["grid"]["top"] = 34
    base["xAxis"]["data"] = [period_name(period, item["periodStart"]) for item in items]
    values = bars("On time", "accent", [_point(item, marked) for item in items], stack="total")
    late: Json
    if aggregation in _ADDED:
        late = bars("Late", "warn", [_number(item["adjustment"]) for item in items], stack="total")
    else:
        # Late usage does not add up for these aggregates: the total is shown instead.
        late = {
            "type": "scatter",
            "name": "With what arrived late",
            "symbol": "diamond",
            "symbolSize": 9,
            "itemStyle": {":color": colour("warn")},
            "data": [_number(item["total"]) if item["adjustment"] not in (None, "0") else None for item in items],
        }
    values["barMaxWidth"] = late["barMaxWidth"] = 44
    return {
        **base,
        "tooltip": tooltip(),
        "legend": {
            "right": 0,
            "top": 0,
            "itemWidth": 12,
            "itemHeight": 9,
            "textStyle": {":color": colour("muted"), "fontSize": 11},
        },
        "series": [values, late],
    }


def _point(item: Json, marked: str | None) -> Any:
    """Highlight the explained period."""
    number = _number(item["value"])
    if marked is None or item["periodStart"] == marked:
        return number
    return {"value": number, "itemStyle": {":color": colour("accent"), "opacity": 0.45}}


def _number(text: str | None) -> float | None:
    """For drawing only; the exact figures are shown beside it."""
    return None if text is None else float(text)
