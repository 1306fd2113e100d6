"""Tables: the rows of any table of the fold, filtered and sorted."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from tidelock.console.api import columns_of
from tidelock.console.filters import Unfit
from tidelock.console.frame import Visit, page
from tidelock.console.pages.explain import explain_link
from tidelock.console.parts.filterfield import WhereField
from tidelock.console.parts.forms import button, choice
from tidelock.console.parts.rowlist import RowList
from tidelock.console.parts.tables import Column, Row, cells, column_of
from tidelock.console.parts.texts import empty, link, panel, row
from tidelock.sections import shown

Json = dict[str, Any]

#: columns shown on a phone besides the first
_NARROW = 3
#: columns by which the newest rows are found
_NEWEST = ("ingress_sequence", "window_start", "position", "period_start")


@page("/tables", title="Tables", about="The rows that the fold keeps, in any order")
async def tables(visit: Visit) -> None:
    told = await visit.api.get("/admin/definitions")
    known = {table["name"]: table for table in told["tables"]}
    wanted = visit.query.get("table", "counters")
    if wanted not in known:
        empty("rows", "There is no such table", f"{shown(wanted)} does not exist; available: {', '.join(known)}.")
        return
    await _TableBrowser(visit, told, known, wanted).show()


class _TableBrowser:
    """One table, its filter and its rows."""

    def __init__(self, visit: Visit, told: Json, known: dict[str, Json], name: str) -> None:
        self._visit = visit
        self._known = known
        self._name = name
        self._windows = told["windows"]
        declared: dict[str, str] = known[name]["columns"]
        tenant = [Column("tenant_id", "tenant_id", sorts=True, wide=True)] if visit.tenant is None else []
        names = _names(told, name)
        own = [
            column_of(column, type_, wide=at > _NARROW, sorts=type_ != "json", names=names)
            for at, (column, type_) in enumerate(declared.items())
        ]
        self._columns = [*own[:1], *tenant, *own[1:]]
        # The latest rows are wanted more often than the first by key.
        newest = next(
            (column for column in ("ingress_sequence", "window_start", "position") if column in declared), None
        )
        sort = (newest, True) if newest is not None else None
        self._list = RowList(visit, name, self._columns, self._rows, sort=sort)

    async def show(self) -> None:
        with row("tl-tools"):
            self._choice = choice("Table", list(self._known), self._name, act=self._go)
            key = ", ".join(self._known[self._name]["key"])
            ui.label(f"keyed by {key}").classes("tl-about tl-grow")
            if self._name in self._windows:
                link("Its open windows", f"/windows?{urlencode({'window': self._name})}")
            button("Refresh", self._list.restart, icon="again")
        columns = await columns_of(self._visit.api, self._name)
        with panel():
            self._filter = WhereField(columns, _where(self._visit.query.get("where")), self._changed, hint="Every row.")
            self._turns = ui.element("div").style("display: none")
        with panel():
            names = [column.name for column in self._columns]
            self._list.draw(names, nothing="No row matches.")
        await self._narrow()

    def _go(self) -> None:
        ui.navigate.to(f"/tables?{urlencode({'table': self._choice.value})}")

    def _changed(self) -> None:
        # The caller is synchronous, so a timer of the page reads the rows.
        with self._turns:
            ui.timer(0, self._narrow, once=True)

    async def _narrow(self) -> None:
        try:
            where = self._filter.where()
        except Unfit as unfit:
            self._filter.tell(unfit)
            return
        self._filter.tell(None)
        if where != self._list.where:
            asked = {"table": self._name} | ({"where": json.dumps(where)} if where else {})
            ui.run_javascript(f"history.replaceState(null, '', {json.dumps(f'/tables?{urlencode(asked)}')})")
        self._list.where = where
        await self._list.restart()

    async def _rows(self, items: list[Json]) -> list[Row]:
        return [self._row(item) for item in items]

    def _row(self, item: Json) -> Row:
        made = cells(self._columns, item)
        if "ingress_sequence" in item:
            made["_href"] = f"/events/{item['ingress_sequence']}"
        if self._name == "counters":
            whose = item["customer_ref"], item["tenant_id"]
            made["_href"] = explain_link(item["metric"], *whose, item["period_start"])
        return made


def _names(told: Json, table: str) -> set[str]:
    """Columns of a stream's table whose numbers are not quantities: its key, and the time in its own unit."""
    stream = told["streams"].get(table.removesuffix("_ordered"))
    if stream is None:
        return set()
    return {*stream["key"], (stream.get("eventtime") or {}).get("column", "")}


def _where(text: str | None) -> Json:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
