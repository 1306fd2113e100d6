"""Decoding: changes and rows in Arrow made into Python values, column by column, a few at a time."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tidelock.changes.reader import Change, Row
from tidelock.fold.arrow import arrow_type
from tidelock.fold.segments import change_schema
from tidelock.fold.tables import KEY, Table
from tidelock.views.views import ViewEvent

# What is made at a time takes a millisecond or two, and not much memory even where rows are large.
_ROWS = 250
_BYTES = 2**20


def fits(changes: pa.Table, table: Table) -> bool:
    """False: they are from before a definition gave the table columns of other types."""
    known = change_schema(table.columns).field("new").type
    for side in ("old", "new"):
        for field in changes.schema.field(side).type:
            place = known.get_field_index(field.name)
            if place >= 0 and known.field(place).type != field.type:
                return False
    return True


def slices(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Parts of it that are quickly made Python values."""
    for batch in rows.combine_chunks().to_batches():
        # At most so many, and fewer where they are large.
        step = max(1, min(_ROWS, _BYTES * int(batch.num_rows) // max(1, int(batch.nbytes))))
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)


def changes_of(table: Table, batch: pa.RecordBatch) -> list[Change]:
    meta = [batch.column(name).to_pylist() for name in ("source_timestamp", "tenant_id", "key")]
    sides = [_structs(batch.column(name)) for name in ("old", "new")]
    return [Change(table.name, *values) for values in zip(*meta, *sides, strict=True)]


def stored_schema(table: Table) -> pa.Schema:
    """Stored rows on their way: decimals are texts."""
    meta = [("tenant_id", pa.string()), (KEY, pa.string()), ("source_timestamp", pa.int64())]
    types = {
        name: pa.string() if type_.name == "decimal" else arrow_type(type_) for name, type_ in table.columns.items()
    }
    return pa.schema([*meta, *types.items()])


def inserts_of(table: Table, batch: pa.RecordBatch) -> list[ViewEvent]:
    """Stored rows, with `tenant_id`, key and source timestamp, as what they are to who has none yet."""
    fields = tuple(table.columns)
    keys, times = (batch.column(name).to_pylist() for name in (KEY, "source_timestamp"))
    names = ("tenant_id", *fields)
    values = [batch.column("tenant_id").to_pylist()]
    for name, type_ in table.columns.items():
        found = batch.column(name).to_pylist()
        values.append(_decimals(found) if type_.name == "decimal" else found)
    rows = [dict(zip(names, each, strict=True)) for each in zip(*values, strict=True)]
    return [
        ViewEvent(row["tenant_id"], key, "INSERT", fields, row, source_timestamp=time)
        for key, time, row in zip(keys, times, rows, strict=True)
    ]


def _structs(rows: pa.StructArray) -> list[Row | None]:
    if rows.null_count == len(rows):
        return [None] * len(rows)
    names = [field.name for field in rows.type]
    columns = [_values(values) for values in rows.flatten()]
    made: list[Row | None] = [dict(zip(names, each, strict=True)) for each in zip(*columns, strict=True)]
    if rows.null_count:
        return [row if exists else None for row, exists in zip(made, rows.is_valid().to_pylist(), strict=True)]
    return made


def _values(values: pa.Array) -> list[Any]:
    # By way of texts decimals take a fifth of the time.
    return _decimals(values.cast(pa.string()).to_pylist()) if pa.types.is_decimal(values.type) else values.to_pylist()


def _decimals(texts: list[str | None]) -> list[Decimal | None]:
    return [None if text is None else Decimal(text) for text in texts]
