"""The GraphQL schema of the tables: queries and subscriptions, with names as in Hasura.

Numbers that JavaScript would round travel as strings. As arguments, scalars accept any single value, string or number,
and leave it to the column to check what it can be compared with: a filter's error can then name the column, the
operator and the place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from graphql import (
    BooleanValueNode,
    ConstValueNode,
    FloatValueNode,
    GraphQLArgument,
    GraphQLBoolean,
    GraphQLEnumType,
    GraphQLEnumValue,
    GraphQLField,
    GraphQLFloat,
    GraphQLInputField,
    GraphQLInputObjectType,
    GraphQLInt,
    GraphQLList,
    GraphQLNonNull,
    GraphQLObjectType,
    GraphQLScalarType,
    GraphQLSchema,
    GraphQLString,
    IntValueNode,
    ListValueNode,
    NullValueNode,
    ObjectValueNode,
    StringValueNode,
)

from tidelock.columns import STRING, ColumnType, decimal_form, json_form
from tidelock.definitions.graphqlnames import FILTER, ONE_ROW, ORDER, UPDATE
from tidelock.graphql.requests import SentNumber
from tidelock.graphql.selections import TENANT
from tidelock.instants import format_instant
from tidelock.tables import Table

#: default and maximum limit of a query
ROWS_DEFAULT, ROWS_MAX = 1_000, 10_000
#: the key of a root field's table in its extensions
TABLE = "table"

_ORDERS = {
    "asc": "ascending, nulls last",
    "asc_nulls_first": "ascending, nulls first",
    "asc_nulls_last": "ascending, nulls last",
    "desc": "descending, nulls first",
    "desc_nulls_first": "descending, nulls first",
    "desc_nulls_last": "descending, nulls last",
}

_EXPECTED = "it is neither a string nor a number"


def _given_value(given: object) -> object:
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


def _given_literal(node: ConstValueNode) -> object:
    """A literal in the document, exact."""
    match node:
        case StringValueNode() | BooleanValueNode():
            return node.value
        case IntValueNode() | FloatValueNode():
            try:
                return Decimal(node.value)
            except ArithmeticError:
                raise ValueError("it is too large a number to be compared") from None
        case _:
            raise ValueError(_EXPECTED)


def _given_json(given: object) -> object:
    """Any JSON of a variable, its numbers exact."""
    match given:
        case SentNumber():
            return given.exact
        case Mapping():
            return {name: _given_json(value) for name, value in given.items()}
        case list() | tuple():
            return [_given_json(value) for value in given]
        case _:
            return given


def _given_json_literal(node: ConstValueNode) -> object:
    """Any JSON, written as GraphQL writes values."""
    match node:
        case ObjectValueNode():
            return {field.name.value: _given_json_literal(field.value) for field in node.fields}
        case ListValueNode():
            return [_given_json_literal(value) for value in node.values]
        case NullValueNode():
            return None
        case _:
            return _given_literal(node)


def _scalar(name: str, about: str, form: Callable[[Any], Any]) -> GraphQLScalarType:
    return GraphQLScalarType(
        name,
        description=about,
        coerce_output_value=form,
        coerce_input_value=_given_value,
        coerce_input_literal=_given_literal,
    )


BIGINT = _scalar("bigint", "A 64-bit integer, as a string. As input, a number is also accepted.", str)
NUMERIC = _scalar(
    "numeric",
    "An exact decimal number, as a string without trailing zeros. As input, a number is also accepted.",
    decimal_form,
)
TIMESTAMPTZ = _scalar(
    "timestamptz", "An instant in RFC 3339, such as 2026-01-31T23:59:59.5Z, with nanosecond precision.", format_instant
)
DATE = _scalar("date", "A date, such as 2026-01-31.", date.isoformat)
JSON = GraphQLScalarType(
    "json",
    description="Any JSON, exactly as sent.",
    coerce_output_value=json_form,
    coerce_input_value=_given_json,
    coerce_input_literal=_given_json_literal,
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


def filter_columns(table: Table) -> Mapping[str, ColumnType]:
    """The columns that filters on a table know."""
    return {TENANT: STRING, **table.columns}


@dataclass(frozen=True, slots=True)
class Further:
    """Fields that are not about tables."""

    queries: Mapping[str, GraphQLField]
    mutations: Mapping[str, GraphQLField]


def make_schema(tables: Iterable[Table], silent: Collection[str] = (), further: Further | None = None) -> GraphQLSchema:
    """The schema of some tables, without internal ones.

    The silent ones can be queried, not subscribed to. A table's field takes precedence over a further field of the same
    name.
    """
    types = _Types()
    queries: dict[str, GraphQLField] = dict(further.queries) if further is not None else {}
    subscriptions: dict[str, GraphQLField] = {}
    for table in tables:
        if table.internal:
            continue
        made = types.of(table)
        queries[table.name] = _rows(table, made)
        if all(type_.name != "json" for name, type_ in table.columns.items() if name in table.key):
            queries[table.name + ONE_ROW] = _one_row(table, made)
        if table.name not in silent:
            subscriptions[table.name] = _changes(table, made)
    return GraphQLSchema(
        GraphQLObjectType("Query", queries, description="Rows of the tables, all as of the same moment."),
        GraphQLObjectType("Mutation", dict(further.mutations)) if further is not None and further.mutations else None,
        subscription=GraphQLObjectType(
            "Subscription", subscriptions, description="Rows of the tables, followed by their changes."
        )
        if subscriptions
        else None,
    )


@dataclass(frozen=True, slots=True)
class _TableTypes:
    row: GraphQLObjectType
    update: GraphQLObjectType
    filter: GraphQLInputObjectType
    order: GraphQLInputObjectType


class _Types:
    """The types of one schema; those of columns and orders are shared by its tables."""

    def __init__(self) -> None:
        self._comparisons: dict[str, GraphQLInputObjectType] = {}
        self._orders = GraphQLEnumType(
            "order_by",
            {name: GraphQLEnumValue(name, description=about) for name, about in _ORDERS.items()},
            description="How to order by a column. Strings are ordered by code point.",
        )
        self._operations = GraphQLEnumType(
            "RowOperation",
            {name: GraphQLEnumValue(name) for name in ("INSERT", "UPDATE", "DELETE")},
            description="What happened to a row, as seen through the subscription's filter.",
        )

    def of(self, table: Table) -> _TableTypes:
        name, columns = table.name, filter_columns(table)
        row = GraphQLObjectType(name, {column: _column(column, type_) for column, type_ in columns.items()})
        return _TableTypes(row, self._update(name, row), self._filter(name, columns), self._order(name, columns))

    def _update(self, name: str, row: GraphQLObjectType) -> GraphQLObjectType:
        fields = GraphQLNonNull(GraphQLList(GraphQLNonNull(GraphQLString)))
        return GraphQLObjectType(
            name + UPDATE,
            {
                "operation": GraphQLField(GraphQLNonNull(self._operations)),
                "data": GraphQLField(
                    GraphQLNonNull(row), description="The whole row; for a DELETE, the row as last seen."
                ),
                "fields": GraphQLField(
                    fields, description="INSERT: every column, UPDATE: those that changed, DELETE: those of the key."
                ),
                "ts_timestamp": GraphQLField(
                    GraphQLNonNull(GraphQLString),
                    description="When it happened: nanoseconds since 1970 by the server's clock, never decreasing. "
                    "Pass it as `after` to resume.",
                ),
            },
            description=f"A change of a row of {name}.",
        )

    def _filter(self, name: str, columns: Mapping[str, ColumnType]) -> GraphQLInputObjectType:
        def fields() -> dict[str, GraphQLInputField]:
            several = GraphQLInputField(GraphQLList(GraphQLNonNull(made)))
            logic = {"_and": several, "_or": several, "_not": GraphQLInputField(made)}
            compared = {
                column: GraphQLInputField(self._comparison(scalar_of(type_))) for column, type_ in columns.items()
            }
            return {**logic, **compared}

        about = f"A filter on {name}; all of its members must be true. A comparison with null is not true."
        made = GraphQLInputObjectType(name + FILTER, fields, description=about)
        return made

    def _comparison(self, scalar: GraphQLScalarType) -> GraphQLInputObjectType:
        if scalar.name not in self._comparisons:
            one, several = GraphQLInputField(scalar), GraphQLInputField(GraphQLList(GraphQLNonNull(scalar)))
            operators = dict.fromkeys(("_eq", "_neq", "_gt", "_lt", "_gte", "_lte"), one)
            operators |= {"_in": several, "_nin": several}
            fields = {"_is_null": GraphQLInputField(GraphQLBoolean)}
            made = GraphQLInputObjectType(
                f"{scalar.name}_comparison_exp", fields if scalar.name == "json" else operators | fields
            )
            self._comparisons[scalar.name] = made
        return self._comparisons[scalar.name]

    def _order(self, name: str, columns: Mapping[str, ColumnType]) -> GraphQLInputObjectType:
        ordered = {column: GraphQLInputField(self._orders) for column, type_ in columns.items() if type_.name != "json"}
        return GraphQLInputObjectType(
            name + ORDER, ordered, description=f"An order of the rows of {name}, by its members in sequence."
        )


def _column(name: str, type_: ColumnType) -> GraphQLField:
    scalar = scalar_of(type_)
    return GraphQLField(GraphQLNonNull(scalar) if name == TENANT else scalar, description=str(type_))


def _where(types: _TableTypes) -> GraphQLArgument:
    return GraphQLArgument(types.filter, description="Only rows for which this is true.")


def _rows(table: Table, types: _TableTypes) -> GraphQLField:
    order = GraphQLList(GraphQLNonNull(types.order))
    return _root(
        table,
        GraphQLNonNull(GraphQLList(GraphQLNonNull(types.row))),
        {
            "where": _where(types),
            "order_by": GraphQLArgument(order, description="Ties are broken by tenant and key."),
            "limit": GraphQLArgument(
                GraphQLInt, description=f"Maximum number of rows. Default {ROWS_DEFAULT}, at most {ROWS_MAX}."
            ),
            "offset": GraphQLArgument(GraphQLInt, description="Number of rows to skip."),
        },
        f"Rows of {table.name}.",
    )


def _one_row(table: Table, types: _TableTypes) -> GraphQLField:
    key = {name: GraphQLArgument(GraphQLNonNull(scalar_of(table.columns[name]))) for name in table.key}
    tenant = GraphQLArgument(
        GraphQLString, description='Default: the API key\'s tenant, or "default" if all tenants are readable.'
    )
    return _root(table, types.row, {**key, TENANT: tenant}, f"The row of {table.name} with this key.")


def _changes(table: Table, types: _TableTypes) -> GraphQLField:
    after = GraphQLArgument(
        GraphQLString, description="Resume from this ts_timestamp, inclusive, instead of starting with all rows."
    )
    about = f"Rows of {table.name} as INSERTs, followed by their changes."
    return _root(table, GraphQLNonNull(types.update), {"where": _where(types), "after": after}, about)


def _root(table: Table, type_: Any, arguments: dict[str, GraphQLArgument], about: str) -> GraphQLField:
    return GraphQLField(type_, arguments, description=about, extensions={TABLE: table})
