"""The source: events of the ledger as Spark rows, with the columns of a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pyspark.sql import DataFrame

from tidelock.fold.source import SMALL_EVENTS, single_partition
from tidelock.fold.store import Store
from tidelock.ledger.losttail import QUERIES as LOSSES
from tidelock.ledger.losttail import Loss, losses_of
from tidelock.postgres.database import Database
from tidelock.postgres.queries import load
from tidelock.sinks.columns import COLUMNS, SEQUENCE, StoreColumn, conformed, select_sql
from tidelock.spark.configuration import jdbc_options
from tidelock.spark.runtime import Spark

QUERIES = load("tidelock.sinks", "sql/load.sql")

#: at a time, into the memory of an executor: events may be large
_FETCH_ROWS = 1_000
_LAST = 2**63 - 1

#: above, through
Range = tuple[int, int]


class EventSource(Protocol):
    """Where a loader reads. Repeated reads return the same."""

    def frontier(self, lo: int, events_max: int, through: int | None = None) -> int | None:
        """Where a step that begins above `lo` ends; None: nothing yet."""

    def following(self, lo: int) -> int | None:
        """The first sequence above `lo` that is recorded."""

    def commit_end(self, sequence: int) -> int:
        """The last end of a commit up to a sequence."""

    def lost(self, lo: int, hi: int) -> list[Range]:
        """The accepted losses of the ledger in a range. A store may still hold these events."""

    def read(self, ranges: Sequence[Range]) -> DataFrame:
        """The events of consecutive ranges: one partition each, so that a task can write a file."""


class LedgerSource:
    """The ledger itself. Small ranges are read by the driver, large ones by the executors."""

    def __init__(self, spark: Spark, store: Store, database: Database, *, small_events: int = SMALL_EVENTS) -> None:
        self._spark = spark
        self._store = store
        self._database = database
        self._small_events = small_events

    def frontier(self, lo: int, events_max: int, through: int | None = None) -> int | None:
        bound = _LAST if through is None else through
        return self.number("frontier", lo=lo, events_max=events_max, through=bound)

    def following(self, lo: int) -> int | None:
        return self.number("following", lo=lo)

    def commit_end(self, sequence: int) -> int:
        return self.number("commit_end", sequence=sequence) or 0

    def lost(self, lo: int, hi: int) -> list[Range]:
        losses = losses_in(self._store)
        self._store.rollback()
        spans = [(max(lo, loss.first_sequence - 1), min(hi, loss.sequence - 1)) for loss in losses]
        return [span for span in spans if span[0] < span[1]]

    def read(self, ranges: Sequence[Range]) -> DataFrame:
        return self.read_ledger(ranges, COLUMNS)

    def read_ledger(self, ranges: Sequence[Range], columns: tuple[StoreColumn, ...]) -> DataFrame:
        options = jdbc_options(self._database.url) if self._spark.jdbc else None
        if options is None or (len(ranges) == 1 and ranges[0][1] - ranges[0][0] <= self._small_events):
            return self._driver_read(ranges, columns)
        return self._executor_read(ranges, columns, options)

    def _driver_read(self, ranges: Sequence[Range], columns: tuple[StoreColumn, ...]) -> DataFrame:
        select = select_sql(columns, exact=True)
        found = [self._store.query(f"{select} WHERE {_within(*each)}") for each in ranges]
        self._store.rollback()
        return joined([single_partition(self._spark.session, conformed(rows, columns)) for rows in found])

    def _executor_read(
        self, ranges: Sequence[Range], columns: tuple[StoreColumn, ...], options: dict[str, str]
    ) -> DataFrame:
        properties = {name: value for name, value in options.items() if name != "url"}
        rows = self._spark.session.read.jdbc(
            options["url"],
            f"({select_sql(columns)}) AS ledger",
            predicates=[f"{SEQUENCE} > {lo} AND {SEQUENCE} <= {hi}" for lo, hi in ranges],
            properties=properties | {"fetchsize": str(_FETCH_ROWS)},
        )
        return rows.sortWithinPartitions(SEQUENCE)

    def number(self, query: str, **parameters: object) -> int | None:
        found = self._store.query(QUERIES.text(query).format(**parameters))
        self._store.rollback()
        number = found["sequence"][0].as_py() if found.num_rows else None
        return None if number is None else int(number)


def losses_in(store: Store) -> list[Loss]:
    """The losses of the ledger that were accepted."""
    found = store.query(LOSSES.text("losses"))
    return losses_of(zip(*(found[name].to_pylist() for name in ("ingress_sequence", "commit_id", "data")), strict=True))


def joined(frames: Sequence[DataFrame]) -> DataFrame:
    """Frames of one partition each, as one that has them all, each of them sorted."""
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.union(frame)
    return whole.sortWithinPartitions(SEQUENCE)


def _within(lo: int, hi: int) -> str:
    return f"events.ingress_sequence > {lo} AND events.ingress_sequence <= {hi}"
