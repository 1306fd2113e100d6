"""The store: the fold's tables in Postgres, read and written in Arrow over ADBC."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import adbc_driver_manager as adbc
import pyarrow as pa
import pyarrow.compute as pc
from adbc_driver_postgresql import dbapi

from tidelock.arrow import column, typed
from tidelock.changes.segments import Changes, Segment, encode
from tidelock.columns import STRING
from tidelock.errors import CursorMoved, Unreachable
from tidelock.fold import statements
from tidelock.fold.kernel.outcomes import Outcome, row_schema
from tidelock.fold.writebehind import WriteBehind
from tidelock.postgres.database import Database
from tidelock.postgres.reconnect import Away
from tidelock.tables import KEY, Table
from tidelock.where.sql import literal

#: after this many new rows, and as many as there were, run ANALYZE
_MANY_ROWS = 20_000
#: up to this many keys are listed in the query: one round trip instead of several
_FEW_KEYS = 200
#: rows encoded at a time: Postgres ingests them while the next are encoded
_COPIED_ROWS = 1_000

#: the SQLSTATE of a lock timeout
_LOCKED = "55P03"
#: SQLSTATEs that waiting does not fix: data, constraints, syntax, limits
_OBJECTIONS = ("22", "23", "42", "54")


#: entered around each step of a range, by its name: how measurements see where the time goes
Observe = Callable[[str], AbstractContextManager[object]]


def unobserved(_: str) -> AbstractContextManager[object]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Log:
    """Where the changes of some tables are recorded, apart from the live log."""

    schema: str
    tables: frozenset[str]


class Store:
    """One connection. `schema` holds the tables; `cursor` names their position; `log`: where changes are written.

    Steps that are observed: `stored` (rows are read), `write`, `record` (of changes), and of a large range `executors`,
    `read` and `gather`.
    """

    def __init__(
        self, database: Database, schema: str, cursor: str, log: Log | None = None, *, observe: Observe = unobserved
    ) -> None:
        self.schema = schema
        self.cursor = cursor
        self.log = log
        self.observe = observe
        self._database = database
        self._connection: Any = None
        #: writes what was found while more is found; None: everything is written at once
        self._behind: WriteBehind | None = None
        self._staged: set[str] = set()
        #: stages that have rows of this transaction
        self._filled: set[str] = set()
        #: by table: rows added since the last ANALYZE, and the count then
        self._added: Counter[str] = Counter()
        self._counted: Counter[str] = Counter()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._staged.clear()
        self._filled.clear()
        if connection is not None:
            # A lost connection cannot be closed cleanly.
            with suppress(adbc.Error):
                connection.close()

    def query(self, sql: str) -> pa.Table:
        """The result of a query; its transaction stays open."""
        with self._translated(), self._connected().cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetch_arrow_table()

    def execute(self, sql: str) -> None:
        with self._translated(), self._connected().cursor() as cursor:
            cursor.execute(sql)

    def commit(self) -> None:
        self._filled.clear()
        with self._translated():
            self._connected().commit()

    def rollback(self) -> None:
        """Staged rows are gone with the transaction; a connection that cannot even roll back is dropped."""
        self._behind = None
        self._staged.clear()
        self._filled.clear()
        try:
            if self._connection is not None:
                self._connection.rollback()
        except adbc.Error:
            self.close()

    def rows(self, table: Table, keys: pa.Table, schema: str | None = None) -> pa.Table:
        """The stored rows of some keys, of this schema or another."""
        if not keys.num_rows:
            return row_schema(table).empty_table()
        with self.observe("stored"):
            if keys.num_rows <= _FEW_KEYS:
                return self._read(table, statements.select_few(schema or self.schema, table, keys.to_pylist()))
            if not self.query(statements.select_any(schema or self.schema, table)).num_rows:
                return row_schema(table).empty_table()
            self._stage_keys(keys)
            return self._read(table, statements.select_keys(schema or self.schema, table))

    def matching(self, table: Table, keys: pa.Table | None, due: statements.Due | None, column: str = KEY) -> pa.Table:
        """The stored rows of some keys, or groups, and those that are due."""
        if keys is None or not keys.num_rows:
            if due is None:
                return row_schema(table).empty_table()
            with self.observe("stored"):
                return self._read(table, statements.select_due(self.schema, table, due))
        with self.observe("stored"):
            self._stage_keys(keys)
            return self._read(table, statements.select_matching(self.schema, table, column, due))

    def apply(
        self,
        lo: int,
        hi: int,
        outcomes: Iterable[Outcome],
        *,
        changes: bool,
        afterwards: Iterable[str] = (),
        behind: bool = False,
    ) -> int:
        """Tables, changes and cursor, in one transaction, with statements at its end, which are asked for then; says
        how many rows were stored or removed. Raises CursorMoved.

        `behind`: outcomes are written on another thread, while the next ones are computed.
        """
        with self.observe("write"):
            self.move(lo, hi)
            with WriteBehind() if behind else nullcontext() as self._behind:
                rows = self.write(hi, outcomes, changes=changes)
            self._behind = None
            for statement in afterwards:
                self.execute(statement)
            self.finish(hi)
        return rows

    def write(self, hi: int, outcomes: Iterable[Outcome], *, changes: bool) -> int:
        """Tables and changes, after moving the cursor: its lock lets one fold write at a time, as MERGE requires."""
        lanes: Counter[str] = Counter()
        #: of the lane that was written last
        parts = 0
        rows = 0
        for outcome in outcomes:
            own = outcome.rows.num_rows + outcome.fresh.num_rows + outcome.removed.num_rows
            rows += own
            self._do(partial(self._write, outcome), own)
            if changes:
                # Several steps of a range may each have rows for one table.
                name = outcome.table.name
                with self.observe("record"):
                    if outcome.follows and isinstance(outcome.changes, Changes):
                        segments = encode(outcome.changes)
                        self._do(partial(self.record_segments, hi, name, lanes[name] - 1, segments, first=parts))
                        parts += len(segments)
                        continue
                    recorded = self._record(hi, outcome, lanes[name])
                    lanes[name] += len(recorded)
                    parts = len(recorded[-1]) if recorded else 0
        return rows

    def record_segments(
        self, hi: int, table_name: str, lane: int, segments: Sequence[Segment], *, first: int = 0
    ) -> None:
        """The changes of a table in one lane of the range that ends with `hi`: its parts, numbered from `first`."""
        if not segments or not self._logs(table_name):
            return
        count = len(segments)
        rows = pa.table(
            {
                "table_name": [table_name] * count,
                "last_sequence": pa.array([hi] * count, pa.int64()),
                "lane": pa.array([lane] * count, pa.int32()),
                "part": pa.array(range(first, first + count), pa.int32()),
                "first_source_timestamp": pa.array([each.first_source_timestamp for each in segments], pa.int64()),
                "last_source_timestamp": pa.array([each.last_source_timestamp for each in segments], pa.int64()),
                "rows": pa.array([each.rows for each in segments], pa.int32()),
                "segment": pa.array([each.data for each in segments], pa.binary()),
            }
        )
        self._ingest("changes", rows, None if self.log is None else self.log.schema)

    def finish(self, hi: int) -> None:
        """Commit, and notify waiting readers."""
        name = literal(STRING, self.cursor)
        self.execute(f"SELECT pg_notify('tidelock_fold', '{hi}') WHERE {name} = 'fold'")
        self.commit()

    def move(self, lo: int, hi: int) -> None:
        name = literal(STRING, self.cursor)
        sql = f"UPDATE cursors SET sequence = {hi} WHERE name = {name} AND sequence = {lo} RETURNING sequence"
        if not self.query(sql).num_rows:
            self.rollback()
            raise CursorMoved(f"another process has moved the cursor {self.cursor} from {lo}")

    def position(self) -> int:
        """The position of the tables; a missing cursor is created."""
        name = literal(STRING, self.cursor)
        self.execute(f"INSERT INTO cursors (name, sequence) VALUES ({name}, 0) ON CONFLICT DO NOTHING")
        found = self.query(f"SELECT sequence FROM cursors WHERE name = {name}")
        self.commit()
        return int(found["sequence"][0].as_py())

    def _write(self, outcome: Outcome) -> None:
        table = outcome.table
        if outcome.due is not None:
            self.execute(statements.delete_due(self.schema, table, outcome.due))
        if outcome.removed.num_rows:
            self._stage_keys(outcome.removed)
            with self._along_index(outcome.removed):
                self.execute(statements.delete_keys(self.schema, table))
        if outcome.rows.num_rows:
            self._stage(table, outcome.rows)
            with self._along_index(outcome.rows):
                self.execute(statements.merge(self.schema, table))
        if outcome.fresh.num_rows:
            # By sequence they are nearly in order, however their keys compare as strings.
            fresh = outcome.fresh if table.key == ("ingress_sequence",) else _sorted(outcome.fresh)
            self._ingest(table.name, fresh, self.schema)
            self._count(table, outcome.fresh.num_rows)

    @contextmanager
    def _along_index(self, rows: pa.Table) -> Iterator[None]:
        """Few rows are looked up so anyway."""
        if rows.num_rows > _FEW_KEYS:
            self.execute(statements.along_index(True))
        yield
        if rows.num_rows > _FEW_KEYS:
            self.execute(statements.along_index(False))

    def _count(self, table: Table, added: int) -> None:
        """Analyse a table that has become much larger.

        Autovacuum may have counted it while its new rows were not visible yet: plans based on that count would scan it
        once for every row.
        """
        self._added[table.name] += added
        if self._added[table.name] >= max(_MANY_ROWS, self._counted[table.name]):
            self.execute(statements.SMALL_SAMPLE)
            self.execute(statements.analyze(self.schema, table))
            place = literal(STRING, statements.placed(self.schema, table.name))
            found = self.query(f"SELECT reltuples::bigint AS rows FROM pg_class WHERE oid = {place}::regclass")
            self._counted[table.name] = found["rows"][0].as_py()
            self._added[table.name] = 0

    def _record(self, hi: int, outcome: Outcome, lane: int) -> Sequence[Sequence[Segment]]:
        """Its changes, from a lane on; gives the segments of the lanes that they took."""
        if not self._logs(outcome.table.name):
            return ()
        lanes = outcome.lanes or ([encode(outcome.changes)] if outcome.changes is not None else [])
        for number, segments in enumerate(lanes, start=lane):
            self._do(partial(self.record_segments, hi, outcome.table.name, number, segments))
        return lanes

    def _do(self, work: Callable[[], None], rows: int = 0) -> None:
        if self._behind is None:
            work()
        else:
            self._behind.do(work, rows)

    def _logs(self, table_name: str) -> bool:
        return self.log is None or table_name in self.log.tables

    def _stage(self, table: Table, rows: pa.Table) -> None:
        stage = statements.stage_of(self.schema, table)
        if stage not in self._staged:
            self.execute(statements.create_stage(self.schema, table))
            self._staged.add(stage)
        elif stage in self._filled:
            # A range may come in several parts, and what the last one staged is merged already.
            self.execute(f"TRUNCATE {stage}")
        self._filled.add(stage)
        self._ingest(stage, _sorted(rows), temporary=True)

    def _stage_keys(self, keys: pa.Table) -> None:
        if "stage_keys" not in self._staged:
            self.execute(statements.CREATE_KEYS)
            self._staged.add("stage_keys")
        self.execute("TRUNCATE stage_keys")
        self._ingest("stage_keys", _sorted(keys.select(["tenant_id", KEY])), temporary=True)

    def _ingest(self, table: str, rows: pa.Table, schema: str | None = None, *, temporary: bool = False) -> None:
        # Nulls need not travel: they are what a row has where nothing is said.
        if rows.num_rows:
            rows = rows.select([name for name in rows.column_names if rows[name].null_count < rows.num_rows])
        reader = pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(_COPIED_ROWS))
        with self._translated(), self._connected().cursor() as cursor:
            cursor.adbc_ingest(table, reader, mode="append", temporary=temporary, db_schema_name=schema)

    def _read(self, table: Table, sql: str) -> pa.Table:
        found = self.query(sql)
        for number, (name, type_) in enumerate(table.stored.items(), start=3):
            if type_.name == "decimal":
                found = found.set_column(number, name, typed(found[name], type_))
        return found.cast(row_schema(table))

    def _connected(self) -> Any:
        if self._behind is not None:
            self._behind.settle()
        if self._connection is None:
            self._connection = dbapi.connect(self._database.url)
        return self._connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """A lost server is an outage; an error from the server is our bug and stays as it is."""
        try:
            yield
        except adbc.Error as error:
            state = error.sqlstate or ""
            if state == _LOCKED:
                raise Unreachable(
                    "a table is locked by a long transaction of another client; end that transaction"
                ) from None
            # Some of its errors are operational errors too, such as a key too long for an index.
            lost = isinstance(error, adbc.OperationalError) and not state.startswith(_OBJECTIONS)
            if lost or state.startswith(("08", "57", "53")):
                self.close()
                raise Away(f"Postgres does not respond: {' '.join(str(error).split())}") from None
            raise


def _sorted(rows: pa.Table) -> pa.Table:
    """By key, so that neighbours in an index are found and written together.

    Rows from the kernel are already in this order, lane after lane: then there are few places where a key is smaller
    than the previous one.
    """
    if rows.num_rows <= _FEW_KEYS:
        return rows
    keys = column(rows, KEY)
    smaller = pc.sum(pc.less(keys.slice(1), keys.slice(0, len(keys) - 1))).as_py()
    if smaller * _FEW_KEYS < len(keys):
        return rows
    return rows.sort_by([("tenant_id", "ascending"), (KEY, "ascending")])
