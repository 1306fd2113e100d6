"""Forms: a table's rows as JSON has them outside.

Whole numbers are numbers, decimals plain texts without trailing zeros, instants RFC 3339 in UTC, `json` stands inline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import msgspec

from tidelock.columns import ColumnType
from tidelock.instants import format_instant
from tidelock.jsontexts import readable

Form = Callable[[Any], object]


def decimal_form(number: Decimal) -> str:
    """Plain notation without trailing zeros."""
    text = f"{number:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def json_form(text: str) -> msgspec.Raw:
    """JSON as it was sent; null where a number in it is too long for readers, who would lose the rows beside it too."""
    return readable(text.encode())


#: what makes the form of a value that is not null; the others are their own
_FORMS: Mapping[str, Form] = {"decimal": decimal_form, "timestamp": format_instant, "json": json_form}


def forms_of(columns: Mapping[str, ColumnType]) -> dict[str, Form]:
    """The forms of those columns whose values have another outside than inside."""
    return {name: _FORMS[type_.name] for name, type_ in columns.items() if type_.name in _FORMS}


def row_form(row: Mapping[str, Any], forms: Mapping[str, Form], tenant_id: str) -> dict[str, object]:
    """A row as lists have it, ready to be encoded."""
    shown = {"tenant_id": tenant_id, **row}
    for name, form in forms.items():
        if shown.get(name) is not None:
            shown[name] = form(shown[name])
    return shown
