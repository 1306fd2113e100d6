"""Periods: what is open and what is closed of every meter; and one period with its customers, to be exported."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from tidelock.console.frame import Visit
from tidelock.console.pages.explain import explain_link
from tidelock.console.parts.forms import button, field
from tidelock.console.parts.tables import Column, PageTurner, Row, rows_table
from tidelock.console.parts.texts import chip, empty, facts, link, panel, row
from tidelock.console.parts.times import period_name
from tidelock.http.csvpages import csv_line
from tidelock.instants import format_instant, parse_rfc3339

Json = dict[str, Any]

_ROWS = 50
_PAGE = 1_000
#: limit of an export here; the command has none
_EXPORT_ROWS_MAX = 50_000
_EVERY_S = 5.0
#: closed periods of a meter that the API lists
_CLOSED_MAX = 100
_OPEN = ("customerRef", "periodStart", "periodEnd", "value", "adjustment", "total")
_CLOSED = (
    "customer_ref", "period_start", "period_end", "value", "total", "event_count", "closed_sequence", "adjustmentSince",
    "restated",
)  # fmt: skip


def period_link(metric: str, start: str, tenant: str) -> str:
    """The page of a period."""
    return f"/counters/period?{urlencode({'metric': metric, 'period': start, 'tenantId': tenant})}"


class ClosedThrough:
    """Through which end meters are closed, read once for each tenant shown."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        #: tenant -> meter -> end
        self._ends: dict[str, dict[str, str | None]] = {}

    async def look(self, tenants: set[str]) -> None:
        for tenant in tenants:
            found = await self._visit.api.get("/v1/periods", tenantId=tenant)
            self._ends[tenant] = {item["metric"]: item["closedThrough"] for item in found["items"]}

    def closes(self, tenant: str, metric: str, start: str) -> bool:
        """Whether the period that starts there is closed: closes are at ends of periods."""
        end = self._ends.get(tenant, {}).get(metric)
        return end is not None and parse_rfc3339(start) < parse_rfc3339(end)


async def listed(visit: Visit) -> None:
    """Every meter with its open and closed periods."""
    tenant = visit.query.get("tenantId") or visit.tenant
    meters = (await visit.api.get("/v1/periods", tenantId=tenant))["items"]
    _ask(visit, meters[0]["tenantId"] if meters else tenant or "")
    if not meters:
        text = "A meter counts by hour, day, week or month. Once the fold has run, its periods are here."
        empty("bars", "No period yet", text)
        return
    with panel("Open periods", f"of tenant {meters[0]['tenantId']}"):
        columns = [
            Column("period", "Period"),
            Column("metric", "Meter"),
            Column("customers", "Counters", "number"),
            Column("closes", "Closes automatically", "text"),
            Column("through", "Closed through", "text", wide=True),
        ]
        rows_table(columns, [made for meter in meters for made in _rows(meter)], key="_key", nothing="Nothing is open.")
    with panel("Closed periods", f"the last {_CLOSED_MAX} of each meter; no event moves their values any more"):
        columns = [Column("period", "Period"), Column("metric", "Meter"), Column("customers", "Counters", "number")]
        rows_table(columns, _closed(meters), key="_key", nothing="No period with counters is closed.")


def _ask(visit: Visit, tenant: str) -> None:
    """A link back, and a field for another tenant: each tenant has its own closes."""

    def go() -> None:
        ui.navigate.to(f"/counters/periods?{urlencode({'tenantId': of_tenant.value or 'default'})}")

    with ui.element("div").classes("tl-crumbs"):
        link("Counters", "/counters")
        ui.label("Periods")
    if visit.tenant is None:
        with row("tl-tools"):
            of_tenant = field("Tenant", tenant, hint="exactly")
            of_tenant.on("keydown.enter", go)
            button("Show", go)


def _rows(meter: Json) -> list[Row]:
    through = meter["closedThrough"]
    return [
        {
            "_key": f"{meter['metric']} {each['periodStart']}",
            "_href": period_link(meter["metric"], each["periodStart"], meter["tenantId"]),
            "period": period_name(meter["period"], each["periodStart"]),
            "metric": meter["metric"],
            "customers": f"{each['counters']:,}",
            "closes": each["closesAt"] or "by hand: tidelock close",
            "through": through or "never closed",
        }
        for each in meter["open"]
    ]


def _closed(meters: list[Json]) -> list[Row]:
    """Of all meters, newest first."""
    found = [(each["periodStart"], meter, each) for meter in meters for each in meter["closed"]]
    found.sort(key=lambda each: parse_rfc3339(each[0]), reverse=True)
    return [
        {
            "_key": f"{meter['metric']} {start}",
            "_href": period_link(meter["metric"], start, meter["tenantId"]),
            "period": period_name(meter["period"], start),
            "metric": meter["metric"],
            "customers": f"{each['counters']:,}",
        }
        for start, meter, each in found
    ]


async def one(visit: Visit) -> None:
    """A period of a meter: its customers, and what has arrived since it was closed."""
    metric, start = visit.query.get("metric", ""), visit.query.get("period", "")
    tenant = visit.query.get("tenantId") or visit.tenant
    (meter,) = (await visit.api.get("/v1/periods", metric=metric, tenantId=tenant))["items"] or [None]
    if meter is None:
        empty("bars", "No such period", "Nothing has been folded yet.")
        return
    await _Period(visit, meter, start).show()


class _Period:
    """The customers of a period, page by page."""

    def __init__(self, visit: Visit, meter: Json, start: str) -> None:
        self._visit = visit
        self._meter = meter
        self._start = start
        through = meter["closedThrough"]
        self._closed = through is not None and parse_rfc3339(start) < parse_rfc3339(through)
        self._turning = PageTurner(visit, self._read)

    async def show(self) -> None:
        meter, name = self._meter, period_name(self._meter["period"], self._start)
        with panel(f"{meter['metric']}, {name}", f"tenant {meter['tenantId']}"):
            chip("closed", "good") if self._closed else chip("open", "calm")
            facts(self._facts())
            with row("tl-tools"):
                button("CSV", self._export, icon="copy")
                link("All periods", f"/counters/periods?{urlencode({'tenantId': meter['tenantId']})}")
        with panel():
            nothing = "No statements yet." if self._closed else "No usage yet."
            self._table = rows_table(self._columns(), [], key="_key", nothing=nothing)
            self._turning.draw()
        await self._read()
        if not self._closed:
            self._visit.every(_EVERY_S, self._read)

    def _facts(self) -> list[tuple[str, str | None]]:
        if self._closed:
            return [
                ("Closed through", self._meter["closedThrough"]),
                ("By sequence", f"{self._meter['closedSequence']:,}"),
                ("Meaning", "No event moves a value any more; later changes are under Since."),
            ]
        mine = [each for each in self._meter["open"] if each["periodStart"] == self._start]
        return [
            ("Ends", mine[0]["periodEnd"] if mine else None),
            ("Closes automatically", mine[0]["closesAt"] if mine else None),
            ("By hand", f"tidelock close --through END --metric {self._meter['metric']}"),
        ]

    def _columns(self) -> list[Column]:
        if self._closed:
            return [
                Column("customer", "Customer"),
                Column("value", "Value", "number"),
                Column("total", "Total then", "number"),
                Column("since", "Since", "chip"),
                Column("restated", "Restated", "number", wide=True),
                Column("events", "Events", "number", wide=True),
            ]
        return [
            Column("customer", "Customer"),
            Column("value", "Value", "number"),
            Column("since", "Late", "chip"),
            Column("total", "Total", "number"),
        ]

    async def _read(self) -> None:
        found = await self._page(self._turning.cursor, _ROWS)
        rows = [self._row(item) for item in found["items"]]
        if rows != self._table.rows:
            self._table.rows = rows
        self._turning.took(found)

    async def _page(self, cursor: str | None, limit: int) -> Any:
        asked = {"metric": self._meter["metric"], "tenantId": self._meter["tenantId"], "cursor": cursor, "limit": limit}
        if self._closed:
            return await self._visit.api.get("/v1/statements", period=self._start, **asked)
        until = format_instant(parse_rfc3339(self._start) + 1)
        return await self._visit.api.get("/v1/usage", **{"from": self._start, "to": until}, **asked)

    def _row(self, item: Json) -> Row:
        customer = item["customer_ref"] if self._closed else item["customerRef"]
        since = item["adjustmentSince"] if self._closed else item["adjustment"]
        return {
            "_key": customer,
            "_href": explain_link(self._meter["metric"], customer, self._meter["tenantId"], self._start),
            "customer": customer,
            "value": item["value"],
            "total": item["total"],
            "since": None if since in (None, "0") else f"{'' if since[:1] == '-' else '+'}{since}",
            "since_tone": "warn",
            "restated": item.get("restated"),
            "events": f"{item['event_count']:,}" if self._closed else None,
        }

    async def _export(self) -> None:
        names = _CLOSED if self._closed else _OPEN
        lines = [csv_line(names)]
        async for item in self._everything():
            cells = [None if item[name] is None else str(item[name]) for name in names]
            lines.append(csv_line(cells))
        ui.download("".join(lines).encode(), f"{self._meter['metric']}-{self._start[:10]}.csv")

    async def _everything(self) -> AsyncIterator[Json]:
        cursor, rows = None, 0
        while rows < _EXPORT_ROWS_MAX:
            page = await self._page(cursor, _PAGE)
            for item in page["items"]:
                yield item
            rows, cursor = rows + len(page["items"]), page["next"]
            if cursor is None:
                return
        ui.notify(f"The first {rows:,} rows. tidelock usage --format csv writes them all.")
