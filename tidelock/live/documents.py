"""Documents: GraphQL texts, parsed and validated once each, and the operations that come of them."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from graphql import (
    DocumentNode,
    FragmentDefinitionNode,
    GraphQLError,
    GraphQLSchema,
    OperationDefinitionNode,
    get_variable_values,
    parse,
    validate,
)

from tidelock.live.fields import Field
from tidelock.live.refusals import (
    INVALID_VARIABLES,
    LIMIT_EXCEEDED,
    PARSE_FAILED,
    VALIDATION_FAILED,
    refusal,
    refusals,
)
from tidelock.live.requests import Request
from tidelock.live.rootfields import RootFields
from tidelock.sections import shown

Kind = Literal["query", "mutation", "subscription"]

# A token is a name, a number, a bracket ...
_TOKENS_MAX = 20_000
_ERRORS_MAX = 10
# What is remembered: documents of at most so many letters, and so many letters of them. A letter takes up to 200 bytes.
_REMEMBERED_LENGTH_MAX = 16_384
_REMEMBERED_LENGTHS_MAX = 262_144
# Parsing and validating takes milliseconds, a hundred times more where somebody means ill, and so does reading
# arguments or variables of more than this: elsewhere, so that others go on.
_INLINE_BYTES = 1_024
# And no more than so many at a time, since they only take the processor from each other.
_ELSEWHERE_MAX = 2


@dataclass(frozen=True, slots=True)
class Operation:
    """What a request wants done."""

    kind: Kind
    name: str | None
    #: in the order of the answer; a subscription has exactly one, of class Changes
    fields: tuple[Field, ...]
    request: Request
    #: of the definitions whose tables it is about
    version: int | None


@dataclass(frozen=True, slots=True)
class _Document:
    """A text that is valid."""

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
            raise refusal(VALIDATION_FAILED, f"{message}; operationName says which", field="operationName")
        if name not in self.operations:
            raise refusal(VALIDATION_FAILED, f"there is no operation {shown(name)}", field="operationName")
        return self.operations[name]


class Documents:
    """The documents that are in use over one schema."""

    def __init__(self, schema: GraphQLSchema, *, document_bytes_max: int, version: int | None = None) -> None:
        """`version`: of the definitions that the schema is of; None before the fold has ever run."""
        self.schema = schema
        self.version = version
        self._bytes_max = document_bytes_max
        self._remembered: OrderedDict[str, _Document] = OrderedDict()
        self._remembered_length = 0
        # Documents are also read in threads.
        self._lock = threading.Lock()
        self._elsewhere = asyncio.Semaphore(_ELSEWHERE_MAX)

    async def prepare(self, request: Request) -> Operation:
        """The operation that a request asks for, with its variables in place. Raises Refused."""
        if request.size <= _INLINE_BYTES and request.query in self._remembered:
            return self.read(request)
        async with self._elsewhere:
            return await asyncio.to_thread(self.read, request)

    def read(self, request: Request) -> Operation:
        """The same, at once."""
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
            # A variable that has a default may be null all the same, and then not fit where it is used.
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
            raise refusal(LIMIT_EXCEEDED, f"{message}; send what is long in variables", field="query")
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
