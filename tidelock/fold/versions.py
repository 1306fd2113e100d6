"""Versions: rows as collections left them, turned into changes and into the rows to store.

Spark gives the versions of a key one after another, in sequence order. A version's old row is the one before it, or
the stored row; where old and new are equal nothing has changed. All of it on whole Arrow columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.fold.arrow import arrow_type, column
from tidelock.fold.tables import KEY, Table


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a range did to a table."""

    table: Table
    #: rows to store, with `tenant_id`, key, source timestamp and state
    rows: pa.Table
    #: tenant and key of rows to remove
    removed: pa.Table
    #: tenant_id, key, source_timestamp, old, new; in order
    changes: pa.Table

    def unwatched(self) -> Outcome:
        """Without its changes."""
        return replace(self, changes=self.changes.slice(0, 0))

    def without(self, name: str, values: list[str]) -> Outcome:
        """Without the changes of rows that have one of these values in a column, which no change alters."""
        old, new = (pc.struct_field(self.changes[side], name) for side in ("old", "new"))
        unwanted = pc.is_in(pc.coalesce(new, old), value_set=pa.array(values, pa.string()))
        return replace(self, changes=self.changes.filter(pc.invert(unwanted)))


def row_schema(table: Table) -> pa.Schema:
    """The columns a table is stored with."""
    meta = [("tenant_id", pa.string()), (KEY, pa.string()), ("source_timestamp", pa.int64())]
    return pa.schema([*meta, *((name, arrow_type(type_)) for name, type_ in table.stored.items())])


def appended(table: Table, rows: pa.Table) -> Outcome:
    """The outcome for rows that were never there before."""
    rows = _fitted(table, rows)
    new = _structs(table, rows)
    return Outcome(table, rows, _keys(rows.slice(0, 0)), _changes(rows, pa.nulls(len(new), new.type), new))


def chained(table: Table, versions: pa.Table, stored: pa.Table) -> Outcome:
    """The outcome for versions, which are sorted by key and sequence; `deleted` says where a row ended."""
    gone = column(versions, "deleted") if "deleted" in versions.column_names else None
    stored, versions = _fitted(table, stored), _fitted(table, versions)
    if not versions.num_rows:
        return appended(table, versions)
    exists = pa.repeat(True, versions.num_rows) if gone is None else pc.invert(gone)
    follows = _follows(versions)
    everything = pa.concat_tables([stored, versions]).combine_chunks()
    before = _before(versions, stored, follows)
    old = everything.take(before)
    existed = pc.fill_null(pa.concat_arrays([pa.repeat(True, stored.num_rows), exists]).take(before), False)
    changed = _differences(table, old, versions, existed, exists)
    # The last collection that changed the row: it may be an earlier one, or that of the stored row.
    kept = pc.if_else(follows, None, pc.fill_null(column(old, "source_timestamp"), 0))
    times = pc.fill_null_forward(pc.if_else(changed, column(versions, "source_timestamp"), kept))

    final = pa.concat_arrays([pc.invert(follows.slice(1)), pa.array([True])])
    # A row that has no state and did not change is stored as it is.
    news = pc.greater_equal(times, pc.min(versions["source_timestamp"]))
    rows = versions.set_column(versions.column_names.index("source_timestamp"), "source_timestamp", times)
    moved = versions.filter(changed)
    return Outcome(
        table,
        rows.filter(pc.and_(pc.and_(final, exists), pa.repeat(True, len(final)) if table.state else news)),
        _keys(rows.filter(pc.and_(final, pc.invert(exists)))),
        _changes(
            moved,
            _structs(table, old, pc.invert(existed)).filter(changed),
            _structs(table, versions, pc.invert(exists)).filter(changed),
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
    """Whether a version is one of the same row as that before it."""
    same = pa.repeat(True, versions.num_rows - 1)
    for name in ("tenant_id", KEY):
        texts = column(versions, name)
        same = pc.and_(same, pc.equal(texts.slice(1), texts.slice(0, len(texts) - 1)))
    return pa.concat_arrays([pa.array([False]), same])


def _before(versions: pa.Table, stored: pa.Table, follows: pa.Array) -> pa.Array:
    """Where the row before a version is, stored rows counting first; null where there is none."""
    first = pc.invert(follows)
    found = pc.index_in(_identity(versions.filter(first)), value_set=_identity(stored)).cast(pa.int64())
    previous = pa.arange(stored.num_rows - 1, stored.num_rows - 1 + versions.num_rows)
    return pc.replace_with_mask(previous, first, found)


def _identity(rows: pa.Table) -> pa.Array:
    """Tenant and key in one; neither can have a NUL."""
    return pc.binary_join_element_wise(column(rows, "tenant_id"), column(rows, KEY), "\0")


def _differences(table: Table, old: pa.Table, new: pa.Table, existed: pa.Array, exists: pa.Array) -> pa.Array:
    differs = pa.repeat(False, new.num_rows)
    for name in table.columns:
        left, right = column(old, name), column(new, name)
        both_null = pc.and_(pc.is_null(left), pc.is_null(right))
        differs = pc.or_(differs, pc.invert(pc.fill_null(pc.equal(left, right), both_null)))
    return pc.or_(pc.xor(existed, exists), pc.and_(pc.and_(existed, exists), differs))


def _structs(table: Table, rows: pa.Table, missing: pa.Array | None = None) -> pa.Array:
    """Rows as one column of the table's columns; null where there is none."""
    fields = [pa.field(name, arrow_type(type_)) for name, type_ in table.columns.items()]
    return pa.StructArray.from_arrays([column(rows, field.name) for field in fields], fields=fields, mask=missing)


def _keys(rows: pa.Table) -> pa.Table:
    return rows.select(["tenant_id", KEY])


def _changes(rows: pa.Table, old: pa.Array, new: pa.Array) -> pa.Table:
    """In order of source timestamp, key and tenant."""
    changes = pa.table(
        {
            "tenant_id": rows["tenant_id"],
            "key": rows[KEY],
            "source_timestamp": rows["source_timestamp"],
            "old": old,
            "new": new,
        }
    )
    return changes.sort_by([("source_timestamp", "ascending"), ("key", "ascending"), ("tenant_id", "ascending")])
