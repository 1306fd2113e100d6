"""Executors: the kernel in Spark's Python workers, for large ranges.

A range is cut by key: every worker has all events of its keys, reads their stored rows, and returns final rows and
encoded segments. So the driver's work does not grow with the events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame

from tidelock.arrow import read_table, written_table
from tidelock.changes.segments import Segment, encode
from tidelock.fold.kernel.counters import count
from tidelock.fold.kernel.entries import TimeFaults, entries, error_rows
from tidelock.fold.kernel.latest import LatestTable, keep
from tidelock.fold.kernel.meters import Meters
from tidelock.fold.kernel.outcomes import Outcome, appended, no_keys, row_schema
from tidelock.fold.store import Observe, Store, unobserved
from tidelock.postgres.database import Database
from tidelock.tables import ERROR_ROWS, Table

#: what a worker returns: rows and keys of rows to remove as Arrow, or a segment
_RETURNED = "table_name string, lane int, kind string, rows int, first bigint, last bigint, data binary"
_SCHEMA = pa.schema(
    {
        "table_name": pa.string(),
        "lane": pa.int32(),
        "kind": pa.string(),
        "rows": pa.int32(),
        "first": pa.int64(),
        "last": pa.int64(),
        "data": pa.binary(),
    }
)


@dataclass(frozen=True, slots=True)
class Task:
    """A worker's task for the events of its keys: count them, or keep the latest rows."""

    url: str
    #: of the tables that are folded into
    schema: str
    faults: TimeFaults
    meters: Meters | None = None
    latest: tuple[LatestTable, ...] = ()
    #: whether events that streams object to become error rows here, and whether changes are recorded
    errors: bool = True
    changes: bool = True

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = list(batches)
        if not parts:
            return
        context = TaskContext.get()
        assert context is not None
        events = pa.Table.from_batches(parts).combine_chunks()
        with closing(Store(Database(self.url), self.schema, "")) as store:
            for outcome in self._outcomes(events, store):
                yield from _returned(outcome, context.partitionId())
            store.rollback()

    def _outcomes(self, events: pa.Table, store: Store) -> Iterator[Outcome]:
        if self.errors:
            outcome = appended(ERROR_ROWS, error_rows(events, self.meters, self.faults))
            yield outcome if self.changes else outcome.unwatched()
        if self.meters is not None:
            yield from count(entries(events, self.meters), self.meters, store.rows, changes=self.changes)
        for latest in self.latest:
            yield keep(events, latest, store.rows, changes=self.changes)


def steps(events: DataFrame, task: Task) -> DataFrame:
    """What workers return of events that are split by key."""
    return events.mapInArrow(task, _RETURNED)


def run(
    parts: Iterable[Callable[[], pa.Table]], tables: Mapping[str, Table], observe: Observe = unobserved
) -> Iterator[Outcome]:
    """The outcomes of parts of a range, given how to execute their `steps`: one part is folded while the outcome of
    another is written."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="executors")
    try:
        for coming in [thread.submit(_run, part, tables) for part in parts]:
            with observe("executors"):
                outcomes = coming.result()
            yield from outcomes
    finally:
        thread.shutdown(cancel_futures=True)


def _run(part: Callable[[], pa.Table], tables: Mapping[str, Table]) -> list[Outcome]:
    found = part()
    names = found["table_name"].combine_chunks()
    return [_outcome(tables[name], found.filter(pc.equal(names, name))) for name in pc.unique(names).to_pylist()]


def _outcome(table: Table, parts: pa.Table) -> Outcome:
    def returned(kind: str, none: pa.Table) -> pa.Table:
        found = [read_table(part) for part in parts.filter(pc.equal(parts["kind"], kind))["data"]]
        return pa.concat_tables(found) if found else none

    nothing = row_schema(table).empty_table()
    lanes: dict[int, list[Segment]] = {}
    for part in parts.filter(pc.equal(parts["kind"], "segment")).to_pylist():
        lanes.setdefault(part["lane"], []).append(Segment(part["rows"], part["first"], part["last"], part["data"]))
    rows, fresh = returned("rows", nothing), returned("fresh", nothing)
    return Outcome(
        table, rows, fresh, returned("removed", no_keys()), changes=None, lanes=[lanes[lane] for lane in sorted(lanes)]
    )


def _returned(outcome: Outcome, lane: int) -> Iterator[pa.RecordBatch]:
    for kind, rows in (("rows", outcome.rows), ("fresh", outcome.fresh), ("removed", outcome.removed)):
        if rows.num_rows:
            yield _batch(outcome, lane, kind, rows.num_rows, 0, 0, written_table(rows, packed=True))
    if outcome.changes is not None:
        for each in encode(outcome.changes):
            first, last = each.first_source_timestamp, each.last_source_timestamp
            yield _batch(outcome, lane, "segment", each.rows, first, last, each.data)


def _batch(outcome: Outcome, *values: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([value], field.type) for value, field in zip((outcome.table.name, *values), _SCHEMA, strict=True)],
        schema=_SCHEMA,
    )
