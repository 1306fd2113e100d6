"""Comparison: the counters that other definitions would give, beside the current ones. Nothing changes.

A use of the shadow, like `past`: the changed meters are folded from the first event into a schema of their own, through
the sequence that the tables are at, and both are read in one snapshot.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from tidelock.columns import STRING
from tidelock.definitions import Definitions
from tidelock.errors import SettingsError, Unreachable
from tidelock.fold import statements
from tidelock.fold.redefine.catalog import Catalog, changed_units, check_columns, read_catalog
from tidelock.fold.redefine.differences import Differing
from tidelock.fold.redefine.shadow import Place, Plan, Shadow
from tidelock.fold.runner import CURSOR
from tidelock.fold.store import Store
from tidelock.instants import format_instant
from tidelock.postgres import leases
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark
from tidelock.tables import COUNTERS, KEY, SCHEMA
from tidelock.where.sql import literal

COMPARED = Place("tidelock_compared", "fold:compared:")

_LEASE = int.from_bytes(b"tidecmpr")
_CHUNK_ROWS = 2_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was compared."""

    #: the meters that are new, different or gone
    meters: Sequence[str]
    through_sequence: int
    _connection: psycopg.Connection[Any] | None

    def rows(self) -> Iterator[Differing]:
        """Counters that differ, the greatest difference first."""
        if self._connection is None or not self.meters:
            return
        with self._connection.cursor("tidelock_compared") as cursor:
            cursor.itersize = _CHUNK_ROWS
            cursor.execute(_differing_sql(self.meters).encode())
            for tenant_id, metric, customer_ref, start, *figures in cursor:
                yield Differing(tenant_id, metric, customer_ref, format_instant(start), *figures)


@contextmanager
def compared(
    spark: Spark,
    database: Database,
    wanted: Definitions,
    *,
    metric: str | None = None,
    range_events_max: int,
    stop: threading.Event,
    progress: Callable[[int, int], None],
) -> Iterator[Comparison | None]:
    """Counters by other definitions, to be read in the block; None if `stop` was set. The block's end drops them.

    `metric`: only this meter. Raises SettingsError for definitions that could not be replayed, and Unreachable while
    another comparison is running."""
    with database.connect_sync(name="tidelock compare") as connection:
        if not leases.hold(connection, _LEASE):
            raise Unreachable("another comparison is running on this ledger; wait until it finishes")
        try:
            _remove(connection)
            with closing(Store(database, SCHEMA, CURSOR)) as store:
                plan = _plan(_catalog(store), wanted, metric)
                meters = plan.names("meters")
                if not meters:
                    yield Comparison((), store.position(), None)
                    return
                with closing(Shadow(spark, database, plan, COMPARED)) as shadow:
                    through = _Folding(store, shadow, range_events_max, stop, progress).run()
                    if through is None:
                        yield None
                        return
                    with closing(_snapshot(database)) as snapshot:
                        # The snapshot is taken: the fold, which waits for the cursor, may go on.
                        store.rollback()
                        yield Comparison(meters, through, snapshot)
        finally:
            _remove(connection)
            leases.release(connection, _LEASE)


@dataclass(frozen=True, slots=True)
class _Folding:
    """Folds the shadow through where the tables are."""

    store: Store
    shadow: Shadow
    range_events_max: int
    stop: threading.Event
    progress: Callable[[int, int], None]

    def run(self) -> int | None:
        """The sequence that both are at; the fold waits there until the store's transaction ends. None: stopped."""
        # Twice, so that little is left to fold while the fold waits.
        if not self._catch_up(self.store.position()) or not self._catch_up(self.store.position()):
            return None
        found = self.store.query(f"SELECT sequence FROM cursors WHERE name = '{CURSOR}' FOR UPDATE")
        through = int(found["sequence"][0].as_py())
        return through if self._catch_up(through) else None

    def _catch_up(self, through: int) -> bool:
        while not self.shadow.complete(through):
            if self.stop.is_set():
                return False
            self.shadow.step(self.range_events_max, through)
            self.progress(self.shadow.position, through)
        return True


def _snapshot(database: Database) -> psycopg.Connection[Any]:
    connection = database.connect_sync(autocommit=False, name="tidelock compare tables")
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.read_only = True
    connection.execute("SELECT 1")
    return connection


def _catalog(store: Store) -> Catalog:
    catalog = read_catalog(store)
    store.rollback()
    if catalog is None:
        raise SettingsError("nothing has been folded yet, so there is nothing to compare; run `tidelock fold` first")
    return catalog


def _plan(catalog: Catalog, wanted: Definitions, metric: str | None) -> Plan:
    check_columns(catalog.definitions, wanted)
    units = (path for path in changed_units(catalog.hashes, wanted) if path.startswith("meters."))
    return Plan(wanted, tuple(path for path in units if metric is None or path == f"meters.{metric}"))


def _differing_sql(meters: Sequence[str]) -> str:
    key, names = statements.quoted(KEY), ", ".join(literal(STRING, name) for name in meters)
    sides = [
        f"(SELECT * FROM {statements.placed(schema, COUNTERS.name)} WHERE metric IN ({names})) AS {side}"
        for schema, side in ((SCHEMA, "before"), (COMPARED.schema, "after"))
    ]
    shared = ", ".join(
        f"coalesce(after.{name}, before.{name}) AS {name}"
        for name in ("tenant_id", "metric", "customer_ref", "period_start")
    )
    figures = ", ".join(
        f"trim_scale({side}.{name})::text AS {name}_{side}"
        for name in ("value", "total")
        for side in ("before", "after")
    )
    moved = {name: f"coalesce(after.{name}, 0) - coalesce(before.{name}, 0)" for name in ("value", "total")}
    return (
        f"SELECT {shared}, {figures}, trim_scale({moved['value']})::text AS difference "
        f"FROM {' FULL JOIN '.join(sides)} "
        f"ON after.tenant_id = before.tenant_id AND after.{key} = before.{key} "
        "WHERE (before.value, before.total) IS DISTINCT FROM (after.value, after.total) "
        f"ORDER BY abs({moved['value']}) DESC, abs({moved['total']}) DESC, 1, 2, 3, 4"
    )


def _remove(connection: psycopg.Connection[Any]) -> None:
    for statement in COMPARED.drop():
        connection.execute(statement.encode())
