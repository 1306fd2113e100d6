"""Columns: their types, the names an event has without declaring any, and the forms of values as JSON has them outside.

Integers are numbers, decimals plain strings without trailing zeros, instants RFC 3339 in UTC, and `json` is inline.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec

from tidelock.decimals import readable
from tidelock.instants import format_instant

#: what may become the name of a table or a column, in SQL, GraphQL and Spark alike
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Postgres truncates longer names silently
IDENTIFIER_LENGTH_MAX = 63
#: words of filters: a column of such a name could not be filtered by
FILTER_WORDS = ("_and", "_or", "_not")
COLUMN_NAME = f"[A-Za-z_][A-Za-z0-9_]*, at most 63 letters, not beginning with __, and none of {' '.join(FILTER_WORDS)}"
ALLOWED = "string int bigint double decimal(p,s) boolean timestamp date json"

_PLAIN = frozenset({"string", "int", "bigint", "double", "boolean", "timestamp", "date", "json"})
_DECIMAL = re.compile(r"decimal\s*\(\s*([0-9]{1,3})\s*,\s*([0-9]{1,3})\s*\)")
_PRECISION_MAX = 38

Form = Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class ColumnType:
    """What a column holds."""

    #: one of the names in `ALLOWED`, without the brackets
    name: str
    #: digits in all; decimals only
    precision: int = 0
    #: digits after the point; decimals only
    scale: int = 0

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})" if self.name == "decimal" else self.name

    @property
    def numeric(self) -> bool:
        return self.name in ("int", "bigint", "double", "decimal")


STRING = ColumnType("string")
BIGINT = ColumnType("bigint")
TIMESTAMP = ColumnType("timestamp")
BOOLEAN = ColumnType("boolean")
DOUBLE = ColumnType("double")
#: of quantities and their sums
AMOUNT = ColumnType("decimal", 38, 9)


#: the columns every event has, declared or not
ENVELOPE: Mapping[str, ColumnType] = {
    "customer_ref": STRING,
    "resource_id": STRING,
    "row_key": STRING,
    "op": STRING,
    "occurred_at": TIMESTAMP,
    "received_at": TIMESTAMP,
    "quantity": ColumnType("decimal", 38, 9),
    "causality_key": STRING,
    "correlation_id": STRING,
    "causation_id": STRING,
    "source": STRING,
    "idempotency_key": STRING,
    "ingress_sequence": BIGINT,
}


#: those of them that a key may use: known when the event arrives, and not derived from the key themselves
KEY_ENVELOPE = ("customer_ref", "resource_id", "causality_key", "correlation_id", "causation_id", "source")


def parse_column_type(text: str) -> ColumnType:
    """The type with this name. Raises ValueError with what is allowed."""
    if text in _PLAIN:
        return ColumnType(text)
    match = _DECIMAL.fullmatch(text)
    if match is None:
        raise ValueError(f"one of: {ALLOWED}")
    precision, scale = int(match[1]), int(match[2])
    if not (1 <= precision <= _PRECISION_MAX and scale <= precision):
        raise ValueError(f"decimal(p,s) with p from 1 to {_PRECISION_MAX} and s from 0 to p")
    return ColumnType("decimal", precision, scale)


def is_identifier(name: str) -> bool:
    return IDENTIFIER.fullmatch(name) is not None and len(name) <= IDENTIFIER_LENGTH_MAX


def is_column_name(name: str) -> bool:
    """Whether a column may be declared under that name."""
    # Names that begin with two underscores are reserved for GraphQL.
    return is_identifier(name) and name not in FILTER_WORDS and not name.startswith("__")


def data_path(name: str) -> tuple[str, ...] | None:
    """The members along a path such as `data.a.b`; None when the name is not a path. No member's name contains NUL."""
    first, *members = name.split(".")
    return tuple(members) if first == "data" and members and all(members) and "\0" not in name else None


def table_column(name: str) -> str:
    """What a column is called in a table: paths have dots, which neither SQL nor GraphQL names may have."""
    return name.replace(".", "_")


def decimal_form(number: Decimal) -> str:
    """Plain notation without trailing zeros."""
    text = f"{number:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def json_form(text: str) -> msgspec.Raw:
    """JSON as it was sent; null if it contains a number too long for readers, who would lose the
    neighbouring rows too.
    """
    return readable(text.encode())


#: converts a non-null value to its outside form; other types need no conversion
_FORMS: Mapping[str, Form] = {"decimal": decimal_form, "timestamp": format_instant, "json": json_form}


def forms_of(columns: Mapping[str, ColumnType]) -> dict[str, Form]:
    """The conversions of the columns whose values differ outside and inside."""
    return {name: _FORMS[type_.name] for name, type_ in columns.items() if type_.name in _FORMS}


def row_form(row: Mapping[str, Any], forms: Mapping[str, Form], tenant_id: str) -> dict[str, object]:
    """A row as it appears in lists, ready to be encoded."""
    shown = {"tenant_id": tenant_id, **row}
    for name, form in forms.items():
        if shown.get(name) is not None:
            shown[name] = form(shown[name])
    return shown
