"""Outcomes: what a range did to one table, either appending rows or adding versions of rows.

A version is a row as a collection left it. The versions of a key are consecutive, in sequence order: a version's old
row is the previous one, or the stored row; if old and new are equal, nothing has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelock.arrow import arrow_type, column, each, identities
from tidelock.changes.segments import Changes, Segment, change_schema
from tidelock.fold.kernel.runs import Flags
from tidelock.fold.statements import Due
from tidelock.tables import KEY, Table

__all__ = ["Changes", "Outcome", "Stored", "appended", "chained", "first_versions", "no_keys", "row_schema"]

#: a table, and tenants and keys of some of its rows -> the stored ones
Stored = Callable[[Table, pa.Table], pa.Table]

_META = ["tenant_id", KEY, "source_timestamp"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a range did to a table."""

    table: Table
    #: rows to store, replacing those with the same keys; with `tenant_id`, key, source timestamp, state
    rows: pa.Table
    #: rows to store whose keys are not there yet
    fresh: pa.Table
    #: tenant and key of rows to remove
    removed: pa.Table
    #: in order, as they are or with old and new rows written out; None: changes are not recorded
    changes: Changes | pa.Table | None
    #: changes encoded by the workers: segments, in order, by lane
    lanes: Sequence[Sequence[Segment]] = ()
    #: rows to remove before anything is stored, besides those in `removed`
    due: Due | None = None
    #: its changes follow those of the outcome before, which is of the same table
    follows: bool = False

    def unwatched(self) -> Outcome:
        """Without its changes."""
        return replace(self, changes=None, lanes=())

    def without(self, name: str, values: list[str]) -> Outcome:
        """Without the changes of rows with one of these values in a column that never changes."""
        return self._chosen(name, values, among=False)

    def only(self, name: str, values: list[str]) -> Outcome:
        """With the changes of such rows only."""
        return self._chosen(name, values, among=True)

    def _chosen(self, name: str, values: list[str], *, among: bool) -> Outcome:
        if self.changes is None:
            return self
        if isinstance(self.changes, Changes):
            found = column(self.changes.rows, name)
        else:
            found = pc.coalesce(*(pc.struct_field(self.changes[side], name) for side in ("new", "old")))
        chosen = pc.equal(pc.is_in(found, value_set=pa.array(values, pa.string())), among)
        return replace(self, changes=self.changes.filter(chosen))


def no_keys() -> pa.Table:
    return pa.table({"tenant_id": pa.array([], pa.string()), KEY: pa.array([], pa.string())})


def row_schema(table: Table) -> pa.Schema:
    """The columns a table is stored with."""
    meta = [("tenant_id", pa.string()), (KEY, pa.string()), ("source_timestamp", pa.int64())]
    return pa.schema([*meta, *((name, arrow_type(type_)) for name, type_ in table.stored.items())])


def appended(table: Table, rows: pa.Table, live: Flags | bool = True, *, order: pa.Array | None = None) -> Outcome:
    """The outcome for rows that were never there before.

    `live`: whether changes are recorded, or of which rows; `order`: the places of all rows in the order of their
    changes, where that is known.
    """
    rows = _fitted(table, rows)
    if not np.any(live):
        return Outcome(table, rows.slice(0, 0), rows, no_keys(), None)
    seen = rows if np.all(live) else rows.filter(pa.array(live))
    order = _order(seen, pa.arange(0, seen.num_rows)) if order is None else order
    seen = seen.take(order).combine_chunks()
    columns = seen.select(list(table.columns))
    changes = Changes(
        tenant_id=column(seen, "tenant_id"),
        # Every key is another one.
        key=pa.DictionaryArray.from_arrays(pa.array(np.arange(seen.num_rows, dtype=np.int32)), column(seen, KEY)),
        source_timestamp=column(seen, "source_timestamp"),
        rows=columns,
        before=np.full(seen.num_rows, -1),
        old_rows=columns.slice(0, 0),
    )
    return Outcome(table, rows.slice(0, 0), rows, no_keys(), changes)


def chained(table: Table, versions: pa.Table, stored: pa.Table, *, changes: bool = True) -> Outcome:
    """The outcome for versions sorted by key and sequence; `deleted` marks removals.

    Without `changes` only the rows are produced.
    """
    gone = column(versions, "deleted") if "deleted" in versions.column_names else None
    stored, versions = _fitted(table, stored), _fitted(table, versions)
    if not versions.num_rows:
        return appended(table, versions)
    exists = pa.repeat(True, versions.num_rows) if gone is None else pc.invert(gone)
    follows = _follows(versions)
    everything = pa.concat_tables([stored, versions]).combine_chunks()
    before = _before(versions, stored, follows)
    existed = pc.fill_null(pa.concat_arrays([pa.repeat(True, stored.num_rows), exists]).take(before), False)
    changed = pc.or_(pc.xor(existed, exists), _differs(table, everything, before, pc.and_(existed, exists)))
    # The last collection that changed the row: it may be an earlier one, or the stored row's.
    times = column(versions, "source_timestamp")
    kept = pc.if_else(follows, None, pc.fill_null(column(everything, "source_timestamp").take(before), 0))
    times = pc.fill_null_forward(pc.if_else(changed, times, kept))

    final = pa.concat_arrays([pc.invert(follows.slice(1)), pa.array([True])])
    # A row without state that did not change is stored already.
    news = pc.greater_equal(times, pc.min(versions["source_timestamp"]))
    rows = versions.set_column(versions.column_names.index("source_timestamp"), "source_timestamp", times)
    wanted = pc.and_(pc.and_(final, exists), pa.repeat(True, len(final)) if table.state else news)
    kept = rows.filter(wanted)
    removed = _keys(rows.filter(pc.and_(final, pc.invert(exists))))
    stored_before = pc.fill_null_forward(pc.if_else(follows, pa.scalar(None, pa.bool_()), existed)).filter(wanted)
    known, fresh = kept.filter(stored_before), kept.filter(pc.invert(stored_before))
    if not changes:
        return Outcome(table, known, fresh, removed, None)
    order = _order(versions, pc.indices_nonzero(changed))
    return Outcome(
        table,
        known,
        fresh,
        removed,
        _changes(
            versions.select(_META).take(order),
            _structs(table, everything, before.take(order), pc.invert(existed.take(order))),
            _structs(table, versions, order, pc.invert(exists.take(order))),
        ),
    )


def first_versions(versions: pa.Table) -> pa.Table:
    """Tenant and key of every row that has versions."""
    if not versions.num_rows:
        return _keys(versions)
    return _keys(versions.filter(pc.invert(_follows(versions))))


def _fitted(table: Table, rows: pa.Table) -> pa.Table:
    schema = row_schema(table)
    return rows.select(schema.names).cast(schema).combine_chunks()


def _follows(versions: pa.Table) -> pa.Array:
    """Whether a version belongs to the same row as the previous one."""
    same = pa.repeat(True, versions.num_rows - 1)
    for name in ("tenant_id", KEY):
        texts = column(versions, name)
        same = pc.and_(same, pc.equal(texts.slice(1), texts.slice(0, len(texts) - 1)))
    return pa.concat_arrays([pa.array([False]), same])


def _before(versions: pa.Table, stored: pa.Table, follows: pa.Array) -> pa.Array:
    """The position of the row before a version, counting stored rows first; null if there is none."""
    first = pc.invert(follows)
    found = pc.index_in(
        identities(versions.filter(first), "tenant_id", KEY), value_set=identities(stored, "tenant_id", KEY)
    ).cast(pa.int64())
    previous = pa.arange(stored.num_rows - 1, stored.num_rows - 1 + versions.num_rows)
    return pc.replace_with_mask(previous, first, found)


def _differs(table: Table, everything: pa.Table, before: pa.Array, both: pa.Array) -> pa.Array:
    """Whether a version differs from the row before it, where both exist.

    Starts with the last columns: they change most often, and rows known to differ are not compared further.
    """
    first = everything.num_rows - len(before)
    undecided = pc.indices_nonzero(both)
    differing = []
    for name in reversed(list(table.columns)):
        values = column(everything, name)
        old, new = values.take(before.take(undecided)), values.take(pc.add(undecided, first))
        both_null = pc.and_(pc.is_null(old), pc.is_null(new))
        equal = pc.fill_null(pc.equal(old, new), both_null)
        differing.append(undecided.filter(pc.invert(equal)))
        undecided = undecided.filter(equal)
    found = pa.concat_arrays(differing)
    return pc.is_in(pa.arange(0, len(before)), value_set=found.cast(pa.int64()))


def _order(versions: pa.Table, wanted: pa.Array) -> pa.Array:
    """The positions of the wanted versions, by source timestamp, key and tenant; strings are sorted once each, as
    ranks.
    """
    wanted = wanted.cast(pa.int64())
    ranks = {name: _ranks(column(versions, name).take(wanted)) for name in ("source_timestamp", KEY, "tenant_id")}
    by = [(name, "ascending") for name in ranks]
    return wanted.take(pc.sort_indices(pa.table(ranks), sort_keys=by))


def _ranks(values: pa.Array) -> pa.Array:
    encoded = values.dictionary_encode()
    return pc.rank(encoded.dictionary, tiebreaker="dense").take(encoded.indices)


def _structs(table: Table, rows: pa.Table, places: pa.Array, missing: pa.Array | None = None) -> pa.Array:
    """Rows at some positions, as one struct column; null where there is none."""
    fields = list(change_schema(table.columns).field("new").type)
    arrays = each(lambda field: column(rows, field.name).take(places), fields, len(places))
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=missing)


def _keys(rows: pa.Table) -> pa.Table:
    return rows.select(["tenant_id", KEY])


def _changes(rows: pa.Table, old: pa.Array, new: pa.Array) -> pa.Table:
    """Changes of rows that are in order."""
    return pa.table(
        {
            "tenant_id": rows["tenant_id"],
            "key": rows[KEY],
            "source_timestamp": rows["source_timestamp"],
            "old": old,
            "new": new,
        }
    )
