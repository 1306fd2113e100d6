"""Closing: windows of time whose end has come become rows of their table, the others stay open."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.definitions import Count, Session
from tidelock.fold.arrow import column, identities
from tidelock.fold.kernel.outcomes import Outcome, appended, row_schema
from tidelock.fold.store import Store
from tidelock.fold.tables import GROUP, KEY, Table
from tidelock.fold.windows.groups import group_values, identity, keys_of, row_keys, start_keys
from tidelock.fold.windows.outputs import Output
from tidelock.fold.windows.states import results
from tidelock.fold.windows.stretches import gathered, sessions, windows_of


def gather(store: Store, output: Output, pieces: pa.Table | None, due: str | None) -> tuple[pa.Table, pa.Table]:
    """The windows that a range touches or that are due, all rows in them; and what of them was stored."""
    assert output.window is not None
    assert output.open is not None
    of_sessions = isinstance(output.window.frame, Session)
    if pieces is None or not pieces.num_rows:
        stored = store.matching(output.open, None, due)
        return stored, stored
    pieces = windows_of(output, pieces)
    by = GROUP if of_sessions else KEY
    stored = store.matching(output.open, keys_of(pieces, by), due, by)
    names = [name for name in stored.column_names if name != KEY or not of_sessions]
    rows = pa.concat_tables([stored.select(names), pieces.select(names).cast(stored.select(names).schema)])
    rows = sessions(rows) if of_sessions else rows
    found = gathered(output, rows, column(rows, "session") if of_sessions else identity(rows, KEY))
    return (found.append_column(KEY, start_keys(output, found)) if of_sessions else found), stored


def close(output: Output, windows: pa.Table, stored: pa.Table, at: pa.Array) -> list[Outcome]:
    """What becomes of windows that close at these source timestamps; null: that stay open."""
    assert output.open is not None
    ended = pc.is_valid(at)
    open_ = windows.filter(pc.invert(ended))
    return [
        *closed(output, windows.filter(ended), at.filter(ended)),
        kept(output.open, open_, without(stored, open_)),
    ]


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
    outcome = appended(output.table, pa.table(rows | results(window.select, windows)))
    return [outcome if output.live else outcome.unwatched()]


def kept(table: Table, rows: pa.Table, removed: pa.Table) -> Outcome:
    """What the fold keeps for itself: nobody is told."""
    schema = row_schema(table)
    return Outcome(
        table,
        rows.select(schema.names).cast(schema),
        schema.empty_table(),
        removed.select(["tenant_id", KEY]),
        None,
    )


def without(stored: pa.Table, rows: pa.Table) -> pa.Table:
    """The stored rows whose keys are not among those of some rows."""
    there = pc.is_in(identities(stored, "tenant_id", KEY), value_set=identities(rows, "tenant_id", KEY))
    return stored.filter(pc.invert(there))
