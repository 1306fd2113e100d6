"""Row events: what a change did to one row, as subscribers are told of it.

The time of a change is no part of it: it travels beside, as `(RowEvent, source_timestamp)`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple

from tidelock.changes.reader import Change, Row
from tidelock.fold.tables import Table

Operation = Literal["INSERT", "UPDATE", "DELETE"]


class RowEvent(NamedTuple):
    """An operation on a row."""

    operation: Operation
    #: INSERT: all columns, UPDATE: those that changed, DELETE: those of the key; never `tenant_id`
    fields: tuple[str, ...]
    #: values as changes have them, and `tenant_id`; of a DELETE the last ones
    row: Row


def row_event(table: Table, change: Change) -> RowEvent | None:
    """The row event of a change; None when nothing changed."""
    old, new = (whole_row(table.columns, values, change.tenant_id) for values in (change.old, change.new))
    if new is None:
        return None if old is None else RowEvent("DELETE", table.key, old)
    if old is None:
        return RowEvent("INSERT", tuple(table.columns), new)
    fields = changed_fields(table.columns, old, new)
    return RowEvent("UPDATE", fields, new) if fields else None


def whole_row(columns: Collection[str], values: Row | None, tenant_id: str) -> Row | None:
    """A change's values with their tenant.

    A change from before the table got a column has none of it, as the row had none: null. What is no column any more
    is left out.
    """
    if values is None:
        return None
    row = {"tenant_id": tenant_id, **values}
    if len(row) == len(columns) + 1 and all(map(row.__contains__, columns)):
        return row
    return {"tenant_id": tenant_id} | {name: values.get(name) for name in columns}


def changed_fields(columns: Collection[str], old: Row, new: Row) -> tuple[str, ...]:
    """The columns that have another value now. NaN is the same as NaN, though it is not equal to itself."""
    return tuple(
        [name for name in columns if old[name] != new[name] and not (old[name] != old[name] and new[name] != new[name])]
    )
