"""Decoding: changes and rows in Arrow made into Python values, column by column, a few at a time."""

from __future__ import annotations

import pyarrow as pa

from tidelock.arrow import arrow_type
from tidelock.changes.reader import decimals_of
from tidelock.changes.segments import change_schema
from tidelock.tables import KEY, Table
from tidelock.views.views import ViewEvent


def fits(changes: pa.Table, table: Table) -> bool:
    """False: they are from before a definition gave the table columns of other types."""
    known = change_schema(table.columns).field("new").type
    for side in ("old", "new"):
        for field in changes.schema.field(side).type:
            place = known.get_field_index(field.name)
            if place >= 0 and known.field(place).type != field.type:
                return False
    return True


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
        values.append(decimals_of(found) if type_.name == "decimal" else found)
    rows = [dict(zip(names, each, strict=True)) for each in zip(*values, strict=True)]
    return [
        ViewEvent(row["tenant_id"], key, "INSERT", fields, row, source_timestamp=time)
        for key, time, row in zip(keys, times, rows, strict=True)
    ]
