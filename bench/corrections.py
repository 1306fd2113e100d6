"""Corrections: what a range with corrections costs, of one large counter and of many small ones."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bench import memory
from bench.backlog import only_row
from bench.harness import Say
from bench.runs import Figures, Workbench, workbench
from tidelock.definitions import parse_definitions
from tidelock.errors import Difference
from tidelock.fold.rangefold import RangeFold
from tidelock.fold.ranges import Pace, next_range
from tidelock.fold.store import Store
from tidelock.instants import parse_rfc3339
from tidelock.postgres.database import Database
from tidelock.postgres.queries import load
from tidelock.settings import Settings
from tidelock.tables import SCHEMA

QUERIES = load("bench", "corrections.sql")

METERS = parse_definitions({"meters": {"api_calls": {"period": "month"}}})
_START = parse_rfc3339("2026-03-10T00:00:00Z")
_RANGE_EVENTS = 500_000
#: of a partition of the ledger
_PARTITION_EVENTS = 1_000_000


def measure(settings: Settings, events: int, corrections: int, say: Say, *, place: Path | None = None) -> Figures:
    """Figures of corrections of one counter with so many events, and of as many counters as there are corrections."""
    figures: Figures = {"events": events, "corrections": corrections}
    with workbench(settings, place) as bench:
        with folding(bench, "one", events, 1) as ledger:
            say(f"  one counter of {events:,} events")
            figures["plainSeconds"] = ledger.fold()
            # The first one compiles what the others use.
            ledger.correct(1)
            figures["oneSeconds"] = ledger.correct(1)
            figures["manySeconds"] = ledger.correct(corrections)
            figures["driverPeakMb"], figures["jvmPeakMb"] = ledger.peaks()
        with folding(bench, "many", events, corrections) as ledger:
            say(f"  {corrections:,} counters")
            ledger.fold()
            figures["countersSeconds"] = ledger.correct(corrections)
            figures["countersDriverPeakMb"], figures["countersJvmPeakMb"] = ledger.peaks()
    return figures


class Ledger:
    """A ledger that is folded up to its end, again and again."""

    def __init__(self, database: Database, bench: Workbench, store: Store) -> None:
        self._database = database
        self._spark = bench.spark
        self._store = store
        self._fold = RangeFold(bench.spark, store, database, METERS)
        self._position = store.position()

    def fold(self) -> float:
        """Seconds; raises Difference where the counters are not what the ledger says."""
        begun = time.perf_counter()
        pace = Pace(_RANGE_EVENTS, _RANGE_EVENTS)
        while (found := next_range(self._store, self._position, pace.events)) is not None:
            self._fold.apply(found.lo, found.hi)
            self._position = found.hi
        seconds = time.perf_counter() - begun
        self._store.rollback()
        with self._database.connect_sync() as connection:
            made, left = (only_row(connection.execute(QUERIES[name]).fetchone()) for name in ("counted", "left"))
        if made != left:
            raise Difference(f"the counters have {made}, the ledger gives {left}")
        return round(seconds, 2)

    def correct(self, count: int) -> float:
        """Seconds for a range of so many corrections."""
        with self._database.connect_sync() as connection:
            for name in ("corrections", "corrected", "commits", "head"):
                connection.execute(QUERIES[name], {"count": count} if name == "corrections" else {})
        return self.fold()

    def peaks(self) -> tuple[int | None, int | None]:
        """Peak memory of the driver and of the JVM."""
        return memory.peak_mb(os.getpid()), memory.peak_mb(self._spark.pid)


@contextmanager
def folding(bench: Workbench, name: str, events: int, customers: int) -> Iterator[Ledger]:
    with bench.ledger(name) as database:
        with database.connect_sync() as connection:
            for sequence in range(0, events + 2 * _PARTITION_EVENTS, _PARTITION_EVENTS):
                connection.execute("SELECT ensure_events_partition(%s, %s)", [sequence, _PARTITION_EVENTS])
            connection.execute(QUERIES["events"], {"start": _START, "events": events, "customers": customers})
            for query in ("commits", "head"):
                connection.execute(QUERIES[query])
            connection.execute("VACUUM ANALYZE events, commits")
            connection.execute("CHECKPOINT")
        for pid in (os.getpid(), bench.spark.pid):
            memory.forget_peak(pid)
        with closing(Store(database, SCHEMA, "fold")) as store:
            yield Ledger(database, bench, store)
