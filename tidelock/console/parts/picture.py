"""The picture of a window: when events happened against when they were recorded, with the watermark behind them."""

from __future__ import annotations

from typing import Any

from nicegui import ui
from nicegui.events import EChartPointClickEventArguments

from tidelock.console.api import Api
from tidelock.console.eventtimes import Picture, Timed, closings
from tidelock.console.parts.charts import Chart, axes, chart, colour, tooltip

_MS = 1_000_000
_WINDOWS_MAX = 40
_CROSS = "path://M-4,-4L4,4M4,-4L-4,4"
# Above the newest event, so that the watermark's last step is visible.
_MARGIN = 0.02

_TOLD = """(at) => {
  const time = (ms) => new Date(ms).toISOString().slice(11, 23);
  if (!at.data || at.data.length < 4) return at.seriesName;
  const behind = (at.data[0] - at.data[1]) / 1000;
  return `<b>#${at.data[2]}</b> ${at.data[3]}<br>happened ${time(at.data[1])}<br>recorded ${time(at.data[0])}<br>` +
    (behind < 0 ? `${(-behind).toFixed(1)} s ahead of its arrival` : `${behind.toFixed(1)} s on its way`);
}"""

# Sequences scanned at first: an idle stream may have no event for long.
_LOOKED_AT = 1_000_000


class LastEvents:
    """The last events, oldest first."""

    def __init__(self, api: Api, stream: str, tenant: str) -> None:
        self._api = api
        self._asked = {"stream": stream, "tenantId": tenant}
        self.items: list[dict[str, Any]] = []
        #: whether there are older events
        self.more = False
        #: all events up to it are known, for this many events
        self._seen, self._count = 0, 0

    async def read(self, head: int, count: int) -> None:
        """Read the last events up to a sequence."""
        if count > self._count:
            self.items, self.more = await self._between(max(0, head - _LOOKED_AT), head, count)
        elif head > self._seen:
            new, more = await self._between(self._seen, head, count)
            self.items, self.more = (new, True) if more else ([*self.items, *new], self.more)
        if len(self.items) > count:
            self.items, self.more = self.items[-count:], True
        self._seen, self._count = head, count

    async def _between(self, after: int, head: int, count: int) -> tuple[list[dict[str, Any]], bool]:
        """The newest of them, and whether there are more."""
        page = await self._api.get(
            "/admin/events", **self._asked, after=after, before=head + 1, order="desc", limit=count
        )
        return page["items"][::-1], page["next"] is not None


class EventTimePicture:
    """Dots are events, below the diagonal; those at or below the green steps are late."""

    def __init__(self) -> None:
        self._chart: Chart = chart(_options(), height=400, label="Event time against source timestamp")
        self._chart.on_point_click(_open)

    def set_visibility(self, visible: bool) -> None:
        self._chart.set_visibility(visible)

    def show(self, picture: Picture, size: int | None) -> None:
        """`size`: nanoseconds of a tumbling window, whose closes are marked."""
        options = self._chart.options
        times = [each.event_time / _MS for each in picture.events]
        arrivals = [each.source_timestamp / _MS for each in picture.events]
        if not times:
            return
        span = max(arrivals) - min(arrivals) or 1.0
        across = (min(arrivals), max(arrivals) + span * _MARGIN)
        marks = [mark / _MS for _, mark in picture.steps]
        low, high = min([*times, *marks]), max([*times, *marks])
        room = (high - low) * 0.04 or 1000.0
        options["xAxis"] |= {"min": across[0], "max": across[1]}
        options["yAxis"] |= {"min": low - room, "max": high + room}
        steps = [[arrived / _MS, mark / _MS] for arrived, mark in picture.steps]
        if steps:
            steps.append([across[1], steps[-1][1]])
        by_name = {series["name"]: series for series in options["series"]}
        by_name["Watermark"]["data"] = steps
        by_name["No delay"]["data"] = [[at, at] for at in across]
        by_name["On time"]["data"] = _dots(picture, "on time")
        by_name["Late"]["data"] = _dots(picture, "late")
        by_name["After a drain"]["data"] = _dots(picture, "drained")
        closed = closings(picture.steps, size, most=_WINDOWS_MAX) if size else []
        by_name["A window closes"]["data"] = [
            point
            for start, end, arrived in closed
            for point in ([arrived / _MS, max(start / _MS, low)], [arrived / _MS, end / _MS], [None, None])
        ]
        # The legend leaves out what does not occur.
        options["legend"]["data"] = [name for name, series in by_name.items() if series["data"]]
        self._chart.update()


def _dots(picture: Picture, fate: str) -> list[list[Any]]:
    return [_dot(each) for each in picture.events if each.fate == fate]


def _dot(event: Timed) -> list[Any]:
    return [event.source_timestamp / _MS, event.event_time / _MS, event.sequence, event.fate]


def _open(clicked: EChartPointClickEventArguments) -> None:
    # As `_dot` made it; NiceGUI expects no lists.
    dot: Any = clicked.data
    if isinstance(dot, list) and len(dot) > 2:
        ui.navigate.to(f"/events/{dot[2]}")


def _options() -> dict[str, Any]:
    base = axes()
    base["yAxis"] |= {"type": "time", "splitNumber": 5}
    for axis in ("xAxis", "yAxis"):
        base[axis]["axisLabel"] |= {"formatter": "{HH}:{mm}:{ss}", "hideOverlap": True}
    base["grid"] |= {"top": 56, "right": 28}
    return {
        **base,
        "tooltip": {**tooltip("item"), ":formatter": _TOLD},
        "legend": {
            "left": 0,
            "top": 0,
            "itemGap": 16,
            "itemWidth": 14,
            "itemHeight": 9,
            "textStyle": {":color": colour("muted"), "fontSize": 11.5},
            ":inactiveColor": colour("faint"),
        },
        "series": [
            _line("No delay", "faint", {"type": "dashed", "width": 1, "opacity": 0.6}),
            _line("Watermark", "good", {"width": 2}, step=True),
            _line("A window closes", "accent", {"width": 2.5, "opacity": 0.55}),
            _scatter("On time", "accent", "circle", 5),
            _scatter("After a drain", "warn", "diamond", 9),
            _scatter("Late", "bad", _CROSS, 8, stroke=True),
        ],
    }


def _line(name: str, token: str, style: dict[str, Any], *, step: bool = False) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": "line",
        "name": name,
        "data": [],
        "showSymbol": False,
        "silent": True,
        "lineStyle": {":color": colour(token), **style},
        "itemStyle": {":color": colour(token)},
        "connectNulls": False,
    }
    if step:
        # Events in the shaded area are late.
        made |= {"step": "end", "areaStyle": {":color": colour("bad"), "opacity": 0.06, "origin": "start"}}
    return made


def _scatter(name: str, token: str, symbol: str, size: int, *, stroke: bool = False) -> dict[str, Any]:
    style = {":color": colour(token), "opacity": 0.85}
    if stroke:
        style |= {":borderColor": colour(token), "borderWidth": 2}
    return {"type": "scatter", "name": name, "data": [], "symbol": symbol, "symbolSize": size, "itemStyle": style}
