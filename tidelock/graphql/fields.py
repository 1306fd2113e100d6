"""Fields: the members of an operation, with their arguments read and checked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from graphql import (
    ArgumentNode,
    EnumValueNode,
    FieldNode,
    GraphQLError,
    GraphQLField,
    ListValueNode,
    ObjectValueNode,
    Undefined,
    ValueNode,
    VariableNode,
    get_argument_values,
)
from graphql.execution import VariableValues

from tidelock.graphql.introspection import IntrospectionField
from tidelock.graphql.requests import (
    INVALID_ARGUMENT,
    INVALID_FILTER,
    INVALID_VARIABLES,
    LIMIT_EXCEEDED,
    filter_refusal,
    refusal,
    refusals,
)
from tidelock.graphql.schema import ROWS_DEFAULT, ROWS_MAX, filter_columns
from tidelock.graphql.selections import TENANT, Selection, Shown
from tidelock.sections import shown
from tidelock.tables import Table
from tidelock.where import TRUE, Expression, InvalidFilter, parse_where
from tidelock.where.operands import Operand, parse_operand

_TIMESTAMP = re.compile(r"[0-9]{1,19}", re.ASCII)
_TIMESTAMP_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TypenameField:
    """The name of the root type."""

    #: its name in the response
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class ColumnOrder:
    """A column that rows are ordered by."""

    column: str
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class RowsField:
    """Some rows of a table."""

    name: str
    table: Table
    #: without the tenant, which is known at execution
    where: Expression
    order: tuple[ColumnOrder, ...]
    limit: int
    offset: int
    shown: Shown


@dataclass(frozen=True, slots=True)
class OneRowField:
    """The row with a key."""

    name: str
    table: Table
    #: the values of the key's columns
    key: Mapping[str, Operand]
    #: None: the client's tenant
    tenant_id: str | None
    shown: Shown


@dataclass(frozen=True, slots=True)
class ChangesField:
    """A subscription's field: a table's rows, followed by their changes."""

    name: str
    table: Table
    #: without the tenant, which is known at execution
    where: Expression
    #: source timestamp from which to resume, inclusive; None: begin with a snapshot
    after: int | None
    selection: Selection


@dataclass(frozen=True, slots=True)
class CallField:
    """A field that is not about a table: answered by the module that added it to the schema."""

    name: str
    #: which field it is
    asked: str
    arguments: Mapping[str, Any]
    #: the selection of the response
    shown: Shown


Field = TypenameField | IntrospectionField | RowsField | OneRowField | ChangesField | CallField


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one field on a table. Everything raises RequestRefused."""

    table: Table
    node: FieldNode
    variables: VariableValues
    values: Mapping[str, Any]

    @classmethod
    def of(cls, table: Table, field: GraphQLField, node: FieldNode, variables: VariableValues) -> Arguments:
        try:
            return cls(table, node, variables, get_argument_values(field, node, variables))
        except GraphQLError as error:
            raise refusals(INVALID_VARIABLES, [error]) from None

    def where(self) -> Expression:
        given = self.values.get("where")
        if given is None:
            return TRUE
        node = self._argument("where")
        try:
            return parse_where(given, filter_columns(self.table))
        except InvalidFilter as error:
            raise filter_refusal(error, node) from None

    def order(self) -> tuple[ColumnOrder, ...]:
        if self.values.get("order_by") is None:
            return ()
        # As written: graphql-core would return the columns in the order of the schema.
        written = self._written(self._argument("order_by").value)
        orders: dict[str, ColumnOrder] = {}
        for item in written if isinstance(written, list | tuple) else [written]:
            for column, how in item.items():
                if how is not None and column not in orders:
                    direction, _, nulls = how.partition("_nulls_")
                    descending = direction == "desc"
                    orders[column] = ColumnOrder(column, descending, nulls == "first" if nulls else descending)
        return tuple(orders.values())

    def limit(self) -> int:
        limit = self.values.get("limit")
        if limit is None:
            return ROWS_DEFAULT
        if not 0 <= limit <= ROWS_MAX:
            code = LIMIT_EXCEEDED if limit > ROWS_MAX else INVALID_ARGUMENT
            raise self._refusal(code, "limit", f"must be a whole number from 0 to {ROWS_MAX}")
        return int(limit)

    def offset(self) -> int:
        offset = self.values.get("offset") or 0
        if offset < 0:
            raise self._refusal(INVALID_ARGUMENT, "offset", "must be a whole number, 0 or more")
        return int(offset)

    def after(self) -> int | None:
        after = self.values.get("after")
        if after is None:
            return None
        if not _TIMESTAMP.fullmatch(after) or int(after) > _TIMESTAMP_MAX:
            raise self._refusal(
                INVALID_ARGUMENT,
                "after",
                f"must be a ts_timestamp (nanoseconds since 1970, as a string), not {shown(after)}",
            )
        return int(after)

    def key(self) -> dict[str, Operand]:
        return {name: self._operand(name) for name in self.table.key}

    def tenant_id(self) -> str | None:
        tenant_id: str | None = self.values.get(TENANT)
        if tenant_id is not None and "\0" in tenant_id:
            raise self._refusal(INVALID_ARGUMENT, TENANT, "contains NUL")
        return tenant_id

    def _operand(self, name: str) -> Operand:
        type_, given = self.table.columns[name], self.values[name]
        try:
            return parse_operand(type_, given)
        except ValueError as error:
            raise self._refusal(
                INVALID_ARGUMENT, name, f"the column is {type_} and accepts {error}; {shown(given)} is not allowed"
            ) from None

    def _argument(self, name: str) -> ArgumentNode:
        return next(argument for argument in self.node.arguments or () if argument.name.value == name)

    def _refusal(self, code: str, name: str, message: str) -> Exception:
        return refusal(code, f"{name}: {message}", self._argument(name), field=name)

    def _written(self, node: ValueNode) -> Any:
        """A value with its members in the order of the document or the variable."""
        match node:
            case VariableNode():
                source = self.variables.sources.get(node.name.value)
                if source is None:
                    return None
                if source.value is not Undefined:
                    return source.value
                default = source.signature.default
                return None if default is None or default.literal is None else self._written(default.literal)
            case ObjectValueNode():
                return {field.name.value: self._written(field.value) for field in node.fields}
            case ListValueNode():
                return [self._written(item) for item in node.values]
            case EnumValueNode():
                return node.value
            case _:
                return None


def check_whole(argument: ArgumentNode, variables: VariableValues) -> None:
    """Refuse a value that contains a variable without a value, if it is stored and takes effect later.

    GraphQL omits such a member. In a query this is the usual way to make a filter optional; in a trigger more rows
    would match by accident, for its whole lifetime. Raises RequestRefused.
    """
    for variable in _variables(argument.value) if not isinstance(argument.value, VariableNode) else ():
        if variable.name.value not in variables.coerced:
            name = argument.name.value
            message = f"{name}: the variable ${variable.name.value} has no value"
            raise refusal(INVALID_FILTER, message, variable, field=name)


def _variables(node: ValueNode) -> Iterator[VariableNode]:
    """The variables inside a value, by a stack: it may be deep."""
    nodes = [node]
    while nodes:
        match nodes.pop():
            case VariableNode() as variable:
                yield variable
            case ListValueNode(values=values):
                nodes.extend(values)
            case ObjectValueNode(fields=fields):
                nodes.extend(field.value for field in fields)
            case _:
                pass
