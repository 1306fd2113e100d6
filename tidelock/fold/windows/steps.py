"""The steps of windows and ordered output: what a range does to them.

The driver has the rows of a small range and does it all in Arrow. Of a large one Spark gathers what lies in one window
first, and tells the late rows apart; what is gathered goes the same way then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.definitions import Count
from tidelock.fold.arrow import column
from tidelock.fold.kernel.outcomes import Outcome, appended
from tidelock.fold.session import Spark
from tidelock.fold.store import Store
from tidelock.fold.tables import GROUP, LATE_ROWS, WATERMARKS
from tidelock.fold.windows.carried import Carried
from tidelock.fold.windows.closing import close, closed, gather, kept
from tidelock.fold.windows.counts import counted
from tidelock.fold.windows.due import all_due, closes_by_arrival, tenants_due
from tidelock.fold.windows.groups import keys_of
from tidelock.fold.windows.holding import at_once, count_by_tenant, held_rows, ordered_rows, released_and_held
from tidelock.fold.windows.lateness import late_rows
from tidelock.fold.windows.ledgertime import LedgerTime
from tidelock.fold.windows.outputs import Output
from tidelock.fold.windows.progress import (
    Collections,
    Progress,
    progress_of,
    read_collections,
    read_standings,
    standing_keys,
    watermark_outcome,
)
from tidelock.fold.windows.raises import arrived, reached
from tidelock.fold.windows.rows import HereRows, Rows, SparkRows


class WindowSteps:
    """The steps of all outputs together."""

    def __init__(self, spark: Spark, store: Store, outputs: Sequence[Output], carried: Carried) -> None:
        self._spark = spark
        self._store = store
        self.outputs = outputs
        self._carried = carried

    def outcomes(self, lo: int, hi: int, prepared: pa.Table | None) -> Iterator[Outcome]:
        """What a range does; its prepared events are here, or in Spark's view of that name."""
        rows: Rows
        if prepared is None:
            rows = SparkRows(self._spark, self.outputs, self._carried)
        else:
            rows = HereRows(prepared, self._carried)
        collections = read_collections(rows.collections())
        if not collections:
            yield from self.passed(lo, hi)
            return
        stored = self._stored(collections)
        standings = read_standings(stored)
        progresses = [progress_of(output, collections, standings.get(output.name, {})) for output in self.outputs]
        rows.judge(progresses)
        time = LedgerTime(self._store, lo, hi)
        for progress in progresses:
            yield from self._advanced(progress, rows, time)
        yield from self._late(progresses, rows)
        if any(progress.after for progress in progresses):
            yield watermark_outcome(progresses, stored)

    def passed(self, lo: int, hi: int) -> Iterator[Outcome]:
        """What a range does that has no event of any output: time has passed, unless it has no event at all."""
        time = LedgerTime(self._store, lo, hi)
        for output in self.outputs:
            if hi > lo and closes_by_arrival(output):
                yield from self._closed(output, None, all_due(time.end), time)

    def _stored(self, collections: Collections) -> pa.Table:
        """The watermarks of the outputs and tenants that have rows."""
        pairs = [(tenant, output.name) for output in self.outputs for s, tenant in collections if s == output.stream]
        return self._store.rows(WATERMARKS, standing_keys(pairs))

    def _advanced(self, progress: Progress, rows: Rows, time: LedgerTime) -> Iterator[Outcome]:
        output = progress.output
        if output.window is None or isinstance(output.window.frame, Count):
            if progress.courses:
                yield from self._released(progress, rows.accepted(progress))
        elif output.by_event_time:
            if progress.courses:
                due = tenants_due(progress.marks, "window_end") if progress.marks else None
                windows, stored = gather(self._store, output, rows.pieces(progress), due)
                at = reached(progress.raises, column(windows, "tenant_id"), column(windows, "window_end"))
                yield from close(output, windows, stored, at)
        else:
            yield from self._closed(output, rows.pieces(progress), all_due(time.end), time)

    def _closed(self, output: Output, pieces: pa.Table | None, due: str, time: LedgerTime) -> Iterator[Outcome]:
        """Windows by arrival: they close as soon as the ledger has anything at or after their end."""
        windows, stored = gather(self._store, output, pieces, due)
        ends = column(windows, "window_end")
        if not windows.num_rows:
            return
        past = pc.any(pc.less_equal(ends, time.end)).as_py()
        at = arrived(time.times, ends) if past else pa.nulls(len(ends), pa.int64())
        yield from close(output, windows, stored, at)

    def _released(self, progress: Progress, accepted: pa.Table) -> Iterator[Outcome]:
        """Rows that are taken one by one: held until their turn, then numbered or counted."""
        output = progress.output
        if output.held is None:
            released = at_once(accepted)
        else:
            due = tenants_due(progress.marks, "event_time") if progress.marks else None
            waited = self._store.matching(output.held, None, due)
            released, waiting = released_and_held(accepted, waited, progress.raises)
            yield kept(output.held, held_rows(output, waiting), waited)
            before = {tenant: standing.released for tenant, standing in progress.before.items()}
            counts = count_by_tenant(released)
            progress.count("buffer_size", count_by_tenant(accepted))
            progress.count("buffer_size", counts, -1)
            progress.count("released", counts)
        if output.window is not None:
            yield from self._counted(output, released)
        elif released.num_rows:
            outcome = appended(output.table, ordered_rows(released, before))
            yield outcome if output.live else outcome.unwatched()

    def _counted(self, output: Output, released: pa.Table) -> Iterator[Outcome]:
        assert output.open is not None
        if not released.num_rows:
            return
        stored = self._store.matching(output.open, keys_of(released, GROUP), None)
        full, open_ = counted(output, released, stored)
        yield from closed(output, full, column(full, "source_timestamp"))
        yield kept(output.open, open_, open_.slice(0, 0))

    def _late(self, progresses: Sequence[Progress], rows: Rows) -> Iterator[Outcome]:
        names = ["tenant_id", "source_timestamp", "ingress_sequence", "event_time", "watermark", "reason"]
        parts = []
        for progress in progresses:
            if progress.judgements.num_rows:
                late = rows.late(progress).select(names)
                progress.count("late_dropped_count", count_by_tenant(late))
                parts.append(late_rows(progress.output.name, late))
        if parts:
            yield appended(LATE_ROWS, pa.concat_tables(parts))
