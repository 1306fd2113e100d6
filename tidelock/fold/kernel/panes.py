"""Panes: the intervals and sessions that contain rows, and the keys of their groups and windows.

A piece is a row, or many rows of one pane, with `window_start`, `window_end` and the states of its aggregates. Hopping
windows are aggregated in the slices they consist of.
"""

from __future__ import annotations

from math import gcd

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelock.arrow import column, typed
from tidelock.columns import TIMESTAMP
from tidelock.definitions import Hopping, Session, Tumbling
from tidelock.fold.kernel.aggregates import merged
from tidelock.fold.kernel.outputs import Output
from tidelock.fold.kernel.runs import Places
from tidelock.fold.keys import bounded, instant_strings, joined, json_strings
from tidelock.tables import GROUP, KEY

FIRST, LAST = -(2**63), 2**63 - 1
NOT_GROUPED = "[]"
#: hopping windows are merged after this many pieces: a row may belong to thousands of windows
_PIECES_MAX = 1_000_000


def numbered(rows: pa.Table, *names: str) -> Places:
    """Dense numbers from 0, in the order of the first row, of rows with the same values in these columns."""
    codes: Places = np.zeros(rows.num_rows, np.int64)
    for name in names:
        encoded = column(rows, name).dictionary_encode("encode")
        codes = codes * max(len(encoded.dictionary), 1) + encoded.indices.to_numpy()
        # Few enough again, so that no product overflows.
        codes = pa.array(codes).dictionary_encode().indices.to_numpy().astype(np.int64)
    return codes


def firsts(numbers: Places) -> Places:
    """The position of the first row of each dense number."""
    found = np.empty(int(numbers.max()) + 1 if len(numbers) else 0, np.int64)
    found[numbers[::-1]] = np.arange(len(numbers))[::-1]
    return found


def with_group(output: Output, rows: pa.Table) -> pa.Table:
    """Rows with the string that identifies their group, built once per group."""
    names = group_names(output)
    if not names:
        return rows.append_column(GROUP, pa.repeat(NOT_GROUPED, rows.num_rows))
    numbers = numbered(rows, *names)
    examples = rows.select(names).take(pa.array(firsts(numbers)))
    return rows.append_column(GROUP, bounded(joined(*_members(output, examples))).take(pa.array(numbers)))


def group_names(output: Output) -> list[str]:
    """The columns of entries and states that have the texts of a group."""
    return [f"group_{number}" for number in range(len(output.group_types))]


def row_keys(output: Output, rows: pa.Table, last: pa.Array) -> pa.Array:
    """Keys of windows: the strings of the group's columns, and one that identifies the window in the group."""
    members = _members(output, rows)
    return bounded(joined(*members, pc.binary_join_element_wise('"', last, '"', ""))) if members else last


def start_keys(output: Output, rows: pa.Table) -> pa.Array:
    return row_keys(output, rows, instant_strings(column(rows, "window_start")))


def group_values(output: Output, rows: pa.Table) -> dict[str, pa.Array]:
    """The columns of the group in the window's table."""
    if output.window is None:
        return {}
    names = output.window.group_columns
    return {
        name: typed(rows[f"group_{number}"], type_)
        for number, (name, type_) in enumerate(zip(names, output.group_types, strict=True))
    }


def keys_of(rows: pa.Table, name: str = KEY) -> pa.Table:
    """Tenant and key, or group, of rows, each once."""
    found = rows.select(["tenant_id", name]).rename_columns(["tenant_id", KEY])
    return found.take(pa.array(firsts(numbered(found, "tenant_id", KEY))))


def _members(output: Output, rows: pa.Table) -> list[pa.Array]:
    """The columns' texts, as JSON."""
    found = []
    for number, type_ in enumerate(output.group_types):
        texts = column(rows, f"group_{number}")
        found.append(json_strings(instant_strings(texts.cast(pa.int64())) if type_ == TIMESTAMP else texts))
    return found


def pieces_of(output: Output, entries: pa.Table) -> pa.Table:
    """Single rows as pieces, merged by pane."""
    assert output.window is not None
    frame = output.window.frame
    times = column(entries, "event_time")
    if isinstance(frame, Session):
        found = _spanning(entries, times, later(times, frame.gap_ns))
        return gathered(output, *sessions(output, found)) if found.num_rows else found
    assert isinstance(frame, Tumbling | Hopping)
    starts = floored(times, slice_ns(frame))
    pieces = _spanning(entries, starts, starts)
    return gathered(output, pieces, numbered(pieces, "tenant_id", *group_names(output), "window_start"))


def slice_ns(frame: Tumbling | Hopping) -> int:
    """The longest interval that lies wholly inside or outside of every window."""
    return frame.size_ns if isinstance(frame, Tumbling) else gcd(frame.size_ns, frame.step_ns)


def windows_of(output: Output, pieces: pa.Table) -> pa.Table:
    """Pieces in every window that contains them, merged by window; with keys, except for sessions, which may grow."""
    assert output.window is not None
    frame = output.window.frame
    by = ("tenant_id", *group_names(output), "window_start")
    if isinstance(frame, Session):
        found = gathered(output, *sessions(output, pieces)) if pieces.num_rows else pieces
        return with_group(output, found)
    assert isinstance(frame, Tumbling | Hopping)
    starts = column(pieces, "window_start")
    parts = [_spanning(pieces, starts, _ends(starts, frame.size_ns, frame.size_ns))]
    if isinstance(frame, Hopping):
        parts, start, fresh = [], floored(starts, frame.step_ns), pa.repeat(True, len(starts))
        for _ in range(-(-frame.size_ns // frame.step_ns)):
            ends = _ends(start, frame.size_ns, frame.step_ns)
            having = pc.and_(fresh, pc.greater(ends, starts))
            parts.append(_spanning(pieces.filter(having), start.filter(having), ends.filter(having)))
            # Windows that begin before all instants would share one key: only the last of them is created.
            fresh, start = pc.greater(start, FIRST), earlier(start, frame.step_ns)
            if sum(part.num_rows for part in parts) > _PIECES_MAX:
                together = pa.concat_tables(parts)
                together = gathered(output, together, numbered(together, *by))
                parts = [together.select(parts[0].column_names)]
    found = pa.concat_tables(parts)
    found = with_group(output, gathered(output, found, numbered(found, *by)))
    return found.append_column(KEY, start_keys(output, found))


def gathered(output: Output, pieces: pa.Table, ids: Places) -> pa.Table:
    """Pieces of one pane in one."""
    assert output.window is not None
    same = [name for name in pieces.column_names if name in ("tenant_id", KEY, GROUP) or name.startswith("group_")]
    others = dict.fromkeys(same, "any")
    others |= {"source_timestamp": "max", "window_start": "min", "window_end": "max"}
    return merged(pieces, ids, tuple(output.window.select.values()), others)


def sessions(output: Output, pieces: pa.Table) -> tuple[pa.Table, Places]:
    """Pieces in order, with the number of their session: a session begins where no earlier one reaches."""
    groups = numbered(pieces, "tenant_id", *group_names(output))
    starts = column(pieces, "window_start").to_numpy()
    order = np.lexsort((starts, groups))
    pieces, groups, starts = pieces.take(pa.array(order)), groups[order], starts[order]
    ends = column(pieces, "window_end").to_numpy()
    # The furthest end so far, within a group: ends as ranks, above those of all previous groups.
    distinct, ranks = np.unique(ends, return_inverse=True)
    furthest = np.maximum.accumulate(groups * len(distinct) + ranks) - groups * len(distinct)
    begins = np.zeros(len(groups), np.bool_)
    begins[1:] = (groups[1:] != groups[:-1]) | (starts[1:] >= distinct[furthest[:-1]])
    return pieces, np.cumsum(begins)


def floored(instants: pa.Array, length: int) -> pa.Array:
    """The last multiple of a length at or before each instant."""
    rest = pc.subtract(instants, pc.multiply(pc.divide(instants, length), length))
    return earlier(instants, pc.if_else(pc.less(rest, 0), pc.add(rest, length), rest))


def earlier(instants: pa.Array, amount: pa.Array | int) -> pa.Array:
    """Clamped to the first instant."""
    found = pc.subtract(instants, amount)
    return pc.if_else(pc.greater(found, instants), FIRST, found)


def later(instants: pa.Array, amount: int) -> pa.Array:
    """Clamped to the last instant."""
    found = pc.add(instants, amount)
    return pc.if_else(pc.less(found, instants), LAST, found)


def _ends(starts: pa.Array, size_ns: int, step_ns: int) -> pa.Array:
    """The ends of windows. One that begins before all instants starts at the first, with its regular end."""
    return pc.if_else(pc.equal(starts, FIRST), min(FIRST // step_ns * step_ns + size_ns, LAST), later(starts, size_ns))


def _spanning(rows: pa.Table, starts: pa.Array, ends: pa.Array) -> pa.Table:
    dropped = ("window_start", "window_end", "event_time", "ingress_sequence")
    kept = [name for name in rows.column_names if name not in dropped]
    return rows.select(kept).append_column("window_start", starts).append_column("window_end", ends)
