"""The form of a change outside: `{"sourceTimestamp", "key", "old", "new"}`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidelock.changes.reader import Change, Row
from tidelock.columns import ColumnType
from tidelock.forms import forms_of, row_form


def change_forms(columns: Mapping[str, ColumnType]) -> Callable[[Change], dict[str, object]]:
    """What makes the forms of a table's changes, ready to be encoded."""
    forms = forms_of(columns)

    def row(values: Row | None, tenant_id: str) -> dict[str, object] | None:
        return None if values is None else row_form(values, forms, tenant_id)

    def form(change: Change) -> dict[str, object]:
        return {
            "sourceTimestamp": str(change.source_timestamp),
            "key": change.key,
            "old": row(change.old, change.tenant_id),
            "new": row(change.new, change.tenant_id),
        }

    return form
