"""Counts: windows of so many rows, in the order of their release."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.definitions import Count
from tidelock.fold.arrow import column, identities
from tidelock.fold.tables import GROUP, KEY
from tidelock.fold.windows.groups import identity
from tidelock.fold.windows.outputs import Output
from tidelock.fold.windows.states import merged

ORDINAL = "window_ordinal"
#: the collection of a row's release; no declared column can have that name
AT = "$at"


def counted(
    output: Output, released: pa.Table, stored: pa.Table, *, drained: bool = False
) -> tuple[pa.Table, pa.Table]:
    """Full windows, and what is open of the groups that have released rows; drained, nothing stays open.

    `released` are entries with the collections of their release. Of a group one row is stored, always: it has the
    number of the window that comes next, and what there is of it.
    """
    assert output.window is not None
    assert isinstance(output.window.frame, Count)
    size = output.window.frame.rows
    pieces = pa.concat_tables([_stored_pieces(stored), _pieces(released, stored, size)], promote_options="permissive")
    if not pieces.num_rows:
        return pieces, stored.slice(0, 0)
    texts = [name for name in pieces.column_names if name in ("tenant_id", GROUP) or name.startswith("group_")]
    others = dict.fromkeys(texts, "first") | {"source_timestamp": "max", "window_start": "min", "window_end": "max"}
    others |= {ORDINAL: "max", "rows": "sum"}
    aggregates = tuple(output.window.select.values())
    found = merged(pieces, identity(pieces, GROUP, ORDINAL), aggregates, others)
    full = pc.equal(found["rows"], size)
    closed = pc.or_(full, pc.greater(found["rows"], 0)) if drained else full
    return found.filter(closed), _following(found, closed, stored)


def _pieces(released: pa.Table, stored: pa.Table, size: int) -> pa.Table:
    """Released rows with the number of their window."""
    ordered = released.append_column("of", identity(released, GROUP)).sort_by(
        [("of", "ascending"), ("event_time", "ascending"), ("ingress_sequence", "ascending")]
    )
    before, number = _stored_of(ordered, stored)
    place = pc.add(places_within(column(ordered, "of")), before)
    times = column(ordered, "event_time")
    rows = ordered.drop_columns(["of", "event_time", "ingress_sequence", "source_timestamp"])
    at = rows.column_names.index(AT)
    rows = rows.rename_columns([*rows.column_names[:at], "source_timestamp", *rows.column_names[at + 1 :]])
    found = {
        "window_start": times,
        "window_end": times,
        ORDINAL: pc.add(number, pc.divide(place, size)),
        "rows": pa.repeat(pa.scalar(1, pa.int64()), len(times)),
    }
    for name, values in found.items():
        rows = rows.append_column(name, values)
    return rows


def places_within(groups: pa.Array) -> pa.Array:
    """The place of each row among those of its group, from 0; a group's rows lie together."""
    if not len(groups):
        return groups
    rows = pa.arange(0, len(groups))
    begins = pa.concat_arrays([pa.array([True]), pc.not_equal(groups.slice(1), groups.slice(0, len(groups) - 1))])
    return pc.subtract(rows, pc.fill_null_forward(pc.if_else(begins, rows, None)))


def _stored_of(rows: pa.Table, stored: pa.Table) -> tuple[pa.Array, pa.Array]:
    """How many rows the next window of a row's group has already, and its number."""
    place = pc.index_in(_names(rows), value_set=_names(stored))
    before, number = (column(stored, name).take(place) for name in ("rows", ORDINAL))
    return pc.fill_null(before, 0), pc.fill_null(number, 1)


def _stored_pieces(stored: pa.Table) -> pa.Table:
    return stored.filter(pc.greater(stored["rows"], 0)).drop_columns([KEY])


def _following(found: pa.Table, closed: pa.Array, stored: pa.Table) -> pa.Table:
    """What is stored of each group from now on: the last window that is not full, or an empty one after it."""
    last = found.group_by(["tenant_id", GROUP]).aggregate([(ORDINAL, "max")])
    names = identities(found, "tenant_id", GROUP, ORDINAL)
    wanted = identities(last, "tenant_id", GROUP, f"{ORDINAL}_max")
    places = pc.index_in(wanted, value_set=names)
    rows, ended = found.take(places), closed.combine_chunks().take(places)
    kept = {name: column(rows, name) for name in rows.column_names}
    for name in kept:
        if name == ORDINAL:
            kept[name] = pc.add(kept[name], ended.cast(pa.int64()))
        elif name == "rows":
            kept[name] = pc.if_else(ended, 0, kept[name])
        elif name not in ("tenant_id", GROUP, "source_timestamp") and not name.startswith("group_"):
            kept[name] = pc.if_else(ended, None, kept[name])
    return pa.table(kept | {KEY: kept[GROUP]}).select(stored.column_names)


def _names(rows: pa.Table) -> pa.Array:
    return identities(rows, "tenant_id", GROUP)
