"""Queries: the fields of an operation answered from the tables, all as of one moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, cast

import msgspec
import psycopg
from psycopg import sql

from tidelock.fold.keys import key_text
from tidelock.graphql.fields import ColumnOrder, Field, OneRowField, RowsField, TypenameField
from tidelock.graphql.introspection import Budget, IntrospectionField
from tidelock.graphql.requests import RESULT_TOO_LARGE, RequestRefused, refusal
from tidelock.graphql.schema import filter_columns
from tidelock.graphql.selections import TENANT, TYPENAME, select_rows
from tidelock.model import DEFAULT_TENANT
from tidelock.tables import KEY, SCHEMA, Table
from tidelock.views.rows import CHUNK_ROWS, column_expression, compared, key_conditions
from tidelock.where import POSTGRES, TRUE, All, Expression, OneOf, where_sql
from tidelock.where.expressions import all_of, one_of

# The snapshot is taken by the first query after this. Tables locked before cannot change shape meanwhile.
_ONE_MOMENT = sql.SQL("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; LOCK TABLE {} IN ACCESS SHARE MODE")

_encode = msgspec.json.Encoder().encode


def asks_tables(fields: Sequence[Field]) -> bool:
    """Whether answering needs a connection."""
    return any(isinstance(field, RowsField | OneRowField) for field in fields)


class QueryAnswer:
    """The answers to the fields of one operation, with the rows of one tenant or of all (None)."""

    def __init__(self, tenant_id: str | None, *, bytes_max: int) -> None:
        self._tenant_id = tenant_id
        self._bytes_max = bytes_max
        self._bytes = 0
        self._members: dict[str, bytes] = {}

    def encode(self, fields: Sequence[Field]) -> bytes:
        """The payload `{"data":{...}}`, when every field was read."""
        # The characters of a name need no escapes.
        members = (b'"%b":%b' % (field.name.encode(), self._members[field.name]) for field in fields)
        return b'{"data":{' + b",".join(members) + b"}}"

    def put(self, name: str, value: bytes) -> None:
        """Add an answer from another handler."""
        self._members[name] = value

    async def read_schema(self, fields: Sequence[Field], turn: asyncio.Lock) -> None:
        """The answers from the schema alone. Raises RequestRefused if they are too large.

        One at a time: several would only take the processor from everyone else.
        """
        budget: Budget | None = None
        for field in fields:
            match field:
                case TypenameField():
                    self._members[field.name] = _encode(field.type)
                case IntrospectionField():
                    # In a thread, so that others continue: it takes many milliseconds.
                    budget = budget or Budget(field.schema)
                    async with turn:
                        self._members[field.name] = await asyncio.to_thread(_described, field, budget)

    async def read_tables(
        self, connection: psycopg.AsyncConnection[Any], fields: Sequence[Field], there: Collection[str] | None = None
    ) -> None:
        """The answers from the tables. `there` are those that exist, None: all; others have no rows."""
        asked = [field for field in fields if isinstance(field, RowsField | OneRowField)]
        tables = dict.fromkeys(field.table.name for field in asked if there is None or field.table.name in there)
        async with AsyncExitStack() as stack:
            if len(asked) > 1 and tables:
                await stack.enter_async_context(connection.transaction())
                names = (sql.Identifier(SCHEMA, name) for name in tables)
                await connection.execute(_ONE_MOMENT.format(sql.SQL(", ").join(names)))
            for field in asked:
                rows = [] if field.table.name not in tables else await self._rows(connection, field)
                if isinstance(field, RowsField):
                    self._members[field.name] = b"[" + b",".join(rows) + b"]"
                else:
                    self._members[field.name] = rows[0] if rows else b"null"

    async def _rows(self, connection: psycopg.AsyncConnection[Any], field: RowsField | OneRowField) -> list[bytes]:
        columns = [column for column in dict.fromkeys(field.shown.values()) if column != TYPENAME] or [TENANT]
        encoded = select_rows(field.table, field.shown, columns)
        found: list[bytes] = []
        stream = connection.cursor().stream(self._select(field, columns), binary=True, size=CHUNK_ROWS)
        # Closed at once when left early, with its query.
        async with aclosing(cast("AsyncGenerator[Any]", stream)) as rows:
            async for row in rows:
                made = encoded(row)
                self._bytes += len(made)
                if self._bytes > self._bytes_max and self._bytes > len(made):
                    raise self._too_large(field)
                found.append(made)
        return found

    def _select(self, field: RowsField | OneRowField, columns: Sequence[str]) -> sql.Composed:
        table = field.table
        if isinstance(field, RowsField):
            where, order, limit, offset = field.where, field.order, field.limit, field.offset
            tenant_id = self._tenant_id
        else:
            where = all_of(one_of(name, table.columns[name], [value]) for name, value in field.key.items())
            order, limit, offset = (), 1, 0
            tenant_id = next(asked for asked in (field.tenant_id, self._tenant_id, DEFAULT_TENANT) if asked is not None)
        types = filter_columns(table)
        return sql.SQL("SELECT {} FROM {} WHERE {} ORDER BY {} LIMIT {} OFFSET {}").format(
            sql.SQL(", ").join(column_expression(name, types[name]) for name in columns),
            sql.Identifier(SCHEMA, table.name),
            sql.SQL(" AND ").join(self._conditions(table, tenant_id, where)),
            sql.SQL(", ").join(_ordering(table, order)),
            sql.Literal(limit),
            sql.Literal(offset),
        )

    def _conditions(self, table: Table, tenant_id: str | None, where: Expression) -> list[sql.Composable]:
        tenants = {asked for asked in (tenant_id, self._tenant_id) if asked is not None}
        found: list[sql.Composable] = [compared(TENANT, "=", tenant) for tenant in tenants]
        found += _key_conditions(table, where)
        if where != TRUE:
            # Made of quoted names and literals that need no further escaping.
            found.append(sql.SQL(where_sql(where, POSTGRES)))
        return found or [sql.SQL("true")]

    def _too_large(self, field: RowsField | OneRowField) -> RequestRefused:
        most = f"the response has more than {self._bytes_max} bytes (setting page_bytes_max)"
        return refusal(RESULT_TOO_LARGE, f"{field.name}: {most}; request fewer rows or columns", field=field.name)


def _described(field: IntrospectionField, budget: Budget) -> bytes:
    return _encode(field.read(budget))


def _ordering(table: Table, orders: Sequence[ColumnOrder]) -> list[sql.Composable]:
    """The columns to order by, followed by those that make the order stable."""
    types = filter_columns(table)
    by: list[sql.Composable] = []
    for order in orders:
        collation = sql.SQL(' COLLATE "C"' if types[order.column].name == "string" else "")
        direction = "DESC" if order.descending else "ASC"
        nulls = "FIRST" if order.nulls_first else "LAST"
        by.append(sql.Identifier(order.column) + collation + sql.SQL(f" {direction} NULLS {nulls}"))
    last = [TENANT, *([table.listed_by] if table.listed_by and not orders else []), KEY]
    return [*by, *map(sql.Identifier, last)]


def _key_conditions(table: Table, where: Expression) -> list[sql.Composable]:
    """The range of keys of a filter's rows, if it fixes the first key columns."""
    values = {}
    for part in where.parts if isinstance(where, All) else (where,):
        if isinstance(part, OneOf) and not part.negated and len(part.operands) == 1:
            values[part.column] = part.operands[0]
    texts = []
    for name in table.key:
        text = key_text(table.columns[name], values[name]) if name in values else None
        if text is None:
            break
        texts.append(text)
    return key_conditions(texts, len(table.key))
