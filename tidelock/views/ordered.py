"""Ordered output as it was released: the rows of each collection in order of their time, then its watermark.

Read from the changes while they are retained. Older rows are still in the table, but without their watermarks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import psycopg
from psycopg import sql

from tidelock.changes.reader import Change, before_last, pruned_through, read_changes
from tidelock.errors import NotFound, ResumeExpired
from tidelock.sections import shown
from tidelock.tables import KEY, WATERMARKS, Table
from tidelock.views.catalog import TableCatalog
from tidelock.views.rows import table_name

Connection = psycopg.Connection[Any]

_PAGE_ROWS = 1_000
_LAST = 2**63 - 1
_SELECT = sql.SQL(
    "SELECT source_timestamp, tenant_id, {key}, {columns} FROM {table} "
    "WHERE source_timestamp > {after} AND source_timestamp <= {through} AND {tenant} "
    "ORDER BY source_timestamp {way}, event_time {way}, ingress_sequence {way} {limit}"
)


def ordered_table(catalog: TableCatalog, stream: str) -> Table:
    """The table of a stream's ordered output. Raises NotFound."""
    ordered = [each.name for each in catalog.definitions.streams.values() if each.ordered]
    if stream not in ordered:
        there_are = f"these are: {', '.join(ordered)}" if ordered else "none is, see ordered in [streams.NAME]"
        raise NotFound(f"stream {shown(stream)} is not ordered; {there_are}")
    return catalog.table(f"{stream}_ordered")


def is_watermark(change: Change) -> bool:
    return change.table == WATERMARKS.name


class OrderedTail:
    """Reads ordered output onwards from a source timestamp, its `position`."""

    def __init__(self, table: Table, tenant_id: str | None, *, kept: bool, position: int = 0) -> None:
        self.position = position
        self._table = table
        self._tenant_id = tenant_id
        #: its changes are recorded
        self._kept = kept

    def read(self, connection: Connection) -> Iterator[Change]:
        """Everything after the position, which is moved."""
        if not self._kept:
            yield from self._stored_on(connection, _LAST)
            return
        while True:
            try:
                yield from self._changed(connection)
                return
            except ResumeExpired:
                through = pruned_through(connection)
                yield from self._stored_on(connection, through)
                self.position = through

    def last(self, connection: Connection, count: int) -> Iterator[Change]:
        """The last `count` rows with the watermarks after them; the position is moved to the end."""
        if not self._kept:
            yield from self._stored_last(connection, count)
            return
        # Only reading the changes shows how many belong to a tenant.
        near = count == 0 or self._tenant_id is None
        before = before_last(connection, self._table.name, max(count, 1)) if near else pruned_through(connection)
        self.position = before
        found: deque[Change] = deque()
        rows = 0
        for change in self.read(connection):
            found.append(change)
            rows += not is_watermark(change)
            while found and (rows > count or (rows == count and is_watermark(found[0]))):
                rows -= not is_watermark(found.popleft())
        yield from self._stored_last(connection, count - rows, through=before)
        yield from found

    def _changed(self, connection: Connection) -> Iterator[Change]:
        found = read_changes(connection, after=self.position, tables=[self._table.name, WATERMARKS.name])
        for source_timestamp, changes in groupby(found, key=lambda change: change.source_timestamp):
            # A whole collection at once: its changes come in the order of their keys as strings.
            given_out = sorted(filter(self._wanted, changes), key=_place)
            self.position = source_timestamp
            yield from given_out

    def _wanted(self, change: Change) -> bool:
        if self._tenant_id not in (None, change.tenant_id):
            return False
        return not is_watermark(change) or (change.key == self._table.name and _raised(change))

    def _stored_on(self, connection: Connection, through: int) -> Iterator[Change]:
        """Rows after the position, which moves with each collection: after an outage it continues there."""
        found = self._stored(connection, after=self.position, through=through)
        for source_timestamp, changes in groupby(found, key=lambda change: change.source_timestamp):
            given_out = list(changes)
            self.position = source_timestamp
            yield from given_out

    def _stored_last(self, connection: Connection, count: int, through: int = _LAST) -> list[Change]:
        if count <= 0:
            return []
        return [*self._stored(connection, through=through, last=count)][::-1]

    def _stored(
        self, connection: Connection, *, after: int = -1, through: int = _LAST, last: int | None = None
    ) -> Iterator[Change]:
        """Rows of the table as if they were changes: all of them, or a number of the last, last one first."""
        columns = [
            sql.SQL("{}::text" if type_.name == "json" else "{}").format(sql.Identifier(name))
            for name, type_ in self._table.columns.items()
        ]
        query = _SELECT.format(
            key=sql.Identifier(KEY),
            columns=sql.SQL(", ").join(columns),
            table=table_name(self._table),
            after=sql.Literal(after),
            through=sql.Literal(through),
            tenant=sql.SQL("true") if self._tenant_id is None else _is_tenant(self._tenant_id),
            way=sql.SQL("ASC" if last is None else "DESC"),
            limit=sql.SQL("") if last is None else sql.SQL("LIMIT {}").format(sql.Literal(last)),
        )
        try:
            with connection.transaction(), connection.cursor(name="ordered") as cursor:
                cursor.itersize = _PAGE_ROWS
                cursor.execute(query)
                for source_timestamp, tenant_id, key, *values in cursor:
                    row = dict(zip(self._table.columns, values, strict=True))
                    yield Change(self._table.name, source_timestamp, tenant_id, key, old=None, new=row)
        except psycopg.errors.UndefinedTable:
            return  # declared, and made by the fold when it first runs


def _is_tenant(tenant_id: str) -> sql.Composed:
    return sql.SQL("tenant_id = {}").format(sql.Literal(tenant_id))


def _raised(change: Change) -> bool:
    """Whether a change of the fold's state of a window is one of its watermark."""
    new, old = (None if row is None else row["watermark"] for row in (change.new, change.old))
    return new is not None and new != old


def _place(change: Change) -> tuple[bool, int, int, str]:
    """Rows in the order of their time, then the watermark of each tenant."""
    if is_watermark(change):
        return True, 0, 0, change.tenant_id
    row = change.new or change.old or {}
    return False, row["event_time"], row["ingress_sequence"], change.tenant_id
