"""Snapshots: the rows of a filter and how far the fold is, seen in one moment.

Whoever asks for the same rows while they are read shares them, and only so many are read at a time: a thousand clients
that come back at once must not cost the database a thousand connections.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, cast

import psycopg
import pyarrow as pa

from tidelock.errors import DefinitionChanged, SnapshotTooLarge
from tidelock.fold.statements import placed, quoted
from tidelock.fold.tables import KEY, SCHEMA, Table
from tidelock.live.backlogs import Backlog
from tidelock.live.decoding import inserts_of, stored_schema
from tidelock.live.log import Frontier, look
from tidelock.live.readers import Connection, Readers
from tidelock.live.shared import Share, Shared
from tidelock.where import POSTGRES, TRUE, Expression, where_sql

# Rows may be large: what a snapshot has in memory is bounded as well.
_BYTES_MAX = 256 * 2**20
# Rows the driver hands over at a time, one may have a MiB, and rows made Arrow at a time.
_CHUNK_ROWS, _BATCH_ROWS = 64, 256


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a filter is true for, and what it was seen at."""

    frontier: Frontier
    #: of the definitions; None before the fold has ever run
    version: int | None
    #: rows as INSERTs, by source timestamp, key and tenant
    rows: Backlog


class Snapshots:
    """Reads them."""

    def __init__(self, readers: Readers, *, rows_max: int) -> None:
        self._readers = readers
        self._rows_max = rows_max
        self._shared: Shared[Snapshot] = Shared()

    def join(self, key: Hashable, table: Table, expression: Expression) -> Share[Snapshot]:
        """The rows of now, or of a moment ago if they are being read already for the same key.

        Its result raises SnapshotTooLarge, and DefinitionChanged when the table is not there any more.
        """
        work = partial(_read, table=table, expression=expression, rows_max=self._rows_max)
        return self._shared.join(key, lambda: self._readers.insist(work))

    async def close(self) -> None:
        await self._shared.close()


def _read(connection: Connection, table: Table, expression: Expression, rows_max: int) -> Snapshot:
    try:
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            # Locked before anything is seen: a table that gets another shape meanwhile would seem to be empty.
            connection.execute(f"LOCK TABLE {placed(SCHEMA, table.name)} IN ACCESS SHARE MODE".encode())
            seen = look(connection)
            rows = _rows(connection, table, expression, rows_max)
    except psycopg.errors.UndefinedTable:
        return _unmade(connection, table)
    except psycopg.errors.QueryCanceled:
        raise _too_large("it takes too long to read them") from None
    return Snapshot(seen.frontier, seen.version, Backlog(rows, partial(inserts_of, table)))


def _unmade(connection: Connection, table: Table) -> Snapshot:
    """Declared, and made by the fold when it first runs; or there no more."""
    seen = look(connection)
    if seen.version is not None:
        raise DefinitionChanged(f"there is no table {table.name} any more")
    return Snapshot(seen.frontier, None, Backlog([], partial(inserts_of, table)))


def _rows(connection: Connection, table: Table, expression: Expression, rows_max: int) -> list[pa.Table]:
    """The rows in Arrow, as `inserts_of` takes them. Made of a few at a time, so that others have their turn."""
    schema = stored_schema(table)
    batches, count, size = [], 0, 0
    select = _select(table, expression, rows_max + 1).encode()
    stream = connection.cursor().stream(select, binary=True, size=_CHUNK_ROWS)
    # Closed at once when it is left early, and the query with it.
    with closing(cast("Generator[Any]", stream)):
        while rows := list(islice(stream, _BATCH_ROWS)):
            columns = zip(zip(*rows, strict=True), schema.types, strict=True)
            batches.append(pa.record_batch([pa.array(values, type_) for values, type_ in columns], schema))
            count, size = count + len(rows), size + batches[-1].nbytes
            if count > rows_max:
                raise _too_large(f"there are more than {rows_max} (setting live_snapshot_rows_max)")
            if size > _BYTES_MAX:
                raise _too_large(f"they have more than {_BYTES_MAX >> 20} MiB")
    return [pa.Table.from_batches(batches, schema)]


def _select(table: Table, expression: Expression, limit: int) -> str:
    # Texts are what Arrow takes of these, as of what the fold stores.
    shown = [
        f"{quoted(name)}::text AS {quoted(name)}" if type_.name in ("decimal", "json") else quoted(name)
        for name, type_ in table.columns.items()
    ]
    where = "" if expression == TRUE else f" WHERE {where_sql(expression, POSTGRES)}"
    return (
        f"SELECT tenant_id, {quoted(KEY)}, source_timestamp, {', '.join(shown)} "
        f"FROM {placed(SCHEMA, table.name)}{where} "
        f"ORDER BY source_timestamp, {quoted(KEY)}, tenant_id LIMIT {limit}"
    )


def _too_large(why: str) -> SnapshotTooLarge:
    return SnapshotTooLarge(f"too many rows to begin with: {why}; narrow the filter", field="where")
