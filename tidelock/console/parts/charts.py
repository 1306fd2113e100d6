"""Charts in the colours of the theme. A colour is a token by name: `colour("accent")`, looked up in the browser."""

from __future__ import annotations

from typing import Any

from nicegui import ui

#: keys of ECharts that take a colour are written `":color": colour("accent")`: NiceGUI evaluates them in the browser
Options = dict[str, Any]


def colour(token: str) -> str:
    """A token of theme.css, as an expression for the browser."""
    return f"tl.colour('{token}')"


class Chart(ui.echart):
    """A chart that follows the theme: `frame` redraws it when that changes."""


def chart(options: Options, *, height: int = 220, label: str = "") -> Chart:
    """A chart as wide as its container. To change it: `made.options["series"][0]["data"] = ...; made.update()`."""
    # Text is measured before it is drawn, so the font must be given; all times are in UTC.
    fixed: Options = {"animation": False, "useUTC": True, "textStyle": {":fontFamily": colour("sans")}}
    made = Chart({**fixed, **options}, renderer="svg")
    made.style(f"height: {height}px").classes("tl-chart")
    made._props["role"] = "img"
    made._props["aria-label"] = label
    return made


def axes(*, time: bool = True, unit: str = "") -> Options:
    """Unobtrusive axes: time at the bottom, values at the left."""
    below: Options = {
        "type": "time" if time else "category",
        "axisLine": {"lineStyle": {":color": colour("line")}},
        "axisTick": {"show": False},
        "axisLabel": {":color": colour("faint"), "fontSize": 11, "hideOverlap": True},
        "splitLine": {"show": False},
    }
    left: Options = {
        "type": "value",
        "name": unit,
        "nameTextStyle": {":color": colour("faint"), "fontSize": 11, "align": "left"},
        "axisLabel": {":color": colour("faint"), "fontSize": 11},
        "splitLine": {"lineStyle": {":color": colour("hair")}},
        "splitNumber": 3,
    }
    return {
        "xAxis": below,
        "yAxis": left,
        "grid": {"left": 8, "right": 12, "top": 16, "bottom": 4, "containLabel": True},
    }


def tooltip(trigger: str = "axis") -> Options:
    return {
        "trigger": trigger,
        ":backgroundColor": colour("raised"),
        ":borderColor": colour("line"),
        "textStyle": {":color": colour("text"), "fontSize": 12},
        "extraCssText": "box-shadow: 0 4px 16px rgb(0 0 0 / .12); border-radius: 8px",
        "axisPointer": {"lineStyle": {":color": colour("line")}},
    }


def line(name: str, token: str, data: list[Any], *, area: bool = False) -> Options:
    made: Options = {
        "type": "line",
        "name": name,
        "data": data,
        "showSymbol": False,
        "lineStyle": {"width": 1.75, ":color": colour(token)},
        "itemStyle": {":color": colour(token)},
    }
    if area:
        made["areaStyle"] = {":color": colour(token), "opacity": 0.12}
    return made


def bars(name: str, token: str, data: list[Any], *, stack: str | None = None) -> Options:
    made: Options = {
        "type": "bar",
        "name": name,
        "data": data,
        "itemStyle": {":color": colour(token), "borderRadius": 0 if stack else [2, 2, 0, 0]},
        "barMaxWidth": 18,
    }
    return made | ({"stack": stack} if stack else {})
