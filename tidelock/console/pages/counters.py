"""Counters: what customers used, with links to the explanation."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from tidelock.console.frame import Visit, page
from tidelock.console.pages import periods
from tidelock.console.pages.customer import customer_page
from tidelock.console.pages.explain import explain_link, explained
from tidelock.console.parts.forms import choice, field
from tidelock.console.parts.numbers import difference, figure, signed
from tidelock.console.parts.rowlist import RowList
from tidelock.console.parts.tables import Column, Row
from tidelock.console.parts.texts import empty, link, panel, row
from tidelock.console.parts.times import clock_time, period_name

_EVERY_S = 3.0
_READ = ("tenant_id", "metric", "customer_ref", "period_start", "value", "total", "agg_count", "watermark_ts")
_ALL = "every meter"
_UNCOUNTED = "Nothing has been counted yet. The overview shows which events arrived and how far the fold is."
_METER = """[meters.api_calls]
aggregation = "sum"
period = "month"
lateness = "48h\""""


@page("/counters", title="Counters", about="Usage by meter, customer and period. Open a counter to see why.")
async def counters(visit: Visit) -> None:
    meters = (await visit.api.get("/admin/definitions"))["meters"]
    if not meters:
        text = "A meter counts the events of a stream per customer and period. Define one in tidelock.toml and restart:"
        empty("bars", "No meters defined", text, _METER)
        return
    await CounterList(visit, meters).show()


@page("/counters/customer", title="Customer", about="What one customer used, by meter, and what arrived too late")
async def customer(visit: Visit) -> None:
    await customer_page(visit)


@page("/counters/explain", title="Explain", about="Explain this number")
async def explain(visit: Visit) -> None:
    await explained(visit)


@page("/counters/periods", title="Periods", about="What is open, when it closes, and what is closed")
async def all_periods(visit: Visit) -> None:
    await periods.listed(visit)


@page("/counters/period", title="Period", about="What customers used in it, and what has arrived since it was closed")
async def one_period(visit: Visit) -> None:
    await periods.one(visit)


class CounterList:
    """Counters by meter, customer and tenant: the newest period first, or in a chosen order."""

    def __init__(self, visit: Visit, meters: dict[str, Any]) -> None:
        self._visit = visit
        self._meters = meters
        self._closed = periods.ClosedThrough(visit)
        self._list = RowList(visit, "counters", _columns(visit), self._rows, sort=("period_start", True))

    async def show(self) -> None:
        query = self._visit.query
        metric = query.get("metric", "")
        with row("tl-tools"):
            options = {"": _ALL, **{name: name for name in self._meters}}
            self._metric = choice("Meter", options, metric if metric in self._meters else "", act=self._choose)
            self._customer = field("Customer", query.get("customerRef", ""), hint="exactly", act=self._choose)
            if self._visit.tenant is None:
                self._tenant = field("Tenant", query.get("tenantId", ""), hint="exactly", act=self._choose)
            link("Periods", "/counters/periods")
        with panel():
            self._list.draw(_READ, nothing="")
        await self._choose()
        self._visit.every(_EVERY_S, self._list.again)

    async def _choose(self) -> None:
        asked = {
            "metric": self._metric.value,
            "customer_ref": self._customer.value,
            "tenant_id": self._tenant.value if self._visit.tenant is None else None,
        }
        self._list.where = {name: {"_eq": value} for name, value in asked.items() if value}
        self._list.say_nothing("No counter matches." if self._list.where else _UNCOUNTED)
        await self._list.restart()

    async def _rows(self, items: list[Row]) -> list[Row]:
        await self._closed.look({item["tenant_id"] for item in items})
        return [self._row(item) for item in items]

    def _row(self, item: Row) -> Row:
        meter = self._meters.get(item["metric"], {"period": "month"})
        whose = {"customerRef": item["customer_ref"], "tenantId": item["tenant_id"]}
        closed = self._closed.closes(item["tenant_id"], item["metric"], item["period_start"])
        return {
            "_href": explain_link(item["metric"], item["customer_ref"], item["tenant_id"], item["period_start"]),
            "metric": item["metric"],
            "customer_ref": item["customer_ref"],
            "customer_ref_href": f"/counters/customer?{urlencode(whose)}",
            "customer_ref_title": "Everything of this customer",
            "tenant_id": item["tenant_id"],
            "period_start": period_name(meter["period"], item["period_start"]),
            "period_start_title": item["period_start"],
            "period_start_href": periods.period_link(item["metric"], item["period_start"], item["tenant_id"]),
            "closed": "closed" if closed else None,
            "closed_tone": "good",
            "closed_title": "No event moves the value any more",
            "value": figure(item["value"]),
            "adjustment": signed(difference(item["value"], item["total"])),
            "adjustment_tone": "warn",
            "adjustment_title": "Events too late for the value, or after its close; the total includes them",
            "total": figure(item["total"]),
            "agg_count": figure(item["agg_count"]),
            "watermark_ts": clock_time(item["watermark_ts"]),
            "watermark_ts_title": item["watermark_ts"],
        }


def _columns(visit: Visit) -> list[Column]:
    tenant = [Column("tenant_id", "Tenant", wide=True, sorts=True)] if visit.tenant is None else []
    return [
        Column("customer_ref", "Customer", sorts=True),
        Column("metric", "Meter", sorts=True),
        *tenant,
        Column("period_start", "Period", sorts=True),
        Column("closed", "Closed", "chip"),
        Column("total", "Total", "number", sorts=True),
        Column("adjustment", "Late", "chip"),
        Column("value", "On time", "number", wide=True, sorts=True),
        Column("agg_count", "Events", "number", wide=True, sorts=True),
        Column("watermark_ts", "Latest event", "time", wide=True, sorts=True),
    ]
