"""Recomputation: the tables folded again from the ledger, in a separate schema, and compared with the stored ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import msgspec
import psycopg

from tidelock.columns import STRING
from tidelock.errors import SettingsError, Unreachable
from tidelock.fold import statements
from tidelock.fold.kernel.entries import FUTURE, INVALID
from tidelock.fold.redefine.catalog import Catalog, read_catalog
from tidelock.fold.redefine.replay import paths
from tidelock.fold.redefine.shadow import Place, Plan, Shadow, scopes
from tidelock.fold.runner import CURSOR
from tidelock.fold.store import Store
from tidelock.fold.streams import VALUE_TOLD, sql_text
from tidelock.postgres import leases
from tidelock.postgres.database import Database
from tidelock.sections import number_of
from tidelock.spark.runtime import Spark
from tidelock.tables import ERROR_ROWS, KEY, SCHEMA, STATEMENTS, Table
from tidelock.where.sql import literal

CHECK = Place("tidelock_check", "fold:check:")
#: differing rows reported per table
_SHOWN_MAX = 20

_LEASE = int.from_bytes(b"tidechck")


class Mismatch(msgspec.Struct, frozen=True, rename="camel"):
    """A value that differs from what the ledger gives."""

    table: str
    tenant_id: str
    key: str
    #: None: the whole row is missing, or should not be there
    column: str | None
    #: as Postgres writes it; for a whole row its columns, as JSON
    stored: str | None
    recomputed: str | None

    def __str__(self) -> str:
        place = f"{self.table}, tenant {self.tenant_id}, key {self.key}"
        if self.column is not None:
            return f"{place}: {self.column} is {_said(self.stored)}, the ledger gives {_said(self.recomputed)}"
        if self.stored is None:
            return f"{place}: the row is missing, the ledger gives {self.recomputed}"
        return f"{place}: the ledger gives no such row, stored is {self.stored}"


class Recomputation(msgspec.Struct, frozen=True, rename="camel"):
    """The result."""

    ok: bool
    #: everything up to here was folded
    through_sequence: int
    #: rows compared
    rows: int
    #: differing rows, some of which are reported
    differing: int
    differences: list[Mismatch]

    def summary(self) -> str:
        rows = f"{number_of(self.rows, 'row')}, folded again through sequence {self.through_sequence:,}"
        if not self.differing:
            return rows
        return f"{self.differing:,} of {rows}, {'differs' if self.differing == 1 else 'differ'}"


class _Compared(NamedTuple):
    rows: int
    differing: int
    findings: list[Mismatch]


def recompute(
    spark: Spark,
    database: Database,
    names: Sequence[str] = (),
    *,
    range_events_max: int,
    stop: threading.Event,
    progress: Callable[[int, int], None],
) -> Recomputation | None:
    """Fold by the definitions that the tables follow, those named or all, and compare. None: told to stop.

    The fold continues meanwhile. Leftovers of an earlier recomputation are removed first, its own at the end.
    """
    with database.connect_sync(name="tidelock recompute") as connection:
        if not leases.hold(connection, _LEASE):
            raise Unreachable("another recomputation is running on this ledger; wait until it finishes")
        try:
            while not stop.is_set():
                _remove(connection)
                with closing(Store(database, SCHEMA, CURSOR)) as store:
                    catalog = _catalog(store)
                    plan = _plan(catalog, names)
                    with closing(Shadow(spark, database, plan, CHECK)) as shadow:
                        attempt = _Attempt(
                            database,
                            store,
                            catalog,
                            shadow,
                            range_events_max=range_events_max,
                            stop=stop,
                            progress=progress,
                        )
                        found = attempt.run(everything=not names)
                if found is not None:
                    return found
            return None
        finally:
            _remove(connection)
            leases.release(connection, _LEASE)


class _Attempt:
    """A recomputation by the definitions of one version."""

    def __init__(
        self,
        database: Database,
        store: Store,
        catalog: Catalog,
        shadow: Shadow,
        range_events_max: int,
        stop: threading.Event,
        progress: Callable[[int, int], None],
    ) -> None:
        self._database = database
        self._store = store
        self._catalog = catalog
        self._shadow = shadow
        self._range_events_max = range_events_max
        self._stop = stop
        self._progress = progress

    def run(self, *, everything: bool) -> Recomputation | None:
        """None: told to stop, or the definitions have changed meanwhile."""
        if not self._catch_up(self._store.position()) or not self._catch_up(self._store.position()):
            return None
        # From here the fold waits until the snapshot for the comparison has been taken.
        through = self._hold_fold()
        if _catalog(self._store).version != self._catalog.version or not self._catch_up(through):
            return None
        with closing(self._database.connect_sync(autocommit=False, name="tidelock recompute tables")) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            connection.execute("SELECT 1")
            self._store.rollback()
            try:
                compared = [_compare(connection, table, scope) for table, scope in self._scopes(everything)]
            except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
                # Tables have changed shape since, which a snapshot does not hide.
                if _catalog(self._store).version == self._catalog.version:
                    raise
                return None
        differing = sum(each.differing for each in compared)
        findings = [finding for each in compared for finding in each.findings]
        return Recomputation(differing == 0, through, sum(each.rows for each in compared), differing, findings)

    def _catch_up(self, through: int) -> bool:
        """False: told to stop."""
        while not self._shadow.complete(through):
            if self._stop.is_set():
                return False
            self._shadow.step(self._range_events_max, through)
            self._progress(self._shadow.position, through)
        return True

    def _hold_fold(self) -> int:
        """Pause the fold; returns its position."""
        found = self._store.query(f"SELECT sequence FROM cursors WHERE name = '{CURSOR}' FOR UPDATE")
        return int(found["sequence"][0].as_py())

    def _scopes(self, everything: bool) -> list[tuple[Table, str]]:
        """A check of everything looks at every row, of whatever meter or stream it says it is."""
        stated = _stated(self._shadow.plan.names("meters"), self._catalog.hashes)
        if everything:
            return [(table, stated if table == STATEMENTS else "TRUE") for table in self._shadow.tables.values()]
        found = [*scopes(self._shadow.plan, self._shadow.tables), (STATEMENTS, stated)]
        return [(table, scope) for table, scope in found if scope != "FALSE"]


def _catalog(store: Store) -> Catalog:
    catalog = read_catalog(store)
    if catalog is None:
        raise SettingsError("nothing has been folded yet, so there are no tables to check; run `tidelock fold` first")
    return catalog


def _plan(catalog: Catalog, names: Sequence[str]) -> Plan:
    known = sorted(catalog.hashes)
    return Plan(catalog.definitions, paths(names, known) if names else tuple(known))


def _stated(meters: Sequence[str], hashes: Mapping[str, str]) -> str:
    """Which statements the current definitions can make: a changed meter rebuilds its counters, but statements stay."""
    pairs = ", ".join(f"({literal(STRING, name)}, {literal(STRING, hashes[f'meters.{name}'])})" for name in meters)
    if not pairs:
        return "FALSE"
    key = statements.quoted(KEY)
    return (
        f"(metric, definition) IN ({pairs}) AND NOT EXISTS (SELECT FROM {statements.placed(SCHEMA, STATEMENTS.name)} "
        f"AS first WHERE first.tenant_id = statements.tenant_id AND first.{key} = statements.{key} "
        "AND first.definition <> statements.definition)"
    )


def _remove(connection: psycopg.Connection[Any]) -> None:
    for statement in CHECK.drop():
        connection.execute(statement.encode())


def _compare(connection: psycopg.Connection[Any], table: Table, scope: str) -> _Compared:
    """Every column and the state. Not the source timestamps: they also reflect when definitions changed a row."""
    values = ", ".join(_value_sql(table, name) for name in table.stored)
    key = statements.quoted(KEY)
    sides = [
        f"SELECT tenant_id, {key} AS key, ARRAY[{values}] AS texts FROM {statements.placed(schema, table.name)} "
        f"WHERE {scope}"
        for schema in (SCHEMA, CHECK.schema)
    ]
    joined = f"({sides[0]}) AS stored FULL JOIN ({sides[1]}) AS recomputed USING (tenant_id, key)"
    differ = "stored.texts IS DISTINCT FROM recomputed.texts"
    counts = f"SELECT count(*), count(*) FILTER (WHERE {differ}) FROM {joined}"
    first = (
        f"SELECT tenant_id, key, stored.texts, recomputed.texts FROM {joined} WHERE {differ} "
        f"ORDER BY tenant_id, key LIMIT {_SHOWN_MAX}"
    )
    # The rollback releases the table: a swap waits for one comparison, not for all of them.
    with connection.transaction(force_rollback=True):
        row = connection.execute(counts.encode()).fetchone()
        assert row is not None, "counts always have a row"
        rows, differing = row
        found = connection.execute(first.encode()).fetchall() if differing else []
    return _Compared(rows, differing, [finding for row in found for finding in _findings(table, *row)])


def _value_sql(table: Table, name: str) -> str:
    """A column's value as text. Error rows of versions before 0.2 do not name the value that is no time."""
    if table.name == ERROR_ROWS.name and name == "message":
        codes = f"code IN ({sql_text(INVALID)}, {sql_text(FUTURE)})"
        return f"CASE WHEN {codes} THEN regexp_replace(message, {sql_text(VALUE_TOLD)}, '') ELSE message END"
    return f"{statements.quoted(name)}::text"


def _findings(
    table: Table, tenant: str, key: str, stored: list[str | None] | None, recomputed: list[str | None] | None
) -> list[Mismatch]:
    if stored is None or recomputed is None:
        shown = [None if row is None else _row_text(table, row) for row in (stored, recomputed)]
        return [Mismatch(table.name, tenant, key, None, *shown)]
    return [
        Mismatch(table.name, tenant, key, name, stored=own, recomputed=other)
        for name, own, other in zip(table.stored, stored, recomputed, strict=True)
        if own != other
    ]


def _row_text(table: Table, texts: list[str | None]) -> str:
    row = dict(zip(table.stored, texts, strict=True))
    return msgspec.json.encode({name: row[name] for name in table.columns}).decode()


def _said(text: str | None) -> str:
    return "null" if text is None else text
