"""Rows of the fold's tables, read page by page in the order of tenant and key, or of the table's list column."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, cast

import psycopg
from psycopg import sql

from tidelock.columns import ColumnType, forms_of
from tidelock.fold.keys import key_range
from tidelock.tables import KEY, SCHEMA, Table
from tidelock.where import POSTGRES, TRUE, Expression, where_sql

#: rows fetched from the driver at a time; one may have a MiB
CHUNK_ROWS = 16
#: of the longest number that a bigint certainly holds
_DIGITS = 18

#: the select expression of a column, in its outside form or one that is quickly converted
_EXPRESSIONS = {
    "decimal": sql.SQL("trim_scale({})::text"),
    "date": sql.SQL("to_char({}, 'YYYY-MM-DD')"),
    "json": sql.SQL("{}::text"),
}


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Which rows of a table: everything given narrows it."""

    table: Table
    tenant_id: str | None = None
    #: column -> its value
    equal: Mapping[str, str] = field(default_factory=dict)
    #: timestamp column -> half-open range
    between: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    where: Expression = TRUE
    #: tenant and key of the last row of the previous page
    after: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class SelectedRows:
    """Rows of a selection, ready to be encoded."""

    items: Sequence[Mapping[str, object]]
    #: tenant and key of the last row, if the selection continues after it
    last: tuple[str, str] | None


async def read_rows(
    connection: psycopg.AsyncConnection[Any], selection: RowSelection, *, rows_max: int, bytes_max: int
) -> SelectedRows:
    """A page of at most this many rows and bytes of text, but at least one row."""
    columns = selection.table.columns
    names = ["tenant_id", *columns]
    texts = [i for i, name in enumerate(columns, start=1) if columns[name].name in ("string", "json")]
    # Decimals arrive in their outside form.
    forms = [(name, form) for name, form in forms_of(columns).items() if columns[name].name != "decimal"]
    items: list[dict[str, object]] = []
    last = None
    size = 0
    stream = connection.cursor().stream(_select(selection, rows_max + 1), binary=True, size=CHUNK_ROWS)
    # Closed at once when left early, with its query.
    async with aclosing(cast("AsyncGenerator[Any]", stream)) as rows:
        async for row in rows:
            size += sum(len(row[i]) for i in texts if row[i] is not None)
            if len(items) == rows_max or (items and size > bytes_max):
                return SelectedRows(items, last)
            item = dict(zip(names, row, strict=False))
            for name, form in forms:
                if item[name] is not None:
                    item[name] = form(item[name])
            items.append(item)
            last = (row[0], row[-1])
    return SelectedRows(items, None)


def table_name(table: Table) -> sql.Identifier:
    return sql.Identifier(SCHEMA, table.name)


def conditions(selection: RowSelection) -> sql.Composed:
    """The condition on rows, without the start of the page."""
    found: list[sql.Composable] = [sql.SQL("true")]
    if selection.tenant_id is not None:
        found.append(compared("tenant_id", "=", selection.tenant_id))
    for name, value in selection.equal.items():
        found.append(compared(name, "=", value))
    for name, (first, end) in selection.between.items():
        found += [] if first is None else [compared(name, ">=", first)]
        found += [] if end is None else [compared(name, "<", end)]
    found += _key_range(selection)
    if selection.where != TRUE:
        # Made of quoted names and literals that need no further escaping.
        found.append(sql.SQL(where_sql(selection.where, POSTGRES)))
    return sql.SQL(" AND ").join(found)


def column_expression(name: str, type_: ColumnType) -> sql.Composed:
    """A column in its outside form, or one that is quickly converted."""
    return _EXPRESSIONS.get(type_.name, sql.SQL("{}")).format(sql.Identifier(name))


def compared(column: str, operator: str, value: str | int) -> sql.Composed:
    return sql.SQL("{} {} {}").format(sql.Identifier(column), sql.SQL(operator), sql.Literal(value))


def key_conditions(texts: Sequence[str], columns: int) -> list[sql.Composable]:
    """The range of keys of this many columns whose first columns have these strings."""
    found = key_range(texts, columns)
    if found is None:
        return []
    if found.end is None:
        return [compared(KEY, "=", found.start)]
    return [compared(KEY, ">=", found.start), compared(KEY, "<", found.end)]


def _select(selection: RowSelection, limit: int) -> sql.Composed:
    table = selection.table
    shown = [column_expression(name, type_) for name, type_ in table.columns.items()]
    order = [sql.Identifier(name) for name in ("tenant_id", table.listed_by, KEY) if name is not None]
    return sql.SQL("SELECT tenant_id, {}, {} FROM {} WHERE {} AND {} ORDER BY {} LIMIT {}").format(
        sql.SQL(", ").join(shown),
        sql.Identifier(KEY),
        table_name(table),
        conditions(selection),
        _beginning(selection),
        sql.SQL(", ").join(order),
        sql.Literal(limit),
    )


def _beginning(selection: RowSelection) -> sql.Composable:
    """The start of the page: after the last row of the previous page."""
    if selection.after is None:
        return sql.SQL("true")
    tenant, key = map(sql.Literal, selection.after)
    if (by := selection.table.listed_by) is None:
        return sql.SQL("(tenant_id, {}) > ({}, {})").format(sql.Identifier(KEY), tenant, key)
    names = {"by": sql.Identifier(by), "key": sql.Identifier(KEY), "table": table_name(selection.table)}
    place = sql.SQL("(SELECT {by} FROM {table} WHERE tenant_id = {t} AND {key} = {k}{numbered})").format(
        t=tenant, k=key, numbered=_numbered(selection.table, selection.after[1]), **names
    )
    return sql.SQL("(tenant_id, {by}, {key}) > ({t}, {place}, {k})").format(t=tenant, k=key, place=place, **names)


def _numbered(table: Table, key: str) -> sql.Composable:
    """By what ordered output is indexed instead of the key."""
    if not table.numbered:
        return sql.SQL("")
    known = key.isascii() and key.isdecimal() and len(key) <= _DIGITS
    return sql.SQL(" AND ") + (compared("ingress_sequence", "=", int(key)) if known else sql.SQL("false"))


def _key_range(selection: RowSelection) -> list[sql.Composable]:
    """The range of keys implied by the first key columns; rows are indexed by key."""
    key = selection.table.key
    return key_conditions([selection.equal[name] for name in takewhile(selection.equal.__contains__, key)], len(key))
