"""Open windows: the current state of windows that are not closed yet, as rows of the window's own table.

Their states are finished as they would be if the window closed now, by the kernel's own code. Such a row is not a fact:
the next event may change it, and subscribers do not get it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from tidelock.arrow import arrow_type, typed
from tidelock.columns import forms_of, row_form
from tidelock.definitions import Window
from tidelock.errors import RequestError
from tidelock.fold.kernel.aggregates import results
from tidelock.sections import shown
from tidelock.tables import KEY, Table
from tidelock.views.catalog import TableCatalog
from tidelock.views.rows import RowSelection, SelectedRows, compared, table_name
from tidelock.where.evaluation import Matches, compile_where

#: the mark of a row of an open window, unless the window has a column of this name
OPEN = "open"
# A row's state may be large: exact counts of distinct values keep them all.
_ROWS_AT_ONCE = 64


async def read_open_rows(
    connection: psycopg.AsyncConnection[Any],
    catalog: TableCatalog,
    selection: RowSelection,
    *,
    rows_max: int,
) -> SelectedRows:
    """A page of the open windows of the selection's table, by tenant and key. Raises RequestError for other tables."""
    window = catalog.definitions.windows.get(selection.table.name)
    if window is None:
        name = shown(selection.table.name)
        raise RequestError(f"{name} is not a window: only windows have rows that are open", field="open")
    matches, stored = compile_where(selection.where), catalog.tables[f"{window.name}$open"]
    items: list[Mapping[str, object]] = []
    after, last = selection.after, None
    while True:
        found = await _read(connection, stored, selection.tenant_id, after)
        for place, item in _items(window, selection.table, found, stored, matches):
            if len(items) == rows_max:
                return SelectedRows(items, last)
            items.append(item)
            last = place
        if len(found) < _ROWS_AT_ONCE:
            return SelectedRows(items, None)
        after = found[-1][:2]


async def _read(
    connection: psycopg.AsyncConnection[Any], stored: Table, tenant_id: str | None, after: tuple[str, str] | None
) -> list[tuple[Any, ...]]:
    """Tenant, key and every column of the next rows."""
    conditions: list[sql.Composable] = [sql.SQL("true")]
    if tenant_id is not None:
        conditions.append(compared("tenant_id", "=", tenant_id))
    if after is not None:
        conditions.append(sql.SQL("(tenant_id, {}) > ({}, {})").format(sql.Identifier(KEY), *map(sql.Literal, after)))
    if "rows" in stored.columns:
        # A group counted in rows is known before the first row of its next window.
        conditions.append(sql.SQL("rows > 0"))
    query = sql.SQL("SELECT tenant_id, {}, {} FROM {} WHERE {} ORDER BY tenant_id, {} LIMIT {}").format(
        sql.Identifier(KEY),
        sql.SQL(", ").join(map(sql.Identifier, stored.columns)),
        table_name(stored),
        sql.SQL(" AND ").join(conditions),
        sql.Identifier(KEY),
        sql.Literal(_ROWS_AT_ONCE),
    )
    return await (await connection.cursor(binary=True).execute(query)).fetchall()


def _items(
    window: Window, table: Table, found: list[tuple[Any, ...]], stored: Table, matches: Matches
) -> Iterator[tuple[tuple[str, str], Mapping[str, object]]]:
    """Each row that matches, with its place."""
    if not found:
        return
    columns = list(zip(*found, strict=True))[2:]
    states = pa.table(
        {
            name: pa.array(values, arrow_type(type_))
            for (name, type_), values in zip(stored.columns.items(), columns, strict=True)
        }
    )
    values = {
        name: typed(states[f"group_{number}"], table.columns[name]) for number, name in enumerate(window.group_columns)
    }
    values |= {name: states[name] for name in ("window_ordinal", "window_start", "window_end") if name in table.columns}
    values |= results(window.select, states)
    forms = forms_of(table.columns)
    for place, row in zip(found, pa.table({name: values[name] for name in table.columns}).to_pylist(), strict=True):
        if matches({"tenant_id": place[0], **row}):
            yield (place[0], place[1]), {OPEN: True} | row_form(row, forms, place[0])
