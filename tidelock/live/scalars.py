"""Scalars: GraphQL's types of columns. Numbers that JavaScript would round travel as texts.

As arguments they take whatever one value a client may write, text or number, and leave it to the column to say what it
can be compared with: a filter's error can then name the column, the operator and the place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from typing import Any

from graphql import (
    BooleanValueNode,
    ConstValueNode,
    FloatValueNode,
    GraphQLBoolean,
    GraphQLFloat,
    GraphQLInt,
    GraphQLScalarType,
    GraphQLString,
    IntValueNode,
    ListValueNode,
    NullValueNode,
    ObjectValueNode,
    StringValueNode,
)

from tidelock.columns import ColumnType, decimal_form, json_form
from tidelock.instants import format_instant
from tidelock.live.requests import SentNumber

_EXPECTED = "it is neither a text nor a number"


def _value(given: object) -> object:
    """A variable's value, exact."""
    match given:
        case SentNumber():
            return given.exact
        case str() | int():
            return given
        case float():
            return Decimal(repr(given))
        case _:
            raise ValueError(_EXPECTED)


def _literal(node: ConstValueNode) -> object:
    """What stands in the document, exact."""
    match node:
        case StringValueNode() | BooleanValueNode():
            return node.value
        case IntValueNode() | FloatValueNode():
            try:
                return Decimal(node.value)
            except ArithmeticError:
                raise ValueError("it is not a number of a size that can be compared") from None
        case _:
            raise ValueError(_EXPECTED)


def _json_value(given: object) -> object:
    """Any JSON of a variable, its numbers exact."""
    match given:
        case SentNumber():
            return given.exact
        case Mapping():
            return {name: _json_value(value) for name, value in given.items()}
        case list() | tuple():
            return [_json_value(value) for value in given]
        case _:
            return given


def _json_literal(node: ConstValueNode) -> object:
    """Any JSON, written as GraphQL writes values."""
    match node:
        case ObjectValueNode():
            return {field.name.value: _json_literal(field.value) for field in node.fields}
        case ListValueNode():
            return [_json_literal(value) for value in node.values]
        case NullValueNode():
            return None
        case _:
            return _literal(node)


def _scalar(name: str, about: str, form: Callable[[Any], Any]) -> GraphQLScalarType:
    return GraphQLScalarType(
        name,
        description=about,
        coerce_output_value=form,
        coerce_input_value=_value,
        coerce_input_literal=_literal,
    )


BIGINT = _scalar("bigint", "A whole number of 64 bits, as a text. Given, it may also be a number.", str)
NUMERIC = _scalar(
    "numeric",
    "An exact decimal number, as a text without trailing zeros. Given, it may also be a number.",
    decimal_form,
)
TIMESTAMPTZ = _scalar(
    "timestamptz", "An instant, in RFC 3339 such as 2026-01-31T23:59:59.5Z, to the nanosecond.", format_instant
)
DATE = _scalar("date", "A day such as 2026-01-31.", date.isoformat)
JSON = GraphQLScalarType(
    "json",
    description="Any JSON, as it was sent.",
    coerce_output_value=json_form,
    coerce_input_value=_json_value,
    coerce_input_literal=_json_literal,
)

#: name of a column's type -> its type in GraphQL
_BY_NAME: Mapping[str, GraphQLScalarType] = {
    "string": GraphQLString,
    "int": GraphQLInt,
    "double": GraphQLFloat,
    "boolean": GraphQLBoolean,
    "bigint": BIGINT,
    "decimal": NUMERIC,
    "timestamp": TIMESTAMPTZ,
    "date": DATE,
    "json": JSON,
}


def scalar_of(column: ColumnType) -> GraphQLScalarType:
    """The type of a column in GraphQL."""
    return _BY_NAME[column.name]
