"""The store: the fold's tables in Postgres, read and written in Arrow over ADBC."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import adbc_driver_manager as adbc
import pyarrow as pa
from adbc_driver_postgresql import dbapi

from tidelock.columns import STRING
from tidelock.errors import TidelockError, Unreachable
from tidelock.fold import statements
from tidelock.fold.arrow import typed
from tidelock.fold.segments import encode
from tidelock.fold.tables import KEY, Table
from tidelock.fold.versions import Outcome, row_schema
from tidelock.ledger.database import Database
from tidelock.where.sql import literal

#: so many new rows make Postgres count a table anew
_MANY_ROWS = 20_000


class CursorMoved(TidelockError):
    """Another fold has applied the range: nothing was done twice, and nothing is lost."""


@dataclass(frozen=True, slots=True)
class Log:
    """Where the changes of some tables are recorded, apart from those that everybody reads."""

    schema: str
    tables: frozenset[str]


class Store:
    """One connection. `schema` holds the tables; `cursor` names how far they are; `log`: changes go there."""

    def __init__(self, database: Database, schema: str, cursor: str, log: Log | None = None) -> None:
        self.schema = schema
        self.cursor = cursor
        self.log = log
        self._database = database
        self._connection: Any = None
        self._staged: set[str] = set()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._staged.clear()
        if connection is not None:
            # One that is lost cannot say goodbye.
            with suppress(adbc.Error):
                connection.close()

    def query(self, sql: str) -> pa.Table:
        """What a query answers; the transaction it began goes on."""
        with _translated(), self._connected().cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetch_arrow_table()

    def execute(self, sql: str) -> None:
        with _translated(), self._connected().cursor() as cursor:
            cursor.execute(sql)

    def commit(self) -> None:
        with _translated():
            self._connected().commit()

    def rollback(self) -> None:
        """What was staged is gone with the transaction; a connection that cannot even do this is given up."""
        self._staged.clear()
        try:
            if self._connection is not None:
                self._connection.rollback()
        except adbc.Error:
            self.close()

    def rows(self, table: Table, keys: pa.Table, schema: str | None = None) -> pa.Table:
        """The stored rows of some keys, of this schema or another."""
        if not keys.num_rows:
            return row_schema(table).empty_table()
        self._stage_keys(keys)
        return self._read(table, statements.select_keys(schema or self.schema, table))

    def matching(self, table: Table, keys: pa.Table | None, due: str | None, column: str = KEY) -> pa.Table:
        """The stored rows of some keys, or groups, and those that a join with what is due finds."""
        if keys is None or not keys.num_rows:
            if due is None:
                return row_schema(table).empty_table()
            return self._read(table, statements.select_due(self.schema, table, due))
        self._stage_keys(keys)
        return self._read(table, statements.select_matching(self.schema, table, column, due))

    def select(self, table: Table, sql: str) -> pa.Table:
        """Stored rows that a query finds, whose select list is `statements.columns`."""
        return self._read(table, sql)

    def apply(
        self, lo: int, hi: int, outcomes: Iterable[Outcome], *, changes: bool, afterwards: str | None = None
    ) -> None:
        """Tables, changes and cursor, in one transaction, with a statement at its end. Raises CursorMoved."""
        self.move(lo, hi)
        self.write(hi, outcomes, changes=changes)
        if afterwards is not None:
            self.execute(afterwards)
        self.finish(hi)

    def write(self, hi: int, outcomes: Iterable[Outcome], *, changes: bool) -> None:
        """Tables and changes, after the cursor was moved: its lock lets one fold write at a time, as MERGE needs."""
        for outcome in outcomes:
            self._write(outcome)
            if changes:
                self._record(hi, outcome)

    def finish(self, hi: int) -> None:
        """Make it durable, and tell those who wait for it."""
        name = literal(STRING, self.cursor)
        self.execute(f"SELECT pg_notify('tidelock_fold', '{hi}') WHERE {name} = 'fold'")
        self.commit()

    def move(self, lo: int, hi: int) -> None:
        name = literal(STRING, self.cursor)
        sql = f"UPDATE cursors SET sequence = {hi} WHERE name = {name} AND sequence = {lo} RETURNING sequence"
        if not self.query(sql).num_rows:
            self.rollback()
            raise CursorMoved(f"the cursor {self.cursor} is not at {lo} any more")

    def position(self) -> int:
        """How far the tables are; a cursor that is not there yet is made."""
        name = literal(STRING, self.cursor)
        self.execute(f"INSERT INTO cursors (name, sequence) VALUES ({name}, 0) ON CONFLICT DO NOTHING")
        found = self.query(f"SELECT sequence FROM cursors WHERE name = {name}")
        self.commit()
        return int(found["sequence"][0].as_py())

    def _write(self, outcome: Outcome) -> None:
        table = outcome.table
        if outcome.removed.num_rows:
            self._stage_keys(outcome.removed)
            self.execute(statements.delete_keys(self.schema, table))
        if outcome.rows.num_rows:
            self._stage(table, outcome.rows)
            self.execute(statements.merge(self.schema, table))
        if outcome.rows.num_rows >= _MANY_ROWS:
            # Autovacuum may have counted the table while these were not there yet to others: plans made by that count
            # would go through it once for every row.
            self.execute(statements.analyze(self.schema, table))

    def _record(self, hi: int, outcome: Outcome) -> None:
        if not outcome.changes.num_rows or (self.log is not None and outcome.table.name not in self.log.tables):
            return
        segments = encode(outcome.changes)
        rows = pa.table(
            {
                "table_name": [outcome.table.name] * len(segments),
                "last_sequence": pa.array([hi] * len(segments), pa.int64()),
                "part": pa.array(range(len(segments)), pa.int32()),
                "first_source_timestamp": pa.array(
                    [segment.first_source_timestamp for segment in segments], pa.int64()
                ),
                "last_source_timestamp": pa.array([segment.last_source_timestamp for segment in segments], pa.int64()),
                "rows": pa.array([segment.rows for segment in segments], pa.int32()),
                "segment": pa.array([segment.data for segment in segments], pa.binary()),
            }
        )
        self._ingest("changes", rows, None if self.log is None else self.log.schema)

    def _stage(self, table: Table, rows: pa.Table) -> None:
        stage = statements.stage_of(self.schema, table)
        if stage not in self._staged:
            self.execute(statements.create_stage(self.schema, table))
            self._staged.add(stage)
        self._ingest(stage, rows)

    def _stage_keys(self, keys: pa.Table) -> None:
        if "stage_keys" not in self._staged:
            self.execute(statements.CREATE_KEYS)
            self._staged.add("stage_keys")
        self.execute("TRUNCATE stage_keys")
        self._ingest("stage_keys", keys.select(["tenant_id", KEY]))

    def _ingest(self, table: str, rows: pa.Table, schema: str | None = None) -> None:
        with _translated(), self._connected().cursor() as cursor:
            temporary = table.startswith("stage")
            cursor.adbc_ingest(table, rows, mode="append", temporary=temporary, db_schema_name=schema)

    def _read(self, table: Table, sql: str) -> pa.Table:
        found = self.query(sql)
        for number, (name, type_) in enumerate(table.stored.items(), start=3):
            if type_.name == "decimal":
                found = found.set_column(number, name, typed(found[name], type_))
        return found.cast(row_schema(table))

    def _connected(self) -> Any:
        if self._connection is None:
            self._connection = dbapi.connect(self._database.url)
        return self._connection


#: the SQLSTATE of a lock that was not had in time
_LOCKED = "55P03"
#: SQLSTATEs of what no waiting mends: data, constraints, syntax, limits
_OBJECTIONS = ("22", "23", "42", "54")


@contextmanager
def _translated() -> Iterator[None]:
    """A lost server is an outage; what it objects to is our mistake and stays what it is."""
    try:
        yield
    except adbc.Error as error:
        state = error.sqlstate or ""
        if state == _LOCKED:
            raise Unreachable("a table is kept locked by a long transaction of someone else's; end it there") from None
        # Some of what it objects to comes as an operational error too, such as a key too long for an index.
        lost = isinstance(error, adbc.OperationalError) and not state.startswith(_OBJECTIONS)
        if lost or state.startswith(("08", "57", "53")):
            raise Unreachable(f"Postgres does not answer: {' '.join(str(error).split())}") from None
        raise
