"""Stretches: the windows that rows lie in, epoch-aligned, and sessions. Of pieces, which are rows or many rows in one.

A piece has `window_start` and `window_end`. Hopping windows are gathered in slices that all of them are made of.
"""

from __future__ import annotations

from math import gcd

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.definitions import Hopping, Session, Tumbling
from tidelock.fold.arrow import column
from tidelock.fold.tables import GROUP, KEY
from tidelock.fold.windows.groups import identity, start_keys
from tidelock.fold.windows.outputs import Output
from tidelock.fold.windows.states import merged

FIRST, LAST = -(2**63), 2**63 - 1
#: so many pieces of hopping windows are put together before there are more: a row may lie in thousands of windows
_PIECES_MAX = 1_000_000


def slice_ns(frame: Tumbling | Hopping) -> int:
    """The longest stretch that lies wholly inside or outside of every window."""
    return frame.size_ns if isinstance(frame, Tumbling) else gcd(frame.size_ns, frame.step_ns)


def pieces_of(output: Output, entries: pa.Table) -> pa.Table:
    """Single rows as pieces."""
    assert output.window is not None
    frame = output.window.frame
    times = column(entries, "event_time")
    if isinstance(frame, Session):
        return _spanning(entries, times, later(times, frame.gap_ns))
    assert isinstance(frame, Tumbling | Hopping)
    starts = floored(times, slice_ns(frame))
    pieces = _spanning(entries, starts, starts)
    return gathered(output, pieces, identity(pieces, GROUP, "window_start")) if isinstance(frame, Hopping) else pieces


def windows_of(output: Output, pieces: pa.Table) -> pa.Table:
    """Pieces in every window that has them, with the windows' keys; of sessions the groups decide."""
    assert output.window is not None
    frame = output.window.frame
    if isinstance(frame, Session):
        return pieces
    assert isinstance(frame, Tumbling | Hopping)
    starts = column(pieces, "window_start")
    parts = [_spanning(pieces, starts, later(starts, frame.size_ns))]
    if isinstance(frame, Hopping):
        parts, start = [], floored(starts, frame.step_ns)
        for _ in range(-(-frame.size_ns // frame.step_ns)):
            having = pc.greater(later(start, frame.size_ns), starts)
            inside = start.filter(having)
            parts.append(_spanning(pieces.filter(having), inside, later(inside, frame.size_ns)))
            start = earlier(start, frame.step_ns)
            if sum(part.num_rows for part in parts) > _PIECES_MAX:
                together = pa.concat_tables(parts)
                together = gathered(output, together, identity(together, GROUP, "window_start"))
                parts = [together.select(parts[0].column_names)]
    found = pa.concat_tables(parts)
    return found.append_column(KEY, start_keys(output, found))


def gathered(output: Output, pieces: pa.Table, ids: pa.Array) -> pa.Table:
    """Pieces of one window in one."""
    assert output.window is not None
    texts = [name for name in pieces.column_names if name in ("tenant_id", KEY, GROUP) or name.startswith("group_")]
    others = dict.fromkeys(texts, "first")
    others |= {"source_timestamp": "max", "window_start": "min", "window_end": "max"}
    return merged(pieces, ids, tuple(output.window.select.values()), others)


def sessions(pieces: pa.Table) -> pa.Table:
    """Pieces with the number of their session: one begins where none before it reaches."""
    pieces = pieces.append_column("of", identity(pieces, GROUP)).sort_by(
        [("of", "ascending"), ("window_start", "ascending")]
    )
    of, ends = column(pieces, "of"), column(pieces, "window_end")
    # The furthest end so far, within a group: ends as ranks, above those of all groups before.
    ranks = pc.rank(ends, tiebreaker="first").cast(pa.int64())
    furthest = pc.cumulative_max(pc.add(pc.multiply(of, pieces.num_rows + 1), ranks))
    ranked = ends.take(pc.sort_indices(ends))
    before = pc.subtract(pc.subtract(furthest, pc.multiply(of, pieces.num_rows + 1)), 1)
    reach = ranked.take(before)
    begins = pc.or_(
        pc.not_equal(of.slice(1), of.slice(0, len(of) - 1)),
        pc.greater_equal(column(pieces, "window_start").slice(1), reach.slice(0, len(of) - 1)),
    )
    numbers = pc.cumulative_sum(pa.concat_arrays([pa.array([0]), begins.cast(pa.int64())]))
    return pieces.drop_columns(["of"]).append_column("session", numbers)


def floored(instants: pa.Array, length: int) -> pa.Array:
    """The last multiple of a length at or before each instant."""
    rest = pc.subtract(instants, pc.multiply(pc.divide(instants, length), length))
    return earlier(instants, pc.if_else(pc.less(rest, 0), pc.add(rest, length), rest))


def earlier(instants: pa.Array, amount: pa.Array | int) -> pa.Array:
    """What lies before all instants is the first."""
    found = pc.subtract(instants, amount)
    return pc.if_else(pc.greater(found, instants), FIRST, found)


def later(instants: pa.Array, amount: int) -> pa.Array:
    """What lies after all instants is the last."""
    found = pc.add(instants, amount)
    return pc.if_else(pc.less(found, instants), LAST, found)


def _spanning(rows: pa.Table, starts: pa.Array, ends: pa.Array) -> pa.Table:
    kept = [name for name in rows.column_names if name not in ("window_start", "window_end", "event_time")]
    return rows.select(kept).append_column("window_start", starts).append_column("window_end", ends)
