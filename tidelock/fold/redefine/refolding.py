"""Refolding: recomputes expired changes of some tables from the ledger's first event on.

They are computed by the current definitions, in a separate schema. Before these applied, a table had other rows and
other changes, so that is refused: better nothing than something that never was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from tidelock.definitions import Definitions, parse_definitions
from tidelock.errors import Unreachable
from tidelock.fold.ranges import commit_end, definition_events
from tidelock.fold.redefine.catalog import Catalog, changed_definitions, read_catalog
from tidelock.fold.redefine.shadow import Place, Plan, Shadow, makes
from tidelock.fold.runner import CURSOR
from tidelock.fold.store import Log, Store
from tidelock.postgres import leases
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark
from tidelock.tables import SCHEMA

REPLAYED = Place("tidelock_replayed", "fold:replayed:")
#: separate from the tables, which may have any name: readers find the log by its name
LOG_SCHEMA = "tidelock_replayed_log"

_LEASE = int.from_bytes(b"tiderply")
_CREATE_LOG = (
    f"CREATE SCHEMA {LOG_SCHEMA}",
    f"CREATE TABLE {LOG_SCHEMA}.changes (LIKE changes INCLUDING ALL)",
    f"CREATE VIEW {LOG_SCHEMA}.changes_pruned AS SELECT 0::bigint AS source_timestamp",
)


class Refolding:
    """The changes of some tables through a sequence, to be folded and then to be read."""

    def __init__(self, database: Database, plan: Plan, tables: frozenset[str], through: int) -> None:
        self._database = database
        self._plan = plan
        self._log = Log(LOG_SCHEMA, tables)
        self._through = through

    def fold(
        self, spark: Spark, *, range_events_max: int, stop: threading.Event, progress: Callable[[int, int], None]
    ) -> bool:
        """False: told to stop."""
        with closing(Shadow(spark, self._database, self._plan, REPLAYED, log=self._log)) as shadow:
            while not shadow.complete(self._through):
                if stop.is_set():
                    return False
                shadow.step(range_events_max, self._through)
                progress(shadow.position, self._through)
        return True


@contextmanager
def refolding(database: Database, since: Mapping[str, int], through: int) -> Iterator[Refolding]:
    """For tables, each with the sequence after which its changes are needed. Raises Unreachable if it is not possible.

    Leftovers of an earlier one are removed first, its own at the end.
    """
    with database.connect_sync(name="tidelock refold") as connection:
        if not leases.hold(connection, _LEASE):
            raise Unreachable("another replay is folding this ledger; wait until it finishes")
        with closing(Store(database, SCHEMA, CURSOR)) as store:
            plan = _plan(store, since)
            end = commit_end(store, through)
        try:
            _remove(connection)
            for statement in _CREATE_LOG:
                connection.execute(statement.encode())
            yield Refolding(database, plan, frozenset(since), end)
        finally:
            _remove(connection)
            leases.release(connection, _LEASE)


def read_refolded(connection: psycopg.Connection[Any]) -> None:
    """Let a reader of changes see the recomputed ones until the end of its transaction."""
    path = f"SELECT set_config('search_path', '{LOG_SCHEMA}, ' || current_setting('search_path'), true)"
    connection.execute(path.encode())


def _plan(store: Store, since: Mapping[str, int]) -> Plan:
    # A consistent catalog and cursor.
    store.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    catalog = read_catalog(store)
    if catalog is None:
        raise Unreachable("nothing has been folded yet; run `tidelock fold` first")
    found = store.query(f"SELECT sequence FROM cursors WHERE name = '{CURSOR}'")
    changed = list(_changes_of_definitions(store, int(found["sequence"][0].as_py())))
    store.rollback()
    for table, sequence in since.items():
        _check(catalog, table, sequence, changed)
    units = tuple(path for path in sorted(catalog.hashes) if any(makes(path, table) for table in since))
    return Plan(catalog.definitions, units)


def _changes_of_definitions(store: Store, through: int) -> Iterator[tuple[int, list[str] | None]]:
    """Sequences at which definitions changed, and which; None: unknown."""
    before: Definitions | None = None
    for sequence, data in definition_events(store, through):
        after = parse_definitions(data["definitions"], eventtime_types=None)
        yield sequence, data.get("changed") if before is None else changed_definitions(before, after)
        before = after


def _check(catalog: Catalog, table: str, since: int, changed: list[tuple[int, list[str] | None]]) -> None:
    if table not in catalog.tables:
        raise Unreachable(f"table {table} no longer exists, so its changes cannot be recomputed from the ledger")
    at = [sequence for sequence, paths in changed if paths is None or any(makes(path, table) for path in paths)]
    if at and at[-1] > since:
        raise Unreachable(
            f"the changes of {table} after sequence {since} are needed, which are not kept any more (setting "
            f"changes_retention), and its definitions were changed at sequence {at[-1]}: by the current ones the "
            "ledger gives other rows than before that. A range that needs only later changes can be replayed."
        )


def _remove(connection: psycopg.Connection[Any]) -> None:
    for statement in (*REPLAYED.drop(), f"DROP SCHEMA IF EXISTS {LOG_SCHEMA} CASCADE"):
        connection.execute(statement.encode())
