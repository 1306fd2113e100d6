"""Control events: drains and ticks release what is held and close what is open; any of them moves the ledger's time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.definitions import Count
from tidelock.fold.arrow import column
from tidelock.fold.kernel.outcomes import Outcome, appended
from tidelock.fold.store import Store
from tidelock.fold.tables import GROUP, KEY, WATERMARKS
from tidelock.fold.windows.closing import close, closed, gather, kept
from tidelock.fold.windows.counts import counted
from tidelock.fold.windows.due import all_due, closes_by_arrival, idle_sql, of_tenants
from tidelock.fold.windows.groups import keys_of
from tidelock.fold.windows.holding import at_once, count_by_tenant, ordered_rows
from tidelock.fold.windows.outputs import Output
from tidelock.fold.windows.progress import Progress, read_standings, standing_keys, watermark_outcome


def control_outcomes(store: Store, outputs: Sequence[Output], at: int, data: Mapping[str, Any]) -> Iterator[Outcome]:
    """What a control event at a source timestamp does."""
    drains = [_Drain(store, output, at, _tenants(store, output, at, data)) for output in outputs]
    for output in outputs:
        if closes_by_arrival(output):
            windows, stored = gather(store, output, None, all_due(at))
            yield from close(output, windows, stored, _all(at, windows))
    drains = [drain for drain in drains if drain.tenants]
    if not drains:
        return
    stored = store.rows(WATERMARKS, standing_keys([(name, d.output.name) for d in drains for name in d.tenants]))
    standings = read_standings(stored)
    progresses = [Progress(drain.output, standings[drain.output.name]) for drain in drains]
    for drain, progress in zip(drains, progresses, strict=True):
        yield from drain.outcomes(progress)
    yield watermark_outcome(progresses, stored)


class _Drain:
    """All that is held and open of an output's tenants, taken from the tables."""

    def __init__(self, store: Store, output: Output, at: int, tenants: Sequence[str] | None) -> None:
        self.output = output
        self._at = at
        nothing = not output.by_event_time or tenants == []
        self._held = self._open = None
        if not nothing and output.held is not None:
            self._held = store.matching(output.held, None, of_tenants(tenants))
        if not nothing and output.open is not None:
            counts = output.window is not None and isinstance(output.window.frame, Count)
            due = of_tenants(tenants, "target.rows > 0" if counts else "TRUE")
            groups = keys_of(self._held, GROUP) if self._held is not None else None
            self._open = store.matching(output.open, groups, due)
        #: those that have something to drain
        self.tenants = sorted({name for rows in (self._held, self._open) if rows is not None for name in _names(rows)})

    def outcomes(self, progress: Progress) -> Iterator[Outcome]:
        output = self.output
        if self._held is not None:
            assert output.held is not None
            yield kept(output.held, self._held.slice(0, 0), self._held)
            yield from self._released(progress, at_once(self._held.drop_columns([KEY]), self._at))
        else:
            assert self._open is not None
            progress.drained(_furthest(self._open, "window_end"))
            yield from close(output, self._open, self._open, _all(self._at, self._open))

    def _released(self, progress: Progress, released: pa.Table) -> Iterator[Outcome]:
        output = self.output
        counts = count_by_tenant(released)
        before = {tenant: standing.released for tenant, standing in progress.before.items()}
        progress.count("buffer_size", counts, -1)
        progress.count("released", counts)
        if output.window is None:
            progress.drained(_furthest(released, "event_time", beyond=1))
            outcome = appended(output.table, ordered_rows(released, before))
            yield outcome if output.live else outcome.unwatched()
            return
        assert output.open is not None
        assert self._open is not None
        ended, open_ = counted(output, released, self._open, drained=True)
        progress.drained(_furthest(ended, "window_end", beyond=1))
        yield from closed(output, ended, _all(self._at, ended))
        now = open_.set_column(open_.column_names.index("source_timestamp"), "source_timestamp", _all(self._at, open_))
        yield kept(output.open, now, open_.slice(0, 0))


def _tenants(store: Store, output: Output, at: int, data: Mapping[str, Any]) -> list[str] | None:
    """Whom a control event drains an output for; None: everyone."""
    if data.get("type") == "drain":
        return None if data.get("window", output.name) == output.name else []
    if data.get("type") == "tick" and output.idle_timeout_ns is not None:
        found: list[str] = store.query(idle_sql(store.schema, output, at))["tenant_id"].to_pylist()
        return found
    return []


def _furthest(rows: pa.Table, name: str, beyond: int = 0) -> dict[str, int]:
    """The greatest time of each tenant."""
    found = rows.group_by("tenant_id").aggregate([(name, "max")])
    times = pc.add(found[f"{name}_max"], beyond)
    return dict(zip(found["tenant_id"].to_pylist(), times.to_pylist(), strict=True))


def _all(at: int, rows: pa.Table) -> pa.Array:
    return pa.repeat(pa.scalar(at, pa.int64()), rows.num_rows)


def _names(rows: pa.Table) -> list[str]:
    names: list[str] = column(rows, "tenant_id").unique().to_pylist()
    return names
