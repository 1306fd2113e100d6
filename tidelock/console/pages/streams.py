"""Definitions: every stream with its declaration and what is derived from it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from nicegui import ui

from tidelock.console.frame import Visit, page
from tidelock.console.icons import svg
from tidelock.console.parts.tables import Column, rows_table
from tidelock.console.parts.texts import chip, code_block, empty, link, panel, row

Json = dict[str, Any]

_FIRST = """[meters.api_calls]
aggregation = "sum"
period = "month"

[streams.trades]
key = "trade_id"
columns = { trade_id = "bigint", symbol = "string", price = "decimal(18,4)" }"""


@page("/streams", title="Definitions", about="Declared streams and what is derived from them")
async def streams(visit: Visit) -> None:
    told = await visit.api.get("/admin/definitions")
    _changed(told)
    names = dict.fromkeys(
        [*told["streams"], *(each["stream"] for kind in ("meters", "windows") for each in told[kind].values())]
    )
    if not names:
        with panel():
            text = (
                "Events of any stream are recorded; what is derived from them is declared in tidelock.toml, for "
                "example:"
            )
            empty("layers", "Nothing is declared", text, _FIRST)
        return
    for name in names:
        _stream(name, told)
    _tables(told)


def _changed(told: Json) -> None:
    if told["version"] is None:
        text = (
            "Nothing has been folded yet: these are the definitions in the settings. `up` and `demo` fold "
            "automatically; alongside `serve`, run:"
        )
    elif told["changed"]:
        text = f"The settings differ for {', '.join(told['changed'])}: these are the definitions the tables follow."
    else:
        return
    with ui.element("div").classes("tl-finding tl-warn"):
        ui.html(svg("alert"), sanitize=False)
        ui.label(text).classes("tl-finding-text")
        code_block("tidelock replay" if told["changed"] else "tidelock fold")


def _stream(name: str, told: Json) -> None:
    declared: Json | None = told["streams"].get(name)
    with panel(name, _about(declared)):
        if declared is not None and declared["columns"]:
            with row("tl-tools tl-columns"):
                for column, type_ in declared["columns"].items():
                    marked = column in declared["key"]
                    _column(column, type_, key=marked)
                for column, formula in declared["calculated"].items():
                    _column(column, f"= {formula}", key=False)
        made = [*_of_meters(name, told), *_of_windows(name, told), *_of_stream(name, declared)]
        if not made:
            ui.label("Its events are in the ledger; nothing is derived from them.").classes("tl-faint")
            return
        columns = [
            Column("name", "Derived", "mono"),
            Column("kind", "", "chip"),
            Column("what", "Definition", "words"),
            Column("when", "Lateness", wide=True),
            Column("live", "Changes", wide=True),
        ]
        rows_table(columns, made, key="name")
        link("Its events", f"/events?stream={quote(name)}")


def _about(declared: Json | None) -> str:
    if declared is None:
        return "not declared; named by a meter or window"
    key = f"keyed by {', '.join(declared['key'])}" if declared["key"] else "no key"
    time = declared.get("eventtime")
    timed = f"event time in {time['column']} ({time.get('type', 'an instant')})" if time else "no event time of its own"
    return f"{key}, {timed}"


def _column(name: str, type_: str, *, key: bool) -> None:
    with ui.element("span").classes("tl-column"):
        ui.label(name)
        ui.label(type_).classes("tl-faint")
        if key:
            chip("key", "calm")


def _of_meters(stream: str, told: Json) -> list[Json]:
    return [
        {
            "name": name,
            "_href": f"/counters?metric={quote(name)}",
            "kind": "meter",
            "kind_tone": "calm",
            "what": _meter(meter),
            "when": f"{meter['lateness']} behind its latest event",
            "live": "recorded" if meter["live"] else "not recorded",
        }
        for name, meter in told["meters"].items()
        if meter["stream"] == stream
    ]


def _meter(meter: Json) -> str:
    counted = "count of events" if meter["aggregation"] == "count" else f"{meter['aggregation']} of {meter['value']}"
    groups = f", by {', '.join(meter['group_by'])} too" if meter["group_by"] else ""
    where = f", where {meter['where']}" if meter.get("where") else ""
    return f"{counted} per customer and {meter['period']}{groups}{where}"


def _of_windows(stream: str, told: Json) -> list[Json]:
    return [
        {
            "name": name,
            "_href": f"/windows?window={quote(name)}",
            "kind": "window",
            "kind_tone": "good",
            "what": _window(window),
            "when": _waits(window["eventtime"]),
            "live": "recorded" if window["live"] else "not recorded",
        }
        for name, window in told["windows"].items()
        if window["stream"] == stream
    ]


def _window(window: Json) -> str:
    ((kind, size),) = window["window"].items()
    shape = f"{size[0]} every {size[1]}" if isinstance(size, list) else size
    selected = ", ".join(f"{name} = {formula}" for name, formula in window["select"].items())
    groups = f" per {', '.join(window['group_by'])}" if window["group_by"] else ""
    return f"{kind} {shape}{groups}: {selected}"


def _waits(time: Json) -> str:
    if not time["enabled"]:
        return "by arrival: nothing is late"
    return f"{time.get('late_tolerance', '0s')} for late events"


def _of_stream(name: str, declared: Json | None) -> list[Json]:
    if declared is None:
        return []
    live = "recorded" if declared["live"] else "not recorded"
    latest = {"name": name, "kind": "table", "what": "latest row of each key", "when": None, "live": live}
    ordered = {"name": f"{name}_ordered", "kind": "table", "what": "rows in event-time order", "live": live}
    return [latest] * bool(declared["key"]) + [ordered] * bool(declared["ordered"])


def _tables(told: Json) -> None:
    with panel("Tables", "readable in SQL, REST and GraphQL; each also has tenant_id"):
        rows = [
            {
                "name": table["name"],
                "_href": f"/subscriptions?table={table['name']}",
                "key": ", ".join(table["key"]),
                "columns": ", ".join(f"{name} {type_}" for name, type_ in table["columns"].items()),
            }
            for table in told["tables"]
        ]
        columns = [
            Column("name", "Table", "mono"),
            Column("key", "Key", "words"),
            Column("columns", "Columns", "words", wide=True),
        ]
        rows_table(columns, rows, key="name")
