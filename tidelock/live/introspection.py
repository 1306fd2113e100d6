"""Introspection: what the schema says of itself, within limits."""

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

from tidelock.live.refusals import LIMIT_EXCEEDED, refusal

# What tools ask takes about ten answers for each thing in the schema. A document of a few lines can ask for millions.
_ANSWERS_PER_THING, _ANSWERS = 30, 10_000


@dataclass(frozen=True, slots=True)
class Introspection:
    """A field that asks what the schema is."""

    #: under which it stands in the answer
    name: str
    schema: GraphQLSchema
    #: with an operation that has this field only
    document: DocumentNode
    variables: Mapping[str, Any]

    def read(self) -> object:
        """The value, ready to be encoded. It takes milliseconds, and many where much is asked. Raises Refused."""
        budget = _Budget(_ANSWERS + _ANSWERS_PER_THING * _things(self.schema))
        try:
            result = execute_sync(
                self.schema,
                self.document,
                variable_values=dict(self.variables),
                middleware=MiddlewareManager(budget),
            )
        except _Spent:
            raise refusal(LIMIT_EXCEEDED, f"{self.name}: this asks for too much of the schema at once") from None
        assert result.data is not None, f"a schema answers every valid question: {result.errors}"
        return result.data[self.name]


class _Spent(BaseException):
    """Ends an execution at once: an Exception would only be the error of one field."""


class _Budget:
    """How many answers may still be given."""

    def __init__(self, answers: int) -> None:
        self._left = answers

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
