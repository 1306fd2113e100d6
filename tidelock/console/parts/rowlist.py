"""Rows of a table in any order, filtered, page by page: by GraphQL, because lists are ordered by key."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from nicegui.events import GenericEventArguments

from tidelock.console.api import query
from tidelock.console.frame import Visit
from tidelock.console.parts.tables import Column, Row, pager, rows_table, say_nothing
from tidelock.sections import number_of

Json = dict[str, Any]

# Beyond that, filter: an offset costs time for every row skipped.
_PAGES_MAX = 40
# Rows are not refreshed if that takes the database this long.
_SLOW_S = 0.25


class RowList:
    """A table whose headings sort it. `made` turns items into rows; it is awaited, since it may need more data."""

    def __init__(
        self,
        visit: Visit,
        table: str,
        columns: Sequence[Column],
        made: Callable[[list[Json]], Awaitable[list[Row]]],
        *,
        sort: tuple[str, bool] | None,
    ) -> None:
        """`sort`: a column, and whether it descends; None: by the key."""
        self._visit = visit
        self.table = table
        self._columns = columns
        self._made = made
        self.sort = sort
        self.where: Json = {}
        self._read_columns: list[str] = []
        self._page = 0
        self._took_s = 0.0
        self._rows_max = 50

    def draw(
        self, read: Iterable[str], *, nothing: str, labels: tuple[str, str] = ("Previous", "Next"), rows: int = 50
    ) -> None:
        """Draw the table and its buttons here; `read` are the columns that rows need."""
        self._read_columns, self._rows_max = list(read), rows
        self._shown = rows_table(self._columns, [], key="_key", nothing=nothing, sort=self.sort, sorted_by=self._sorted)
        self._pager = pager(self._back, self._on, labels)

    def say_nothing(self, text: str) -> None:
        say_nothing(self._shown, text)

    async def restart(self, *_: object) -> None:
        """Show other rows, from the first page."""
        self._page = 0
        await self._visit.tried(self.read)

    async def again(self) -> None:
        """Refresh the page shown, unless that is expensive."""
        if self._took_s < _SLOW_S:
            await self.read()

    async def read(self) -> None:
        # The timer retries after a failure.
        began, self._took_s = time.monotonic(), 0.0
        given = {"where": self.where, "offset": self._page * self._rows_max}
        found = (await query(self._visit.api, self._query(), given))[self.table]
        took_s = time.monotonic() - began
        more = len(found) > self._rows_max
        rows = await self._made(found[: self._rows_max])
        rows = [{"_key": number, **row} for number, row in enumerate(rows, self._page * self._rows_max)]
        if rows != self._shown.rows:
            self._shown.rows = rows
        count = number_of(len(rows), "row") if rows else ""
        text = f"page {self._page + 1}" if self._page or more else count
        self._took_s = took_s
        self._pager.set(text, back=self._page > 0, on=more and self._page + 1 < _PAGES_MAX)

    def _query(self) -> str:
        order = ""
        if self.sort is not None:
            name, descends = self.sort
            order = f"order_by: {{{name}: {'desc_nulls_last' if descends else 'asc_nulls_last'}}}, "
        return (
            f"query($where: {self.table}_bool_exp, $offset: Int) {{ {self.table}(where: $where, {order}"
            f"limit: {self._rows_max + 1}, offset: $offset) {{ {' '.join(self._read_columns)} }} }}"
        )

    async def _sorted(self, event: GenericEventArguments) -> None:
        wanted = event.args["pagination"]
        self.sort = (wanted["sortBy"], bool(wanted["descending"])) if wanted.get("sortBy") else None
        self._shown.pagination = {**self._shown.pagination, "sortBy": wanted.get("sortBy"),
                                  "descending": bool(wanted.get("descending"))}  # fmt: skip
        await self.restart()

    async def _back(self) -> None:
        self._page = max(0, self._page - 1)
        await self._visit.tried(self.read)

    async def _on(self) -> None:
        self._page += 1
        await self._visit.tried(self.read)
