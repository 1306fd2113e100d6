"""The reorder buffer: rows wait until no earlier row can arrive, and are then numbered, or counted into windows.

A waiting row is an entry with its time; `AT` is the collection that releases it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelock.arrow import column
from tidelock.definitions import Count
from tidelock.fold.kernel.aggregates import merged
from tidelock.fold.kernel.outcomes import row_schema
from tidelock.fold.kernel.outputs import Output
from tidelock.fold.kernel.panes import firsts, group_names, numbered
from tidelock.fold.kernel.runs import Array, Places, Runs, order_of
from tidelock.fold.kernel.watermarks import reached
from tidelock.tables import GROUP, KEY

ORDINAL = "window_ordinal"
#: of the greatest sequence whose text is compared as a number; no ledger will have this many events
_DIGITS = 17
#: the collection of a row's release; no declared column can have that name
AT = "$at"


class Released(NamedTuple):
    """Entries that are released."""

    #: these and others
    rows: pa.Table
    #: where they are, and the collection that releases each
    places: Places
    at: Places

    def table(self) -> pa.Table:
        """Only these, with `AT`."""
        whole = len(self.places) == self.rows.num_rows
        found = self.rows if whole else self.rows.take(pa.array(self.places))
        return found.append_column(AT, pa.array(self.at))

    def by_tenant(self) -> dict[str, int]:
        """How many each tenant has."""
        return _counts(column(self.rows, "tenant_id").take(pa.array(self.places)))


def released_and_held(accepted: pa.Table, due: pa.Table, raises: pa.Table) -> tuple[Released, pa.Table]:
    """Entries that are released, and those that wait. `due` were waiting until now."""
    rows = accepted
    if due.num_rows:
        rows = pa.concat_tables([due.select(accepted.column_names).cast(accepted.schema), accepted])
    rows = rows.combine_chunks()
    at = reached(raises, column(rows, "tenant_id"), column(rows, "event_time"))
    out = at.is_valid()
    places = np.flatnonzero(out.to_numpy(False))
    return Released(rows, places, at.drop_null().to_numpy()), rows.filter(pc.invert(out))


def at_once(entries: pa.Table, at: int | None = None) -> Released:
    """Entries that are released where they came, or all at one source timestamp."""
    entries = entries.combine_chunks()
    own = column(entries, "source_timestamp").to_numpy()
    places = np.arange(entries.num_rows)
    return Released(entries, places, own if at is None else np.full(len(places), at, np.int64))


def held_rows(output: Output, entries: pa.Table) -> pa.Table:
    """Entries as they are stored while they wait."""
    assert output.held is not None
    keyed = entries.append_column(KEY, column(entries, "ingress_sequence").cast(pa.string()))
    return keyed.select(row_schema(output.held).names)


def ordered_rows(released: Released, before: Mapping[str, int]) -> tuple[pa.Table, pa.Array]:
    """Rows of ordered output, numbered from their tenant's last position, and their places in the order of changes.

    They are in the order of their positions, since Postgres finds the end of an index sooner than a place within it.
    Their changes are by source timestamp and key.
    """
    rows, places, at = released
    tenants = column(rows, "tenant_id").take(pa.array(places)).dictionary_encode()
    numbers = tenants.indices.to_numpy().astype(np.int64)
    times, sequences = (column(rows, name).to_numpy()[places] for name in ("event_time", "ingress_sequence"))
    order = _in_order(times, sequences, numbers if len(tenants.dictionary) > 1 else None)
    counts = np.array([before.get(name, 0) for name in tenants.dictionary.to_pylist()], np.int64)
    positions = np.arange(1, len(order) + 1)
    if len(order):
        runs = Runs(numbers[order])
        positions -= runs.starts[runs.of] - counts[numbers[order]]
    at, sequences = at[order], sequences[order]
    found = rows.take(pa.array(places[order]))
    found = found.append_column("position", pa.array(positions))
    found = found.append_column(KEY, column(found, "ingress_sequence").cast(pa.string()))
    found = found.set_column(found.column_names.index("source_timestamp"), "source_timestamp", pa.array(at))
    return found, pa.array(by_key(at, sequences))


def by_key(at: Places, sequences: Places) -> Places:
    """Where rows are, by release and by the text of their sequence: as numbers of equal length, the shorter text first.

    Collections are few: numpy sorts sixteen bits by counting.
    """
    digits = np.floor(np.log10(np.maximum(sequences, 1))).astype(np.int64)
    digits += sequences >= 10 ** np.minimum(digits + 1, _DIGITS)
    digits -= sequences < 10**digits
    order = np.lexsort((digits, sequences * 10 ** (_DIGITS - digits)))
    return order[order_of(np.unique(at, return_inverse=True)[1][order])]


def _in_order(times: Places, sequences: Places, groups: Places | None) -> Places:
    """Where rows are, by group, time and sequence. They arrive nearly sorted by sequence, which suits numpy's sort."""
    order: Places = np.argsort(sequences, kind="stable")
    for values in (times, groups):
        if values is not None:
            order = order[np.argsort(values[order], kind="stable")]
    return order


def _released_at(rows: pa.Table) -> pa.Table:
    """Rows with the source timestamp of their release."""
    at = rows[AT]
    rows = rows.drop_columns([AT])
    return rows.set_column(rows.column_names.index("source_timestamp"), "source_timestamp", at)


def counted(
    output: Output, released: pa.Table, stored: pa.Table, *, drained: bool = False
) -> tuple[pa.Table, pa.Table]:
    """Full windows, and the open windows of groups with released rows; after a drain, nothing stays open.

    `released` are entries with the collections of their release. A group always has one stored row: the number of its
    next window, and what it contains so far.
    """
    assert output.window is not None
    assert isinstance(output.window.frame, Count)
    size = output.window.frame.rows
    there = stored.filter(pc.greater(stored["rows"], 0)).drop_columns([KEY])
    pieces = pa.concat_tables([there, _pieces(output, released, stored, size)], promote_options="permissive")
    pieces = pieces.combine_chunks()
    if not pieces.num_rows:
        return pieces, stored.slice(0, 0)
    others = dict.fromkeys(["tenant_id", GROUP, *group_names(output)], "any")
    others |= {"source_timestamp": "max", "window_start": "min", "window_end": "max", ORDINAL: "any", "rows": "sum"}
    aggregates = tuple(output.window.select.values())
    found = merged(pieces, numbered(pieces, "tenant_id", GROUP, ORDINAL), aggregates, others)
    full = pc.equal(found["rows"], size)
    closed = pc.or_(full, pc.greater(found["rows"], 0)) if drained else full
    return found.filter(closed), _following(found, closed, stored)


def _pieces(output: Output, released: pa.Table, stored: pa.Table, size: int) -> pa.Table:
    """Released rows with the number of their window."""
    groups = numbered(released, "tenant_id", GROUP)
    times, sequences = (column(released, name).to_numpy() for name in ("event_time", "ingress_sequence"))
    order = _in_order(times, sequences, groups)
    rows, groups = released.take(pa.array(order)), groups[order]
    before, number = (_stored_of(released.take(pa.array(firsts(numbered(released, "tenant_id", GROUP)))), stored, *each)
                      for each in (("rows", 0), (ORDINAL, 1)))  # fmt: skip
    places = before[groups]
    if len(order):
        places = places + np.arange(len(order)) - Runs(groups).starts[Runs(groups).of]
    instants = column(rows, "event_time")
    rows = _released_at(rows.drop_columns(["event_time", "ingress_sequence"]))
    found = {
        "window_start": instants,
        "window_end": instants,
        ORDINAL: pa.array(number[groups] + places // size),
        "rows": pa.array(np.ones(len(order), np.int64)),
    }
    for name, values in found.items():
        rows = rows.append_column(name, values)
    return rows


def _stored_of(groups: pa.Table, stored: pa.Table, name: str, none: int) -> Array:
    """A stored column of the next window of each group."""
    both = pa.concat_tables([table.select(["tenant_id", GROUP]) for table in (stored, groups)]).combine_chunks()
    numbers = numbered(both, "tenant_id", GROUP)
    known = np.full(int(numbers.max()) + 1 if len(numbers) else 0, none, np.int64)
    known[numbers[: stored.num_rows]] = column(stored, name).to_numpy()
    found: Array = known[numbers[stored.num_rows :]]
    return found


def _following(found: pa.Table, closed: pa.Array, stored: pa.Table) -> pa.Table:
    """The new stored row of each group: the last window that is not full, or an empty one after it."""
    groups, ordinals = numbered(found, "tenant_id", GROUP), column(found, ORDINAL).to_numpy()
    order = np.lexsort((ordinals, groups))
    last = order[Runs(groups[order]).ends]
    rows, ended = found.take(pa.array(last)), column(pa.table({"ended": closed}), "ended").take(pa.array(last))
    kept = {name: column(rows, name) for name in rows.column_names}
    for name in kept:
        if name == ORDINAL:
            kept[name] = pc.add(kept[name], ended.cast(pa.int64()))
        elif name == "rows":
            kept[name] = pc.if_else(ended, 0, kept[name])
        elif name not in ("tenant_id", GROUP, "source_timestamp") and not name.startswith("group_"):
            kept[name] = pc.if_else(ended, None, kept[name])
    return pa.table(kept | {KEY: kept[GROUP]}).select(stored.column_names)


def count_by_tenant(rows: pa.Table) -> dict[str, int]:
    return _counts(column(rows, "tenant_id"))


def _counts(names: pa.Array) -> dict[str, int]:
    return {entry["values"]: entry["counts"] for entry in names.value_counts().to_pylist()}
