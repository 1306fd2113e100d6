"""Requests: what a GraphQL client sends, on any transport, and the form of its errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
from graphql import GraphQLError, Node

from tidelock.errors import InvalidJson, RequestError, TidelockError
from tidelock.where import InvalidFilter

Json = dict[str, Any]

PARSE_FAILED = "parse_failed"
VALIDATION_FAILED = "validation_failed"
INVALID_VARIABLES = "invalid_variables"
INVALID_ARGUMENT = "invalid_argument"
#: a wrong filter has the same code on every transport
INVALID_FILTER = InvalidFilter.code
LIMIT_EXCEEDED = "limit_exceeded"
RESULT_TOO_LARGE = "result_too_large"
#: code and message on which clients send the whole document
PERSISTED = "PERSISTED_QUERY_NOT_SUPPORTED"


class SentNumber(float):
    """A number with a fraction or an exponent, which keeps its digits as sent."""

    __slots__ = ("exact",)

    exact: Decimal

    def __new__(cls, text: str) -> SentNumber:
        number = super().__new__(cls, text)
        try:
            number.exact = Decimal(text)
        except ArithmeticError:
            raise ValueError("it contains a number that is too large") from None
        return number


@dataclass(frozen=True, slots=True)
class Request:
    """A document with its variables and operation name."""

    query: str
    operation_name: str | None = None
    #: numbers are exact: int or SentNumber
    variables: dict[str, Any] | None = None
    #: its size in bytes
    size: int = 0


class _Sent(msgspec.Struct):
    query: str | msgspec.UnsetType = msgspec.UNSET
    operationName: str | None = None  # noqa: N815
    variables: dict[str, Any] | None = None
    #: for extensions of the standard; unused here
    extensions: dict[str, Any] | None = None


_decode_extensions = msgspec.json.Decoder(dict[str, Any] | None).decode
_decode = msgspec.json.Decoder(_Sent, float_hook=SentNumber).decode
_decode_variables = msgspec.json.Decoder(dict[str, Any] | None, float_hook=SentNumber).decode


def read_request(body: bytes | bytearray | memoryview) -> Request:
    """The request in a JSON text. Raises InvalidJson, or RequestError if it is not a request."""
    try:
        sent = _decode(body)
    except msgspec.ValidationError as error:
        raise RequestError(f"this is not a GraphQL request: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise InvalidJson(f"the request is not valid JSON: {error}") from None
    except RecursionError:
        raise InvalidJson("the request is nested too deeply") from None
    if sent.query is msgspec.UNSET:
        raise without_query(sent.extensions)
    return Request(sent.query, sent.operationName, sent.variables, len(body))


def without_query(extensions: dict[str, Any] | str | None) -> RequestError:
    """The error for a request without a document: clients that sent a hash can send the whole document.

    `extensions`: as sent, in a URL as JSON text.
    """
    if isinstance(extensions, str):
        try:
            extensions = _decode_extensions(extensions)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            extensions = None
    if extensions is not None and "persistedQuery" in extensions:
        return refusal(PERSISTED, "PersistedQueryNotSupported")
    return RequestError("the query is missing: send a GraphQL document", field="query")


def read_variables(text: str) -> dict[str, Any] | None:
    """Variables sent separately in a URL. Raises InvalidJson or RequestError."""
    try:
        variables: dict[str, Any] | None = _decode_variables(text)
    except msgspec.ValidationError as error:
        raise RequestError(f"variables: {error}", field="variables") from None
    except (msgspec.DecodeError, UnicodeError, ValueError) as error:
        raise InvalidJson(f"variables are not valid JSON: {error}", field="variables") from None
    except RecursionError:
        raise InvalidJson("variables are nested too deeply", field="variables") from None
    return variables


class RequestRefused(RequestError):
    """A request that is not executed, with all its errors."""

    def __init__(self, errors: Sequence[Json]) -> None:
        super().__init__(errors[0]["message"])
        #: at least one, as in a response's `errors`
        self.errors = list(errors)


def refusal(code: str, message: str, node: Node | None = None, *, field: str | None = None) -> RequestRefused:
    """The refusal for one reason, at a node of the document."""
    extensions = {"code": code} if field is None else {"code": code, "field": field}
    return RequestRefused([_form(GraphQLError(message, node, extensions=extensions))])


def refusals(code: str, errors: Iterable[GraphQLError]) -> RequestRefused:
    """The refusal for errors found by graphql-core."""
    return RequestRefused([{**_form(error), "extensions": {"code": code}} for error in errors])


def filter_refusal(error: InvalidFilter, node: Node) -> RequestRefused:
    """The refusal of the argument `where`, with the place in the filter and the place of the filter."""
    if error.field is None:
        return refusal(INVALID_FILTER, f"where: {error.message.removeprefix('the filter: ')}", node, field="where")
    return refusal(INVALID_FILTER, f"where.{error.message}", node, field=f"where.{error.field}")


def errors_of(error: TidelockError) -> list[Json]:
    """The `errors` of a response for one of our errors, each with its `extensions.code`."""
    if isinstance(error, RequestRefused):
        return error.errors
    extensions = {"code": error.code}
    if error.field is not None:
        extensions["field"] = error.field
    return [{"message": error.message, "extensions": extensions}]


def _form(error: GraphQLError) -> Json:
    return dict(error.formatted)
