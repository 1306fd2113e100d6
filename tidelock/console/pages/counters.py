"""Counters: what customers used, and the way to why."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any
from urllib.parse import urlencode

from tidelock.console.frame import Visit, page
from tidelock.console.pages import periods
from tidelock.console.pages.explain import explained
from tidelock.console.parts.forms import choice, field
from tidelock.console.parts.tables import Column, PageTurner, Row, rows_table, say_nothing
from tidelock.console.parts.texts import empty, link, panel, row
from tidelock.console.parts.times import clock_time, period_name

_ROWS = 50
_EVERY_S = 3.0
_DIGITS = 80
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


@page("/counters/explain", title="Explain", about="Explain this number")
async def explain(visit: Visit) -> None:
    await explained(visit)


@page("/counters/periods", title="Periods", about="What is open, when it closes, and what is closed")
async def all_periods(visit: Visit) -> None:
    await periods.listed(visit)


@page("/counters/period", title="Period", about="What customers used in it, and what came since it was closed")
async def one_period(visit: Visit) -> None:
    await periods.one(visit)


class CounterList:
    """Counters by meter, customer and tenant, a page of the API's at a time."""

    def __init__(self, visit: Visit, meters: dict[str, Any]) -> None:
        self._visit = visit
        self._meters = meters
        self._turning = PageTurner(visit, self._read)
        self._known = False
        self._closed = periods.ClosedThrough(visit)

    async def show(self) -> None:
        query = self._visit.query
        metric = query.get("metric", "")
        with row("tl-tools"):
            options = {"": _ALL, **{name: name for name in self._meters}}
            self._metric = choice("Meter", options, metric if metric in self._meters else "", act=self._turning.restart)
            self._customer = field("Customer", query.get("customerRef", ""), hint="exactly", act=self._turning.restart)
            if self._visit.tenant is None:
                self._tenant = field("Tenant", query.get("tenantId", ""), hint="exactly", act=self._turning.restart)
            link("Periods", "/counters/periods")
        with panel():
            self._table = rows_table(_columns(self._visit), [], key="_key", nothing="")
            self._turning.draw()
        self._visit.every(_EVERY_S, self._again)

    async def _again(self) -> None:
        # A customer's counters of every meter are looked for among all there are: when one asks, and not by the clock.
        if self._metric.value or not self._customer.value or not self._known:
            await self._read()

    async def _read(self) -> None:
        tenant = self._tenant.value if self._visit.tenant is None else None
        found = await self._visit.api.get(
            "/v1/counters",
            metric=self._metric.value or None,
            customerRef=self._customer.value or None,
            tenantId=tenant or None,
            limit=_ROWS,
            cursor=self._turning.cursor,
        )
        self._known = True
        await self._closed.look({item["tenant_id"] for item in found["items"]})
        rows = [self._row(item) for item in found["items"]]
        if rows != self._table.rows:
            self._table.rows = rows
        filtered = self._metric.value or self._customer.value or tenant
        say_nothing(self._table, "No counter matches." if filtered else _UNCOUNTED)
        self._turning.took(found)

    def _row(self, item: Row) -> Row:
        meter = self._meters.get(item["metric"], {"period": "month"})
        asked = {
            "metric": item["metric"],
            "customerRef": item["customer_ref"],
            "tenantId": item["tenant_id"],
            "period": item["period_start"],
        }
        adjustment = adjusted_by(item["value"], item["total"])
        closed = self._closed.closes(item["tenant_id"], item["metric"], item["period_start"])
        return {
            "_key": "\0".join(asked.values()),
            "_href": f"/counters/explain?{urlencode(asked)}",
            "metric": item["metric"],
            "customer": item["customer_ref"],
            "tenant": item["tenant_id"],
            "period": period_name(meter["period"], item["period_start"]),
            "period_title": item["period_start"],
            "period_href": periods.period_link(item["metric"], item["period_start"], item["tenant_id"]),
            "closed": "closed" if closed else None,
            "closed_tone": "good",
            "closed_title": "No event moves the value any more",
            "value": item["value"],
            "adjustment": None if adjustment in (None, "0") else f"{'' if adjustment[:1] == '-' else '+'}{adjustment}",
            "adjustment_tone": "warn",
            "adjustment_title": "Events too late for the value, or after its close; the total includes them",
            "total": item["total"],
            "events": f"{item['agg_count']:,}",
            "watermark": clock_time(item["watermark_ts"]),
            "watermark_title": item["watermark_ts"],
        }


def adjusted_by(value: str | None, total: str | None) -> str | None:
    """What the total has beyond the value; both are exact."""
    if value is None or total is None:
        return None
    # The 28 digits that decimals have by default would round it.
    with localcontext(prec=_DIGITS):
        return f"{(Decimal(total) - Decimal(value)).normalize():f}"


def _columns(visit: Visit) -> list[Column]:
    tenant = [Column("tenant", "Tenant", wide=True)] if visit.tenant is None else []
    return [
        Column("customer", "Customer"),
        Column("metric", "Meter"),
        *tenant,
        Column("period", "Period"),
        Column("closed", "Closed", "chip"),
        Column("total", "Total", "number"),
        Column("adjustment", "Late", "chip"),
        Column("value", "In time", "number", wide=True),
        Column("events", "Events", "number", wide=True),
        Column("watermark", "Latest event", "time", wide=True),
    ]
