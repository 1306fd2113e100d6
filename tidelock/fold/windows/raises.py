"""Raises: when a watermark got how far. What closes at a moment closes at the first raise to it or beyond it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

SCHEMA = pa.schema([("tenant_id", pa.string()), ("at", pa.int64()), ("mark", pa.int64())])


def raises_of(courses: Mapping[str, Sequence[tuple[int, int]]]) -> pa.Table:
    """Source timestamp and watermark of every raise, by tenant."""
    rows = [(tenant, at, mark) for tenant, raises in courses.items() for at, mark in raises]
    return table_of(rows, SCHEMA)


def table_of(rows: Sequence[tuple[object, ...]], schema: pa.Schema) -> pa.Table:
    """Rows as columns."""
    columns: list[Sequence[object]] = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.table([pa.array(values, of.type) for values, of in zip(columns, schema, strict=True)], schema=schema)


def reached(raises: pa.Table, tenants: pa.Array, moments: pa.Array) -> pa.Array:
    """The source timestamps at which tenants' watermarks reached moments; null: they did not yet.

    Moments and raises are sorted together, so that what follows a moment is the first raise to it or beyond it.
    """
    names = pa.concat_arrays([tenants, raises["tenant_id"].combine_chunks()]).dictionary_encode().indices
    values = pa.concat_arrays([moments, raises["mark"].combine_chunks()])
    ats = pa.concat_arrays([pa.nulls(len(moments), pa.int64()), raises["at"].combine_chunks()])
    table = pa.table({"tenant": names, "value": values, "raise": pc.is_valid(ats).cast(pa.int8())})
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])
    names, ats = names.take(order), ats.take(order)
    following = pc.fill_null_backward(pc.if_else(pc.is_valid(ats), names, None))
    found = pc.if_else(pc.fill_null(pc.equal(following, names), False), pc.fill_null_backward(ats), None)
    return found.take(pc.sort_indices(order).slice(0, len(moments)))


def arrived(times: pa.Array, moments: pa.Array) -> pa.Array:
    """The first of some times, in ascending order, at or after each moment; null: none is."""
    places = pc.search_sorted(times, moments, side="left").cast(pa.int64())
    return times.take(pc.if_else(pc.less(places, len(times)), places, None))
