"""The periods of a counter as a chart: what was in time, and what came late on top of it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from nicegui import ui
from nicegui.events import EChartPointClickEventArguments

from tidelock.console.api import ApiError
from tidelock.console.frame import Visit
from tidelock.console.parts.charts import axes, bars, chart, colour, tooltip
from tidelock.console.parts.texts import panel
from tidelock.console.parts.times import period_name
from tidelock.instants import SECOND, format_instant, parse_rfc3339

Json = dict[str, Any]

_DAY = 86_400 * SECOND
#: period -> how far the chart looks to both sides
_AROUND = {"hour": 2 * _DAY, "day": 31 * _DAY, "week": 182 * _DAY, "month": 550 * _DAY}
_ADDED = ("sum", "count")


async def period_chart(visit: Visit, found: Json, asked: Json) -> None:
    """The periods around the one that is explained; a click on one explains it."""
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
    with panel(f"By {found['period']}", "Late is what came after its period had moved on; choose a bar to explain it"):
        made = chart(_options(items, found), height=220, label=f"{found['metric']} by {found['period']}")

    def explain(clicked: EChartPointClickEventArguments) -> None:
        period = items[clicked.data_index]["periodStart"]
        ui.navigate.to(f"/counters/explain?{urlencode({**asked, 'period': period})}")

    made.on_point_click(explain)


def _options(items: list[Json], found: Json) -> Json:
    base = axes(time=False)
    base["grid"]["top"] = 34
    base["xAxis"]["data"] = [period_name(found["period"], item["periodStart"]) for item in items]
    values = bars("In time", "accent", [_point(item["value"], item, found) for item in items], stack="total")
    late: Json
    if found["aggregation"] in _ADDED:
        late = bars("Late", "warn", [_number(item["adjustment"]) for item in items], stack="total")
    else:
        # What came late does not add up to these: shown is what the total is instead.
        late = {
            "type": "scatter",
            "name": "With what came late",
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


def _point(value: str | None, item: Json, found: Json) -> Any:
    """The period that is explained stands out."""
    number = _number(value)
    if item["periodStart"] == found["periodStart"]:
        return number
    return {"value": number, "itemStyle": {":color": colour("accent"), "opacity": 0.45}}


def _number(text: str | None) -> float | None:
    """For drawing only; the exact figures are beside it."""
    return None if text is None else float(text)
