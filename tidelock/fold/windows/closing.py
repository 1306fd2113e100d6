"""Closing: windows of time whose end has come become rows of their table, the others stay open.

Stored windows are read only if a range touches them or they are due: no cost grows with what waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelock.arrow import column
from tidelock.definitions import Count, Session
from tidelock.fold.kernel.aggregates import results
from tidelock.fold.kernel.outcomes import Outcome, appended, no_keys, row_schema
from tidelock.fold.kernel.outputs import Output
from tidelock.fold.kernel.panes import (
    gathered,
    group_values,
    keys_of,
    later,
    numbered,
    row_keys,
    sessions,
    start_keys,
    windows_of,
    with_group,
)
from tidelock.fold.kernel.runs import Flags
from tidelock.fold.kernel.watermarks import EARLIEST, Standing
from tidelock.fold.statements import Due
from tidelock.fold.store import Store
from tidelock.tables import GROUP, KEY, Table


def gather(
    store: Store, output: Output, pieces: pa.Table | None, due: Due | None, before: Mapping[str, Standing]
) -> tuple[pa.Table, pa.Table]:
    """The windows that a range touches or that are due, with all their rows, and their stored part."""
    assert output.window is not None
    assert output.open is not None
    frame = output.window.frame
    by = GROUP if isinstance(frame, Session) else KEY
    if pieces is None or not pieces.num_rows:
        stored = store.matching(output.open, None, due)
        return stored, stored
    windows = windows_of(output, pieces)
    reach = frame.gap_ns if isinstance(frame, Session) else 0
    known = windows.filter(pa.array(_may_be_stored(windows, before, reach)))
    stored = store.matching(output.open, keys_of(known, by), due, by)
    if not stored.num_rows:
        return (windows if by == KEY else windows.append_column(KEY, start_keys(output, windows))), stored
    names = [name for name in windows.column_names if name != GROUP]
    both = pa.concat_tables([stored.select(names), windows.select(names).cast(stored.select(names).schema)])
    both = both.combine_chunks()
    if by == KEY:
        return with_group(output, gathered(output, both, numbered(both, "tenant_id", KEY))), stored
    found = with_group(output, gathered(output, *sessions(output, both)))
    return found.append_column(KEY, start_keys(output, found)), stored


def _may_be_stored(windows: pa.Table, before: Mapping[str, Standing], reach: int) -> Flags:
    """Whether a window may be stored, or join a stored session: one that begins after all rows so far is new."""
    tenants = column(windows, "tenant_id").dictionary_encode()
    seen = [before.get(name, Standing()).max_timestamp_seen for name in tenants.dictionary.to_pylist()]
    limits = later(pa.array([EARLIEST if time is None else time for time in seen], pa.int64()), reach).to_numpy()
    found: Flags = column(windows, "window_start").to_numpy() <= limits[tenants.indices.to_numpy()]
    return found


def close(output: Output, windows: pa.Table, stored: pa.Table, at: pa.Array, due: Due | None) -> list[Outcome]:
    """The outcome of windows that close at these source timestamps; null: they stay open.

    `due` finds the stored ones whose end has come.
    """
    assert output.open is not None
    ended = pc.is_valid(at)
    open_ = windows.filter(pc.invert(ended))
    # A session that grows at the front gets another key; no other stored window changes identity.
    grows = output.window is not None and isinstance(output.window.frame, Session)
    left = _left_open(output.open, open_, stored, due)
    left = left if grows else replace(left, removed=no_keys())
    return [*closed(output, windows.filter(ended), at.filter(ended)), left]


def closed(output: Output, windows: pa.Table, at: pa.Array) -> list[Outcome]:
    """Rows of the window's table, each closed at a source timestamp."""
    if not windows.num_rows:
        return []
    window = output.window
    assert window is not None
    counted = isinstance(window.frame, Count)
    ordinals = column(windows, "window_ordinal").cast(pa.string()) if counted else None
    keys = start_keys(output, windows) if ordinals is None else row_keys(output, windows, ordinals)
    names = ["window_start", "window_end", *(["window_ordinal"] if counted else [])]
    rows = {"tenant_id": windows["tenant_id"], KEY: keys, "source_timestamp": at}
    rows |= group_values(output, windows) | {name: windows[name] for name in names}
    return [appended(output.table, pa.table(rows | results(window.select, windows)), output.live)]


def _left_open(table: Table, open_: pa.Table, stored: pa.Table, due: Due | None) -> Outcome:
    """Internal state of the fold, without changes."""
    schema = row_schema(table)
    open_ = open_.select(schema.names).cast(schema).combine_chunks()
    both = pa.concat_tables([rows.select(["tenant_id", KEY]) for rows in (stored, open_)]).combine_chunks()
    numbers = numbered(both, "tenant_id", KEY)
    before, after = numbers[: stored.num_rows], numbers[stored.num_rows :]
    known, gone = np.isin(after, before), ~np.isin(before, after)
    rows, fresh = open_.filter(pa.array(known)), open_.filter(pa.array(~known))
    removed = stored.filter(pa.array(gone)).select(["tenant_id", KEY]) if gone.any() else no_keys()
    return Outcome(table, rows, fresh, removed, None, due=due)


def kept(table: Table, rows: pa.Table, fresh: pa.Table, due: Due | None = None) -> Outcome:
    """Internal state of the fold: replaced and added rows."""
    schema = row_schema(table)
    rows, fresh = (each.select(schema.names).cast(schema).combine_chunks() for each in (rows, fresh))
    return Outcome(table, rows, fresh, no_keys(), None, due=due)
