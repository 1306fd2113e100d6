"""Introspection: queries about the schema, within limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from graphql import (
    DocumentNode,
    GraphQLEnumType,
    GraphQLInputObjectType,
    GraphQLObjectType,
    GraphQLSchema,
    execute_sync,
)
from graphql.execution import MiddlewareManager

from tidelock.graphql.requests import INVALID_VARIABLES, LIMIT_EXCEEDED, refusal, refusals

# Tools need about ten answers per element of the schema. A document of a few lines can request millions.
_ANSWERS_PER_THING, _ANSWERS = 30, 10_000


@dataclass(frozen=True, slots=True)
class IntrospectionField:
    """A field about the schema."""

    #: its name in the response
    name: str
    schema: GraphQLSchema
    #: with an operation that has this field only
    document: DocumentNode
    variables: Mapping[str, Any]

    def read(self, budget: Budget) -> object:
        """The value, ready to be encoded. Takes milliseconds, or many for large requests. Raises RequestRefused."""
        try:
            result = execute_sync(
                self.schema,
                self.document,
                variable_values=dict(self.variables),
                middleware=MiddlewareManager(budget),
            )
        except _Spent:
            raise refusal(LIMIT_EXCEEDED, f"{self.name}: this requests too much of the schema at once") from None
        if result.errors:
            # A schema answers every valid query, but an argument may still be null where null is not allowed.
            raise refusals(INVALID_VARIABLES, result.errors)
        assert result.data is not None
        return result.data[self.name]


class _Spent(BaseException):
    """Aborts an execution: an Exception would only be the error of one field."""


class Budget:
    """The remaining number of answers for one operation, over all its fields."""

    def __init__(self, schema: GraphQLSchema) -> None:
        self._left = _ANSWERS + _ANSWERS_PER_THING * _things(schema)

    def resolve(self, answer: Callable[..., Any], source: object, info: object, **arguments: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise _Spent
        return answer(source, info, **arguments)


def _things(schema: GraphQLSchema) -> int:
    """How many types, fields, arguments and values there are."""
    count = len(schema.type_map)
    for type_ in schema.type_map.values():
        match type_:
            case GraphQLObjectType():
                count += sum(1 + len(field.args) for field in type_.fields.values())
            case GraphQLInputObjectType():
                count += len(type_.fields)
            case GraphQLEnumType():
                count += len(type_.values)
    return count
