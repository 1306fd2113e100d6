"""The steps of windows and ordered output: what a range does to them.

Collections come first: they determine how far time has advanced, and so which rows are late and what closes. Then
outputs take their rows, wherever these are, and stored windows and held rows are read as far as the range touches them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.arrow import column, identities
from tidelock.fold.kernel.outcomes import Outcome, appended, row_schema
from tidelock.fold.kernel.outputs import Output
from tidelock.fold.kernel.panes import keys_of
from tidelock.fold.kernel.reorder import (
    at_once,
    count_by_tenant,
    counted,
    held_rows,
    ordered_rows,
    released_and_held,
)
from tidelock.fold.kernel.takings import Projection, Taking, collections_of, late_rows, outputs_take, take
from tidelock.fold.kernel.watermarks import Progress, Standing, advanced, arrived, reached
from tidelock.fold.statements import Due
from tidelock.fold.store import Store
from tidelock.fold.windows.closing import close, closed, gather, kept
from tidelock.fold.windows.due import LedgerTime, all_due, closes_by_arrival, tenants_due
from tidelock.fold.windows.progress import read_standings, standing_keys, tenants_of, watermark_outcome
from tidelock.tables import ERROR_ROWS, GROUP, KEY, LATE_ROWS, WATERMARKS

#: at most this many stored rows are taken at once by a range of several parts
_TAKEN_ROWS = 100_000
#: of every row that waits
_LATEST = 2**63 - 1


@dataclass(slots=True)
class Carried:
    """What one part of a range hands on to the next, which is computed while Postgres still takes in what it did."""

    #: the range has several parts
    several: bool = False
    #: by output, rows that wait for their turn
    waiting: dict[str, pa.Table] = field(default_factory=dict)
    #: outputs and tenants none of whose rows is stored any more
    taken: set[tuple[str, str]] = field(default_factory=set)
    #: how many rows those were
    taken_rows: int = 0
    #: watermarks as they are stored, and the tenants and keys of those that were looked for
    watermarks: pa.Table = field(default_factory=row_schema(WATERMARKS).empty_table)
    known: set[tuple[str, str]] = field(default_factory=set)

    def watermarks_of(self, keys: pa.Table, store: Store) -> pa.Table:
        """The stored watermarks of some keys."""
        pairs = list(zip(*(keys[name].to_pylist() for name in ("tenant_id", KEY)), strict=True))
        unknown = [place for place, pair in enumerate(pairs) if pair not in self.known]
        if unknown:
            self.known.update(pairs)
            found = store.rows(WATERMARKS, keys.take(unknown))
            self.watermarks = pa.concat_tables([self.watermarks, found])
        return self.watermarks.filter(self._among(keys))

    def leave(self, outcome: Outcome) -> None:
        """Watermarks as a part has left them."""
        for rows in (outcome.rows, outcome.fresh):
            self.watermarks = pa.concat_tables([self.watermarks.filter(pc.invert(self._among(rows))), rows])

    def due(self, output: Output, progress: Progress) -> Due | None:
        """Which of an output's stored rows are needed: those that are due, or all of a tenant, if they are few."""
        marks = {}
        for tenant, (above, mark) in progress.marks.items():
            if (output.name, tenant) in self.taken:
                continue
            waits = progress.before.get(tenant, Standing()).buffer_size
            if self.several and self.taken_rows + waits <= _TAKEN_ROWS:
                self.taken.add((output.name, tenant))
                self.taken_rows += waits
                mark = _LATEST
            marks[tenant] = (above, mark)
        return tenants_due(marks, "event_time") if marks else None

    def _among(self, keys: pa.Table) -> pa.Array:
        names = ("tenant_id", KEY)
        return pc.is_in(identities(self.watermarks, *names), value_set=identities(keys, *names))


class Rows(Protocol):
    """The rows of a range, wherever they are."""

    def collections(self) -> pa.Table:
        """Times of every collection, stream and tenant."""

    def take(self, judged: Sequence[tuple[Output, pa.Table]]) -> Sequence[Taking]:
        """What each output takes, given the judgements of its collections."""


class HereRows:
    """A small range, at the driver."""

    def __init__(self, prepared: pa.Table, projection: Projection) -> None:
        self._events = outputs_take(prepared, projection).combine_chunks()
        self._projection = projection

    def collections(self) -> pa.Table:
        return collections_of(self._events)

    def take(self, judged: Sequence[tuple[Output, pa.Table]]) -> Sequence[Taking]:
        return [take(output, self._events, judgements, self._projection) for output, judgements in judged]


class WindowSteps:
    """The steps of all outputs together."""

    def __init__(self, store: Store, outputs: Sequence[Output]) -> None:
        self._store = store
        self.outputs = outputs

    def outcomes(self, lo: int, hi: int, rows: Rows, others: Sequence[Outcome]) -> Iterator[Outcome]:
        """The outcome of a range; `others` are outcomes for shared tables."""
        carried = Carried()
        yield from self.part(lo, hi, rows, others, carried)
        yield from self.held(carried)

    def held(self, carried: Carried) -> Iterator[Outcome]:
        """What is stored of the rows that wait when all parts of a range are done."""
        for output in self.outputs:
            if output.held is not None and output.name in carried.waiting:
                rows = held_rows(output, carried.waiting[output.name])
                yield kept(output.held, rows.slice(0, 0), rows)

    def part(self, lo: int, hi: int, rows: Rows, others: Sequence[Outcome], carried: Carried) -> Iterator[Outcome]:
        """What a part of a range does. Rows that wait come from the parts before it and go to those after it."""
        collections = rows.collections()
        if not collections.num_rows:
            yield from self.passed(lo, hi)
            return
        own = {o.name: collections.filter(pc.equal(collections["stream"], o.stream)) for o in self.outputs}
        stored = carried.watermarks_of(
            standing_keys({name: tenants_of(rows) for name, rows in own.items()}), self._store
        )
        standings = read_standings(stored)
        progresses = {
            output.name: (output, advanced(own[output.name], standings.get(output.name, {}), output.late_tolerance_ns))
            for output in self.outputs
        }
        with self._store.observe("gather"):
            takings = rows.take([(output, progress.judgements) for output, progress in progresses.values()])
        time = LedgerTime(self._store, lo, hi)
        for (output, progress), taking in zip(progresses.values(), takings, strict=True):
            progress.count("late_dropped_count", count_by_tenant(taking.late))
            yield from self._advanced(output, progress, taking.rows, time, carried)
        yield appended(
            LATE_ROWS,
            pa.concat_tables([late_rows(o.name, t.late) for o, t in zip(self.outputs, takings, strict=True)]),
        )
        yield _errors(takings, others)
        if any(progress.after for _, progress in progresses.values()):
            outcome = watermark_outcome(progresses, stored)
            carried.leave(outcome)
            yield outcome

    def passed(self, lo: int, hi: int) -> Iterator[Outcome]:
        """The outcome of a range without events of any output: time has passed, unless it has no event at all."""
        time = LedgerTime(self._store, lo, hi)
        for output in self.outputs:
            if hi > lo and closes_by_arrival(output):
                yield from self._closed(output, None, {}, time)

    def _advanced(
        self, output: Output, progress: Progress, rows: pa.Table, time: LedgerTime, carried: Carried
    ) -> Iterator[Outcome]:
        if output.singly:
            if progress.after:
                yield from self._released(output, progress, rows, carried)
        elif not output.by_event_time:
            yield from self._closed(output, rows, progress.before, time)
        elif progress.after:
            due = tenants_due(progress.marks, "window_end") if progress.marks else None
            windows, stored = gather(self._store, output, rows, due, progress.before)
            at = reached(progress.raises, column(windows, "tenant_id"), column(windows, "window_end"))
            yield from close(output, windows, stored, at, due)

    def _closed(
        self, output: Output, pieces: pa.Table | None, before: Mapping[str, Standing], time: LedgerTime
    ) -> Iterator[Outcome]:
        """Windows by arrival: they close as soon as the ledger has anything at or after their end."""
        due = all_due(time.end)
        windows, stored = gather(self._store, output, pieces, due, before)
        ends = column(windows, "window_end")
        if not windows.num_rows:
            return
        past = pc.any(pc.less_equal(ends, time.end)).as_py()
        at = arrived(time.times, ends) if past else pa.nulls(len(ends), pa.int64())
        yield from close(output, windows, stored, at, due)

    def _released(self, output: Output, progress: Progress, accepted: pa.Table, carried: Carried) -> Iterator[Outcome]:
        """Rows taken one by one: held until their turn, then numbered or counted."""
        if output.held is None:
            released = at_once(accepted)
        else:
            due = carried.due(output, progress)
            waited = self._store.matching(output.held, None, due)
            if waited.num_rows:
                yield kept(output.held, waited.slice(0, 0), waited.slice(0, 0), due)
            rows = pa.concat_tables([carried.waiting.get(output.name, accepted.slice(0, 0)), accepted])
            released, carried.waiting[output.name] = released_and_held(rows, waited, progress.raises)
            counts = released.by_tenant()
            progress.count("buffer_size", count_by_tenant(accepted))
            progress.count("buffer_size", counts, -1)
            progress.count("released", counts)
        if output.window is not None:
            yield from self._counted(output, released.table())
        elif len(released.places):
            before = {tenant: standing.released for tenant, standing in progress.before.items()}
            ordered, order = ordered_rows(released, before)
            yield appended(output.table, ordered, output.live, order=order)

    def _counted(self, output: Output, released: pa.Table) -> Iterator[Outcome]:
        assert output.open is not None
        if not released.num_rows:
            return
        stored = self._store.matching(output.open, keys_of(released, GROUP), None)
        full, open_ = counted(output, released, stored)
        yield from closed(output, full, column(full, "source_timestamp"))
        yield kept(output.open, open_, open_.slice(0, 0))


def _errors(takings: Sequence[Taking], others: Sequence[Outcome]) -> Outcome:
    """Error rows of windows. An event has one per name, and the message of a stream or meter of that name
    comes first.
    """
    rows = pa.concat_tables([taking.errors for taking in takings])
    told = [identities(each.fresh, "tenant_id", KEY) for each in others if each.table == ERROR_ROWS]
    if rows.num_rows and told:
        known = pc.is_in(identities(rows, "tenant_id", KEY), value_set=pa.concat_arrays(told))
        rows = rows.filter(pc.invert(known))
    return appended(ERROR_ROWS, rows)
