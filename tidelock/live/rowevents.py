"""Row events: what a change did to one row, as subscribers are told of it.

The time of a change is no part of it: it travels beside, as `(RowEvent, source_timestamp)`.
"""

from __future__ import annotations

from itertools import compress
from operator import ne
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
    columns = tuple(table.columns)
    old, new = (whole_row(columns, values, change.tenant_id) for values in (change.old, change.new))
    if new is None:
        return None if old is None else RowEvent("DELETE", table.key, old)
    if old is None:
        return RowEvent("INSERT", columns, new)
    fields = changed_fields(old, new)
    return RowEvent("UPDATE", fields, new) if fields else None


def whole_row(columns: tuple[str, ...], values: Row | None, tenant_id: str) -> Row | None:
    """A change's values in the order of the columns, after their tenant.

    A change from before the table got a column has none of it, as the row had none: null. What is no column any more
    is left out.
    """
    if values is None:
        return None
    if tuple(values) != columns:
        values = {name: values.get(name) for name in columns}
    return {"tenant_id": tenant_id, **values}


def changed_fields(old: Row, new: Row) -> tuple[str, ...]:
    """The columns that have another value now, given two whole rows of one tenant."""
    changed = tuple(compress(new, map(ne, old.values(), new.values())))
    for name in changed:
        if old[name] != old[name] and new[name] != new[name]:
            # NaN is the same as NaN here, though it is not equal to itself.
            return tuple(name for name in changed if old[name] == old[name] or new[name] == new[name])
    return changed
