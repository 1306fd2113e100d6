"""A customer: what they used by every meter, period by period, and which of their events came too late."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

from nicegui import ui
from nicegui.events import EChartPointClickEventArguments

from tidelock.console.api import query
from tidelock.console.frame import Visit
from tidelock.console.pages.explain import period_bars
from tidelock.console.parts.charts import chart
from tidelock.console.parts.forms import button, field
from tidelock.console.parts.numbers import difference, figure, signed
from tidelock.console.parts.rowlist import RowList
from tidelock.console.parts.tables import Column, Row, cells
from tidelock.console.parts.texts import empty, link, panel, row, stat
from tidelock.console.parts.times import period_name
from tidelock.sections import number_of

Json = dict[str, Any]

_EVERY_S = 5.0
#: periods drawn
_PERIODS = 24
#: meters drawn: the first that have data
_METERS_MAX = 12
_COUNTERS = f"""query($where: counters_bool_exp) {{
  counters(where: $where, order_by: {{period_start: desc}}, limit: {_PERIODS}) {{
    metric period_start value total agg_count watermark_ts
  }}
}}"""
_LATE = (
    Column("ingress_sequence", "Sequence", "number", sorts=True),
    Column("metric", "Meter", sorts=True),
    Column("period_start", "Period", sorts=True),
    Column("quantity", "Quantity", "number", sorts=True, wide=True),
    Column("amount", "Added", "number", sorts=True),
    Column("reason", "Reason", "chip", sorts=True),
    Column("occurred_at", "Occurred", "time", sorts=True, wide=True),
)


async def customer_page(visit: Visit) -> None:
    """The page of a customer; without one, a form that asks for it."""
    customer = visit.query.get("customerRef")
    tenant = visit.tenant or visit.query.get("tenantId") or "default"
    _ask(visit, customer or "", tenant)
    if not customer:
        with panel():
            empty("bars", "Which customer?", "Type one, or choose one in the list of counters.")
        return
    meters = (await visit.api.get("/admin/definitions"))["meters"]
    used = await _used(visit, meters, customer, tenant)
    if not used:
        with panel():
            text = "No meter has counted anything of theirs. Their events may still be in the ledger."
            empty("bars", f"Nothing is counted for {customer}", text)
            link("Their events", f"/events?{urlencode({'customerRef': customer, 'tenantId': tenant})}")
        return
    with ui.element("div").classes("tl-grid"):
        for metric, rows in used.items():
            _latest(meters[metric], metric, rows[0])
    with ui.element("div").classes("tl-row"):
        for metric, rows in used.items():
            _drawn(visit, meters[metric], metric, rows, {"customerRef": customer, "tenantId": tenant})
    await _late(visit, meters, customer, tenant)


def _ask(visit: Visit, customer: str, tenant: str) -> None:
    def go() -> None:
        asked = {"customerRef": chosen.value or "", "tenantId": of_tenant.value if of_tenant is not None else tenant}
        ui.navigate.to(f"/counters/customer?{urlencode(asked)}")

    with ui.element("div").classes("tl-crumbs"):
        link("Counters", "/counters")
        ui.label(customer or "a customer")
    with row("tl-tools"):
        chosen = field("Customer", customer, hint="exactly")
        chosen.on("keydown.enter", go)
        of_tenant = None
        if visit.tenant is None:
            of_tenant = field("Tenant", tenant)
            of_tenant.on("keydown.enter", go)
        button("Show", go)
        ui.element("div").classes("tl-grow")
        if customer:
            link("Their events", f"/events?{urlencode({'customerRef': customer, 'tenantId': tenant})}")


async def _used(visit: Visit, meters: Json, customer: str, tenant: str) -> dict[str, list[Json]]:
    """The newest periods of each meter that has any, newest first."""
    whose = {"customer_ref": {"_eq": customer}, "tenant_id": {"_eq": tenant}}

    async def of(metric: str) -> tuple[str, list[Json]]:
        found = await query(visit.api, _COUNTERS, {"where": {"metric": {"_eq": metric}, **whose}})
        return metric, found["counters"]

    found = await asyncio.gather(*(of(metric) for metric in meters))
    return dict([(metric, rows) for metric, rows in found if rows][:_METERS_MAX])


def _latest(meter: Json, metric: str, newest: Json) -> None:
    late = signed(difference(newest["value"], newest["total"]))
    when = period_name(meter["period"], newest["period_start"])
    note = f"{when}, {number_of(int(newest['agg_count']), 'event')}" + (f", {late} late" if late else "")
    stat(metric, figure(newest["total"]) or "–", note, "warn" if late else "plain")


def _drawn(visit: Visit, meter: Json, metric: str, rows: list[Json], whose: dict[str, str]) -> None:
    items = [
        {
            "periodStart": each["period_start"],
            "value": each["value"],
            "total": each["total"],
            "adjustment": difference(each["value"], each["total"]),
        }
        for each in reversed(rows)
    ]

    def explain(clicked: EChartPointClickEventArguments) -> None:
        asked = {"metric": metric, **whose, "period": items[clicked.data_index]["periodStart"]}
        ui.navigate.to(f"/counters/explain?{urlencode(asked)}")

    with panel(metric, f"{meter['aggregation']} by {meter['period']}; click a bar to explain it"):
        options = period_bars(items, meter["period"], meter["aggregation"])
        chart(options, height=200, label=f"{metric} by {meter['period']}").on_point_click(explain)


async def _late(visit: Visit, meters: Json, customer: str, tenant: str) -> None:
    def shown(item: Json) -> Row:
        period = meters.get(item["metric"], {"period": "month"})["period"]
        named = {"period_start": period_name(period, item["period_start"]), "period_start_title": item["period_start"]}
        leads = {"reason_tone": "warn", "_href": f"/events/{item['ingress_sequence']}"}
        return cells(_LATE, item) | named | leads

    async def made(items: list[Json]) -> list[Row]:
        return [shown(item) for item in items]

    with panel("Late events", "Too late for their period's value; the total includes them"):
        rows = RowList(visit, "adjustments", _LATE, made, sort=("ingress_sequence", True))
        rows.where = {"customer_ref": {"_eq": customer}, "tenant_id": {"_eq": tenant}}
        rows.draw([column.name for column in _LATE], nothing="Nothing arrived too late.", labels=("Newer", "Older"))
    await visit.tried(rows.read)
    visit.every(_EVERY_S, rows.again)
