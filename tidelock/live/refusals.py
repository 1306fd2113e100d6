"""Refusals: what is wrong with a GraphQL request, as GraphQL tells it: messages, places in the document, codes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from graphql import GraphQLError, Node

from tidelock.errors import RequestError, TidelockError
from tidelock.where import InvalidFilter

Json = dict[str, Any]

PARSE_FAILED = "parse_failed"
VALIDATION_FAILED = "validation_failed"
INVALID_VARIABLES = "invalid_variables"
INVALID_ARGUMENT = "invalid_argument"
#: a wrong filter has one code by every way
INVALID_FILTER = InvalidFilter.code
LIMIT_EXCEEDED = "limit_exceeded"
RESULT_TOO_LARGE = "result_too_large"


class Refused(RequestError):
    """A request that is not executed, with everything that is wrong with it."""

    def __init__(self, errors: Sequence[Json]) -> None:
        super().__init__(errors[0]["message"])
        #: at least one, as they stand in an answer's `errors`
        self.errors = list(errors)


def refusal(code: str, message: str, node: Node | None = None, *, field: str | None = None) -> Refused:
    """The refusal for one reason, which lies at a node of the document."""
    extensions = {"code": code} if field is None else {"code": code, "field": field}
    return Refused([_form(GraphQLError(message, node, extensions=extensions))])


def refusals(code: str, errors: Iterable[GraphQLError]) -> Refused:
    """The refusal for what graphql-core has found."""
    return Refused([{**_form(error), "extensions": {"code": code}} for error in errors])


def filter_refusal(error: InvalidFilter, node: Node) -> Refused:
    """The refusal of the argument `where`: its place in the filter is told, and where the filter is."""
    if error.field is None:
        return refusal(INVALID_FILTER, f"where: {error.message.removeprefix('the filter: ')}", node, field="where")
    return refusal(INVALID_FILTER, f"where.{error.message}", node, field=f"where.{error.field}")


def errors_of(error: TidelockError) -> list[Json]:
    """The `errors` of an answer that tell an error of ours, each with its `extensions.code`."""
    if isinstance(error, Refused):
        return error.errors
    extensions = {"code": error.code}
    if error.field is not None:
        extensions["field"] = error.field
    return [{"message": error.message, "extensions": extensions}]


def _form(error: GraphQLError) -> Json:
    return dict(error.formatted)
