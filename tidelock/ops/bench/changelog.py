"""A log of changes that nothing was folded for: what readers of changes get, without the cost of a fold."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import msgspec
import psycopg
import pyarrow as pa

from tidelock.changes.reader import Row
from tidelock.fold.segments import change_schema, encode
from tidelock.fold.tables import Table
from tidelock.postgres.database import Database
from tidelock.postgres.queries import load

QUERIES = load("tidelock.ops.bench", "changelog.sql")


class ChangeLog:
    """Writes ranges as the fold does: each row takes the place of that with its key, in a collection of its own."""

    def __init__(self, database: Database, table: Table, tenant_id: str) -> None:
        self._database = database
        self._table = table
        self._tenant_id = tenant_id
        self._schema = change_schema(table.columns)
        self._rows: dict[str, Row] = {}

    def write(self, rows: Iterable[Row], *, range_rows: int) -> None:
        """Changes in ranges of so many, all of which are there at the same moment."""
        following = iter(rows)
        with self._database.connect_sync(autocommit=False) as connection:
            connection.execute(QUERIES["begin"])
            while changes := list(islice(following, range_rows)):
                self._write(connection, changes)
            connection.execute(QUERIES["tell"])

    def _write(self, connection: psycopg.Connection[Any], rows: Sequence[Row]) -> None:
        found = connection.execute(QUERIES["last"]).fetchone()
        assert found is not None, "there is always a row"
        sequence, latest = found
        first = max(latest + 1, time.time_ns())
        changes = [self._change(first + number, row) for number, row in enumerate(rows)]
        (segment,) = encode(pa.Table.from_pylist(changes, self._schema))
        connection.execute(
            QUERIES["write"],
            {
                "table": self._table.name,
                "first": sequence + 1,
                "last": sequence + len(rows),
                "first_time": segment.first_source_timestamp,
                "last_time": segment.last_source_timestamp,
                "rows": segment.rows,
                "segment": segment.data,
            },
        )

    def _change(self, source_timestamp: int, row: Row) -> dict[str, object]:
        key = msgspec.json.encode([str(row[name]) for name in self._table.key]).decode()
        old, self._rows[key] = self._rows.get(key), row
        return {
            "tenant_id": self._tenant_id,
            "key": key,
            "source_timestamp": source_timestamp,
            "old": old,
            "new": row,
        }
