"""Rows of a table, the newest first, a page at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from nicegui import ui

from tidelock.console.catalogue import query
from tidelock.console.frame import Visit
from tidelock.console.parts.forms import button
from tidelock.console.parts.tables import Column, Row, pager, rows_table
from tidelock.console.parts.texts import panel, row
from tidelock.console.parts.times import clock_time

Json = dict[str, Any]

_ROWS = 25
# Further back one filters: an offset is paid for by every row that is left out.
_PAGES_MAX = 40


class NewestRows:
    """Pages by GraphQL, whose order can be any; lists of the API have that of keys."""

    def __init__(self, visit: Visit, table: str, columns: Sequence[Column], newest: str, where: Json) -> None:
        self._visit = visit
        self._name = table
        self._columns = columns
        self._where = where
        self._page = 0
        names = " ".join(column.name for column in columns)
        self._query = (
            f"query($where: {table}_bool_exp, $offset: Int) {{ {table}(where: $where, "
            f"order_by: {{{newest}: desc}}, limit: {_ROWS + 1}, offset: $offset) {{ tenant_id {names} }} }}"
        )

    async def show(self, title: str, about: str, *, nothing: str, leads: str | None = None) -> None:
        self._leads = leads
        with panel():
            with row("tl-tools"):
                with ui.element("div").classes("tl-grow"):
                    ui.label(title).classes("tl-h2")
                    ui.label(about).classes("tl-about")
                button("Refresh", self._restart, icon="again")
            self._table = rows_table(self._columns, [], key="_key", nothing=nothing)
            self._pager = pager(self._back, self._on, ("Newer", "Older"))
        await self._visit.tried(self._read)

    async def _read(self) -> None:
        found = await query(self._visit.api, self._query, {"where": self._where, "offset": self._page * _ROWS})
        rows = found[self._name]
        first = self._page * _ROWS
        self._table.rows = [self._row(each, first + at) for at, each in enumerate(rows[:_ROWS])]
        text = f"page {self._page + 1}" if self._page or len(rows) > _ROWS else ""
        self._pager.set(text, back=self._page > 0, on=len(rows) > _ROWS and self._page + 1 < _PAGES_MAX)

    def _row(self, item: Json, number: int) -> Row:
        made: Row = {"_key": number}
        for column in self._columns:
            value = item[column.name]
            if column.kind == "time" and value is not None:
                made[f"{column.name}_title"] = value
                value = clock_time(value)
            elif isinstance(value, dict | list):
                value = msgspec.json.encode(value).decode()
            made[column.name] = value
        if self._leads is not None:
            made["_href"] = self._leads.format(**item)
        return made

    async def _restart(self) -> None:
        self._page = 0
        await self._visit.tried(self._read)

    async def _back(self) -> None:
        self._page = max(0, self._page - 1)
        await self._visit.tried(self._read)

    async def _on(self) -> None:
        self._page += 1
        await self._visit.tried(self._read)
