"""Control events: drains and ticks release held rows and close open windows; any of them advances the ledger's time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidelock.definitions import Count
from tidelock.fold.kernel.outcomes import Outcome, appended
from tidelock.fold.kernel.outputs import Output
from tidelock.fold.kernel.panes import keys_of
from tidelock.fold.kernel.reorder import Released, at_once, counted, ordered_rows
from tidelock.fold.kernel.watermarks import Progress
from tidelock.fold.store import Store
from tidelock.fold.windows.closing import close, closed, gather, kept
from tidelock.fold.windows.due import all_due, closes_by_arrival, idle_sql, of_tenants
from tidelock.fold.windows.progress import furthest, read_standings, standing_keys, tenants_of, watermark_outcome
from tidelock.tables import GROUP, KEY, WATERMARKS


def control_outcomes(store: Store, outputs: Sequence[Output], at: int, data: Mapping[str, Any]) -> Iterator[Outcome]:
    """The effect of a control event at a source timestamp."""
    drains = [_Drain(store, output, at, _tenants(store, output, at, data)) for output in outputs]
    for output in outputs:
        if closes_by_arrival(output):
            due = all_due(at)
            windows, stored = gather(store, output, None, due, {})
            yield from close(output, windows, stored, _all(at, windows), due)
    drains = [drain for drain in drains if drain.tenants]
    if not drains:
        return
    stored = store.rows(WATERMARKS, standing_keys({drain.output.name: drain.tenants for drain in drains}))
    standings = read_standings(stored)
    progresses = {drain.output.name: (drain.output, Progress(standings[drain.output.name])) for drain in drains}
    for drain in drains:
        yield from drain.outcomes(progresses[drain.output.name][1])
    yield watermark_outcome(progresses, stored)


class _Drain:
    """All held rows and open windows of an output's tenants, taken from the tables."""

    def __init__(self, store: Store, output: Output, at: int, tenants: Sequence[str] | None) -> None:
        self.output = output
        self._at = at
        nothing = not output.by_event_time or tenants == []
        self._held = self._open = None
        self._due = None if nothing else of_tenants(tenants)
        if not nothing and output.held is not None:
            self._held = store.matching(output.held, None, self._due)
        if not nothing and output.open is not None:
            counts = output.window is not None and isinstance(output.window.frame, Count)
            due = of_tenants(tenants, "target.rows > 0" if counts else "TRUE")
            groups = keys_of(self._held, GROUP) if self._held is not None else None
            self._open = store.matching(output.open, groups, due)
        #: those with something to drain
        self.tenants = sorted(
            {name for rows in (self._held, self._open) if rows is not None for name in tenants_of(rows)}
        )

    def outcomes(self, progress: Progress) -> Iterator[Outcome]:
        output = self.output
        if self._held is not None:
            assert output.held is not None
            none = self._held.slice(0, 0)
            yield kept(output.held, none, none, self._due)
            yield from self._released(progress, at_once(self._held.drop_columns([KEY]), self._at))
        else:
            assert self._open is not None
            progress.drained(furthest(self._open, "window_end"))
            yield from close(output, self._open, self._open, _all(self._at, self._open), self._due)

    def _released(self, progress: Progress, released: Released) -> Iterator[Outcome]:
        output = self.output
        counts = released.by_tenant()
        before = {tenant: standing.released for tenant, standing in progress.before.items()}
        progress.count("buffer_size", counts, -1)
        progress.count("released", counts)
        if output.window is None:
            progress.drained(furthest(released.rows, "event_time", beyond=1))
            ordered, order = ordered_rows(released, before)
            yield appended(output.table, ordered, output.live, order=order)
            return
        assert output.open is not None
        assert self._open is not None
        ended, open_ = counted(output, released.table(), self._open, drained=True)
        progress.drained(furthest(ended, "window_end", beyond=1))
        yield from closed(output, ended, _all(self._at, ended))
        now = open_.set_column(open_.column_names.index("source_timestamp"), "source_timestamp", _all(self._at, open_))
        yield kept(output.open, now, open_.slice(0, 0))


def _tenants(store: Store, output: Output, at: int, data: Mapping[str, Any]) -> list[str] | None:
    """The tenants for which a control event drains an output; None: all."""
    if data.get("type") == "drain":
        return None if data.get("window", output.name) == output.name else []
    if data.get("type") == "tick" and output.idle_timeout_ns is not None:
        found: list[str] = store.query(idle_sql(store.schema, output, at))["tenant_id"].to_pylist()
        return found
    return []


def _all(at: int, rows: pa.Table) -> pa.Array:
    return pa.repeat(pa.scalar(at, pa.int64()), rows.num_rows)
