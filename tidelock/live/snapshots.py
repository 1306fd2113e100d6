"""Snapshots: the rows of a filter and how far the fold is, seen in one moment.

Whoever asks for the same rows while they are read shares them, and only so many are read at a time: a thousand clients
that come back at once must not cost the database a thousand connections.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial

from tidelock.errors import DefinitionChanged, SnapshotTooLarge
from tidelock.fold.statements import placed, quoted
from tidelock.fold.tables import KEY, SCHEMA, Table
from tidelock.live.backlogs import Backlog
from tidelock.live.decoding import inserts_of
from tidelock.live.log import Frontier, look
from tidelock.live.readers import NoSuchTable, Reader, Readers, TookTooLong
from tidelock.live.shared import Share, Shared
from tidelock.where import POSTGRES, TRUE, Expression, where_sql

# Rows may be large: what a snapshot has in memory is bounded as well.
_BYTES_MAX = 256 * 2**20


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


def _read(reader: Reader, table: Table, expression: Expression, rows_max: int) -> Snapshot:
    reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        # Locked before anything is seen: a table that gets another shape meanwhile would seem to be empty.
        reader.execute(f"LOCK TABLE {placed(SCHEMA, table.name)} IN ACCESS SHARE MODE")
        seen = look(reader)
        rows = reader.query(_select(table, expression, rows_max + 1), bytes_max=_BYTES_MAX)
    except NoSuchTable:
        reader.execute("ROLLBACK")
        return _unmade(reader, table)
    except TookTooLong:
        raise _too_large("it takes too long to read them") from None
    if rows is None:
        raise _too_large(f"they have more than {_BYTES_MAX >> 20} MiB")
    if rows.num_rows > rows_max:
        raise _too_large(f"there are more than {rows_max} (setting live_snapshot_rows_max)")
    reader.execute("COMMIT")
    return Snapshot(seen.frontier, seen.version, Backlog([rows], partial(inserts_of, table)))


def _unmade(reader: Reader, table: Table) -> Snapshot:
    """Declared, and made by the fold when it first runs; or there no more."""
    seen = look(reader)
    if seen.version is not None:
        raise DefinitionChanged(f"there is no table {table.name} any more")
    return Snapshot(seen.frontier, None, Backlog([], partial(inserts_of, table)))


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
