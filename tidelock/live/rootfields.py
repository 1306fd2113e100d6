"""Root fields: from an operation's nodes to what is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphql import (
    DocumentNode,
    FieldNode,
    FragmentDefinitionNode,
    GraphQLError,
    GraphQLField,
    GraphQLObjectType,
    GraphQLSchema,
    OperationDefinitionNode,
    OperationType,
    SelectionSetNode,
    get_argument_values,
)
from graphql.execution import VariableValues

from tidelock.definitions.graphqlnames import INTROSPECTION, ONE_ROW
from tidelock.fold.tables import Table
from tidelock.live.arguments import Arguments, check_whole
from tidelock.live.collected import Collected, Collector
from tidelock.live.fields import Call, Changes, Field, OneRow, Rows, Typename
from tidelock.live.introspection import Introspection
from tidelock.live.refusals import INVALID_VARIABLES, LIMIT_EXCEEDED, VALIDATION_FAILED, refusal, refusals
from tidelock.live.schema import TABLE
from tidelock.live.selections import TYPENAME, Shown, select_events

# Each is a question to the database, or to the schema.
_FIELDS_MAX = 50


@dataclass(frozen=True, slots=True)
class RootFields:
    """The fields of one operation, which is valid."""

    schema: GraphQLSchema
    operation: OperationDefinitionNode
    fragments: Mapping[str, FragmentDefinitionNode]
    variables: VariableValues
    #: the variables as they came
    sent: Mapping[str, Any]

    def read(self) -> tuple[Field, ...]:
        """Raises Refused."""
        kind = self.operation.operation
        type_ = self.schema.get_root_type(kind)
        if type_ is None:
            raise refusal(VALIDATION_FAILED, f"there are no {kind.value}s", self.operation)
        collector = Collector(self.fragments, self.variables)
        collected = collector.collect([self.operation.selection_set])
        if kind is OperationType.SUBSCRIPTION and len(collected) != 1:
            raise refusal(VALIDATION_FAILED, "a subscription has exactly one field", self.operation)
        if len(collected) > _FIELDS_MAX:
            raise refusal(LIMIT_EXCEEDED, f"at most {_FIELDS_MAX} fields may stand beside each other", self.operation)
        return tuple(self._field(type_, name, nodes, collector) for name, nodes in collected.items())

    def _field(self, type_: GraphQLObjectType, name: str, nodes: list[FieldNode], collector: Collector) -> Field:
        asked = nodes[0].name.value
        if asked == TYPENAME:
            return Typename(name, type_.name)
        if asked.startswith(INTROSPECTION):
            return Introspection(name, self.schema, self._only(nodes), self.sent)
        field = type_.fields[asked]
        if TABLE not in field.extensions:
            return self._call(name, field, nodes, collector)
        table: Table = field.extensions[TABLE]
        arguments = Arguments.of(table, field, nodes[0], self.variables)
        inside = collector.inside(nodes)
        if self.operation.operation is OperationType.SUBSCRIPTION:
            return _changes(name, arguments, inside, collector)
        if asked == table.name + ONE_ROW:
            return OneRow(name, table, arguments.key(), arguments.tenant_id(), _shown(inside))
        return Rows(
            name, table, arguments.where(), arguments.order(), arguments.limit(), arguments.offset(), _shown(inside)
        )

    def _call(self, name: str, field: GraphQLField, nodes: list[FieldNode], collector: Collector) -> Call:
        try:
            given = get_argument_values(field, nodes[0], self.variables)
        except GraphQLError as error:
            raise refusals(INVALID_VARIABLES, [error]) from None
        for argument in nodes[0].arguments or ():
            check_whole(argument, self.variables)
        inside = collector.inside(nodes) if nodes[0].selection_set is not None else {}
        return Call(name, nodes[0].name.value, given, _shown(inside))

    def _only(self, nodes: list[FieldNode]) -> DocumentNode:
        """A document like this one, with nothing but these fields."""
        operation = OperationDefinitionNode(
            operation=self.operation.operation,
            variable_definitions=self.operation.variable_definitions,
            directives=(),
            selection_set=SelectionSetNode(selections=tuple(nodes)),
        )
        return DocumentNode(definitions=(operation, *self.fragments.values()))


def _changes(name: str, arguments: Arguments, inside: Collected, collector: Collector) -> Changes:
    members: dict[str, str | Shown] = {}
    for alias, nodes in inside.items():
        member = nodes[0].name.value
        members[alias] = _shown(collector.inside(nodes)) if member == "data" else member
    table = arguments.table
    return Changes(name, table, arguments.where(), arguments.after(), select_events(table, name, members))


def _shown(inside: Collected) -> dict[str, str]:
    """The columns of a row, which have no fields of their own."""
    return {alias: nodes[0].name.value for alias, nodes in inside.items()}
