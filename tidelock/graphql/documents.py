"""Documents: GraphQL texts, parsed and validated once each, and their operations.

An operation's fields are collected first (fragments expanded, skipped fields removed), then read with their arguments.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from graphql import (
    DocumentNode,
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    GraphQLError,
    GraphQLField,
    GraphQLIncludeDirective,
    GraphQLObjectType,
    GraphQLSchema,
    GraphQLSkipDirective,
    InlineFragmentNode,
    OperationDefinitionNode,
    OperationType,
    SelectionNode,
    SelectionSetNode,
    get_argument_values,
    get_directive_values,
    get_variable_values,
    parse,
    validate,
)
from graphql.execution import VariableValues

from tidelock.definitions.graphqlnames import INTROSPECTION, ONE_ROW
from tidelock.graphql.fields import (
    Arguments,
    CallField,
    ChangesField,
    Field,
    OneRowField,
    RowsField,
    TypenameField,
    check_whole,
)
from tidelock.graphql.introspection import IntrospectionField
from tidelock.graphql.requests import (
    INVALID_VARIABLES,
    LIMIT_EXCEEDED,
    PARSE_FAILED,
    VALIDATION_FAILED,
    Request,
    refusal,
    refusals,
)
from tidelock.graphql.schema import TABLE
from tidelock.graphql.selections import TYPENAME, Shown, select_events
from tidelock.sections import shown
from tidelock.tables import Table

Kind = Literal["query", "mutation", "subscription"]

# A token is a name, a number, a bracket ...
_TOKENS_MAX = 20_000
_ERRORS_MAX = 10
# The cache: maximum size of a document, and of all of them, in characters. A character takes up to 200 bytes.
_REMEMBERED_LENGTH_MAX = 16_384
_REMEMBERED_LENGTHS_MAX = 262_144
# Parsing and validating takes milliseconds, or a hundred times more for malicious documents, and so does reading larger
# arguments or variables: in a thread, so that others continue.
_INLINE_BYTES = 1_024
# And at most this many at a time, since they compete for the processor.
_THREADS_MAX = 2

# Each is a query to the database or the schema.
_FIELDS_MAX = 50

#: response name -> the nodes that request it: the same field with the same arguments, by validation
Collected = dict[str, list[FieldNode]]


@dataclass(frozen=True, slots=True)
class Operation:
    """The operation of a request."""

    kind: Kind
    name: str | None
    #: in the order of the answer; a subscription has exactly one, of class ChangesField
    fields: tuple[Field, ...]
    request: Request
    #: of the definitions whose tables it is about
    version: int | None


@dataclass(frozen=True, slots=True)
class _Document:
    """A valid document."""

    operations: Mapping[str | None, OperationDefinitionNode]
    fragments: Mapping[str, FragmentDefinitionNode]

    @classmethod
    def of(cls, document: DocumentNode) -> _Document:
        operations, fragments = {}, {}
        for definition in document.definitions:
            if isinstance(definition, OperationDefinitionNode):
                operations[definition.name.value if definition.name else None] = definition
            elif isinstance(definition, FragmentDefinitionNode):
                fragments[definition.name.value] = definition
        return cls(operations, fragments)

    def operation(self, name: str | None) -> OperationDefinitionNode:
        if name is None and len(self.operations) == 1:
            return next(iter(self.operations.values()))
        if name is None:
            message = "the document has several operations" if self.operations else "the document has no operation"
            raise refusal(VALIDATION_FAILED, f"{message}; choose one with operationName", field="operationName")
        if name not in self.operations:
            raise refusal(VALIDATION_FAILED, f"there is no operation {shown(name)}", field="operationName")
        return self.operations[name]


class Documents:
    """The documents in use over one schema."""

    def __init__(self, schema: GraphQLSchema, *, document_bytes_max: int, version: int | None = None) -> None:
        """`version`: of the definitions that the schema is of; None before the fold has ever run."""
        self.schema = schema
        self.version = version
        self._bytes_max = document_bytes_max
        self._remembered: OrderedDict[str, _Document] = OrderedDict()
        self._remembered_length = 0
        # Documents are also read in threads.
        self._lock = threading.Lock()
        self._threads = asyncio.Semaphore(_THREADS_MAX)

    async def prepare(self, request: Request) -> Operation:
        """The operation of a request, with its variables. Raises RequestRefused."""
        if request.size <= _INLINE_BYTES and request.query in self._remembered:
            return self.read(request)
        async with self._threads:
            return await asyncio.to_thread(self.read, request)

    def read(self, request: Request) -> Operation:
        """The same, synchronously."""
        document = self._document(request.query)
        operation = document.operation(request.operation_name)
        kind: Kind = operation.operation.value
        name = operation.name.value if operation.name else None
        try:
            variables = get_variable_values(
                self.schema, operation.variable_definitions or (), request.variables or {}, max_errors=_ERRORS_MAX
            )
            if isinstance(variables, list):
                raise refusals(INVALID_VARIABLES, variables)
            sent = request.variables or {}
            fields = RootFields(self.schema, operation, document.fragments, variables, sent).read()
        except GraphQLError as error:
            # A variable with a default may still be null, and then not fit where it is used.
            raise refusals(INVALID_VARIABLES, [error]) from None
        except RecursionError:
            raise refusal(VALIDATION_FAILED, "the request is nested too deeply") from None
        return Operation(kind, name, fields, request, self.version)

    def _document(self, text: str) -> _Document:
        with self._lock:
            if text in self._remembered:
                self._remembered.move_to_end(text)
                return self._remembered[text]
        document = self._valid(text)
        if len(text) <= _REMEMBERED_LENGTH_MAX:
            self._remember(text, document)
        return document

    def _valid(self, text: str) -> _Document:
        if len(text) > self._bytes_max or len(text.encode()) > self._bytes_max:
            message = f"the document is larger than {self._bytes_max} bytes (setting graphql_document_bytes_max)"
            raise refusal(LIMIT_EXCEEDED, f"{message}; send long values as variables", field="query")
        try:
            parsed = parse(text, max_tokens=_TOKENS_MAX)
        except GraphQLError as error:
            raise refusals(PARSE_FAILED, [error]) from None
        except RecursionError:
            raise refusal(PARSE_FAILED, "the document is nested too deeply") from None
        try:
            errors = validate(self.schema, parsed, max_errors=_ERRORS_MAX)
        except RecursionError:
            raise refusal(VALIDATION_FAILED, "the document is nested too deeply") from None
        if errors:
            raise refusals(VALIDATION_FAILED, errors)
        return _Document.of(parsed)

    def _remember(self, text: str, document: _Document) -> None:
        with self._lock:
            if text not in self._remembered:
                self._remembered[text] = document
                self._remembered_length += len(text)
            while self._remembered_length > _REMEMBERED_LENGTHS_MAX:
                forgotten, _ = self._remembered.popitem(last=False)
                self._remembered_length -= len(forgotten)


@dataclass(frozen=True, slots=True)
class RootFields:
    """The fields of a valid operation."""

    schema: GraphQLSchema
    operation: OperationDefinitionNode
    fragments: Mapping[str, FragmentDefinitionNode]
    variables: VariableValues
    #: the variables as sent
    sent: Mapping[str, Any]

    def read(self) -> tuple[Field, ...]:
        """Raises RequestRefused."""
        kind = self.operation.operation
        type_ = self.schema.get_root_type(kind)
        if type_ is None:
            raise refusal(VALIDATION_FAILED, f"there are no {kind.value}s", self.operation)
        collector = Collector(self.fragments, self.variables)
        collected = collector.collect([self.operation.selection_set])
        if kind is OperationType.SUBSCRIPTION and len(collected) != 1:
            raise refusal(VALIDATION_FAILED, "a subscription has exactly one field", self.operation)
        if len(collected) > _FIELDS_MAX:
            raise refusal(
                LIMIT_EXCEEDED,
                f"{len(collected)} fields are selected at the top level; at most {_FIELDS_MAX} are allowed",
                self.operation,
            )
        return tuple(self._field(type_, name, nodes, collector) for name, nodes in collected.items())

    def _field(self, type_: GraphQLObjectType, name: str, nodes: list[FieldNode], collector: Collector) -> Field:
        asked = nodes[0].name.value
        if asked == TYPENAME:
            return TypenameField(name, type_.name)
        if asked.startswith(INTROSPECTION):
            return IntrospectionField(name, self.schema, self._only(nodes), self.sent)
        field = type_.fields[asked]
        if TABLE not in field.extensions:
            return self._call(name, field, nodes, collector)
        table: Table = field.extensions[TABLE]
        arguments = Arguments.of(table, field, nodes[0], self.variables)
        inside = collector.inside(nodes)
        if self.operation.operation is OperationType.SUBSCRIPTION:
            return _changes(name, arguments, inside, collector)
        if asked == table.name + ONE_ROW:
            return OneRowField(name, table, arguments.key(), arguments.tenant_id(), _shown(inside))
        return RowsField(
            name,
            table,
            where=arguments.where(),
            order=arguments.order(),
            limit=arguments.limit(),
            offset=arguments.offset(),
            shown=_shown(inside),
        )

    def _call(self, name: str, field: GraphQLField, nodes: list[FieldNode], collector: Collector) -> CallField:
        try:
            given = get_argument_values(field, nodes[0], self.variables)
        except GraphQLError as error:
            raise refusals(INVALID_VARIABLES, [error]) from None
        for argument in nodes[0].arguments or ():
            check_whole(argument, self.variables)
        inside = collector.inside(nodes) if nodes[0].selection_set is not None else {}
        return CallField(name, nodes[0].name.value, given, _shown(inside))

    def _only(self, nodes: list[FieldNode]) -> DocumentNode:
        """This document reduced to these fields."""
        operation = OperationDefinitionNode(
            operation=self.operation.operation,
            variable_definitions=self.operation.variable_definitions,
            directives=(),
            selection_set=SelectionSetNode(selections=tuple(nodes)),
        )
        return DocumentNode(definitions=(operation, *self.fragments.values()))


def _changes(name: str, arguments: Arguments, inside: Collected, collector: Collector) -> ChangesField:
    members: dict[str, str | Shown] = {}
    for alias, nodes in inside.items():
        member = nodes[0].name.value
        members[alias] = _shown(collector.inside(nodes)) if member == "data" else member
    table = arguments.table
    return ChangesField(name, table, arguments.where(), arguments.after(), select_events(table, name, members))


def _shown(inside: Collected) -> dict[str, str]:
    """The columns of a row, which have no fields of their own."""
    return {alias: nodes[0].name.value for alias, nodes in inside.items()}


@dataclass(frozen=True, slots=True)
class Collector:
    """Collects in the documents of one operation. Every type with fields is an object type, so any fragment fits."""

    fragments: Mapping[str, FragmentDefinitionNode]
    variables: VariableValues

    def collect(self, selection_sets: Iterable[SelectionSetNode | None]) -> Collected:
        """The fields of some selection sets together, in the order in which they are first named."""
        found: Collected = {}
        visited: set[str] = set()
        for selection_set in selection_sets:
            self._visit(selection_set, found, visited)
        return found

    def inside(self, nodes: Iterable[FieldNode]) -> Collected:
        """The fields of a field."""
        return self.collect(node.selection_set for node in nodes)

    def _visit(self, selection_set: SelectionSetNode | None, found: Collected, visited: set[str]) -> None:
        for selection in () if selection_set is None else selection_set.selections:
            if not self._included(selection):
                continue
            match selection:
                case FieldNode():
                    found.setdefault(response_name(selection), []).append(selection)
                case InlineFragmentNode():
                    self._visit(selection.selection_set, found, visited)
                case FragmentSpreadNode() if selection.name.value not in visited:
                    visited.add(selection.name.value)
                    self._visit(self.fragments[selection.name.value].selection_set, found, visited)

    def _included(self, node: SelectionNode) -> bool:
        if not node.directives:
            return True
        skip = get_directive_values(GraphQLSkipDirective, node, self.variables)
        include = get_directive_values(GraphQLIncludeDirective, node, self.variables)
        return not (skip and skip["if"]) and not (include and not include["if"])


def response_name(node: FieldNode) -> str:
    return node.alias.value if node.alias else node.name.value
