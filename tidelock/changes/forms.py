"""The form of a change outside: `{"sourceTimestamp", "key", "old", "new"}`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal

from tidelock.changes.reader import Change, Row
from tidelock.columns import ColumnType, Form, decimal_form, forms_of, row_form

#: what values of these types are inside
_INSIDE = {"decimal": Decimal, "timestamp": int, "json": str}


def change_forms(columns: Mapping[str, ColumnType]) -> Callable[[Change], dict[str, object]]:
    """What makes the forms of a table's changes, ready to be encoded."""
    forms = column_forms(columns)

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


def column_forms(columns: Mapping[str, ColumnType]) -> dict[str, Form]:
    """The forms of the columns of changes, of which some may be older than the table's present definition."""
    return {name: _tolerant(_INSIDE[columns[name].name], form) for name, form in forms_of(columns).items()}


def _tolerant(inside: type, form: Form) -> Form:
    """A change from before the definition changed may have values of another type, which have no form here."""

    def shown(value: object) -> object:
        if isinstance(value, inside):
            return form(value)
        return decimal_form(value) if isinstance(value, Decimal) else value

    return shown
