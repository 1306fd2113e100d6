"""The past: counters as they were when the fold had come to a sequence, of all customers, folded again beside them.

A use of the shadow like `recomputation` and `refolding`, apart from them because nothing is compared and no change is
recorded. `app` opens it for the command that exports, which may not know Spark.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from tidelock.errors import RequestError, Unreachable
from tidelock.fold.redefine.catalog import Catalog, read_catalog
from tidelock.fold.redefine.shadow import Place, Plan, Shadow
from tidelock.fold.runner import CURSOR
from tidelock.fold.store import Store
from tidelock.postgres import leases
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark
from tidelock.tables import SCHEMA

PAST = Place("tidelock_past", "fold:past:")

_LEASE = int.from_bytes(b"tidepast")


@contextmanager
def counters_as_of(
    spark: Spark,
    database: Database,
    catalog: Catalog,
    metrics: Sequence[str],
    sequence: int,
    *,
    range_events_max: int,
    stop: threading.Event,
    progress: Callable[[int, int], None],
) -> Iterator[str | None]:
    """The schema that has them for the time of the block, by the current definitions; None: told to stop.

    Raises Unreachable where another is folded."""
    plan = Plan(catalog.definitions, tuple(f"meters.{name}" for name in metrics))
    with database.connect_sync(name="tidelock past") as connection:
        if not leases.hold(connection, _LEASE):
            raise Unreachable("the past of this ledger is being folded for another request; wait until it finishes")
        try:
            _remove(connection)
            with closing(Shadow(spark, database, plan, PAST)) as shadow:
                done = _fold(shadow, sequence, range_events_max, stop, progress)
            yield PAST.schema if done else None
        finally:
            _remove(connection)
            leases.release(connection, _LEASE)


def read_past(database: Database, sequence: int) -> Catalog:
    """The definitions that hold. Raises RequestError for a sequence that the fold has yet to come to."""
    with closing(Store(database, SCHEMA, CURSOR)) as store:
        catalog, position = read_catalog(store), store.position()
    if catalog is None or not 1 <= sequence <= position:
        raise RequestError(
            f"asOf must be a sequence from 1 to {position}, through which the fold is complete", field="asOf"
        )
    return catalog


def _fold(
    shadow: Shadow, sequence: int, events_max: int, stop: threading.Event, progress: Callable[[int, int], None]
) -> bool:
    """A commit may go on behind the sequence: of the last only a part is folded."""
    while shadow.step(events_max, sequence) is not None:
        if stop.is_set():
            return False
        progress(shadow.position, sequence)
    shadow.step_within(sequence)
    return True


def _remove(connection: psycopg.Connection[Any]) -> None:
    for statement in PAST.drop():
        connection.execute(statement.encode())
