"""Requests: what a GraphQL client sends, whatever it came by."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec

from tidelock.errors import InvalidJson, RequestError


class SentNumber(float):
    """A number with a fraction or an exponent, which keeps the digits it was sent with."""

    __slots__ = ("exact",)

    exact: Decimal

    def __new__(cls, text: str) -> SentNumber:
        number = super().__new__(cls, text)
        try:
            number.exact = Decimal(text)
        except ArithmeticError:
            raise ValueError("there is a number of no size that anything here has") from None
        return number


@dataclass(frozen=True, slots=True)
class Request:
    """A document and what it is to be executed with."""

    query: str
    operation_name: str | None = None
    #: numbers are exact: int or SentNumber
    variables: dict[str, Any] | None = None
    #: how many bytes it came in
    size: int = 0


class _Sent(msgspec.Struct):
    query: str
    operationName: str | None = None  # noqa: N815
    variables: dict[str, Any] | None = None
    #: for what a client and a server agree on beside the standard; nothing here
    extensions: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Sent, float_hook=SentNumber).decode
_decode_variables = msgspec.json.Decoder(dict[str, Any] | None, float_hook=SentNumber).decode


def read_request(body: bytes | bytearray | memoryview) -> Request:
    """The request that a JSON text is. Raises InvalidJson, or RequestError when it is none."""
    try:
        sent = _decode(body)
    except msgspec.ValidationError as error:
        raise RequestError(f"this is not a GraphQL request: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise InvalidJson(f"this is not a GraphQL request, which is JSON: {error}") from None
    except RecursionError:
        raise InvalidJson("this is nested too deeply") from None
    return Request(sent.query, sent.operationName, sent.variables, len(body))


def read_variables(text: str) -> dict[str, Any] | None:
    """Variables that come apart from their document, in a URL. Raises InvalidJson, or RequestError."""
    try:
        variables: dict[str, Any] | None = _decode_variables(text)
    except msgspec.ValidationError as error:
        raise RequestError(f"variables: {error}", field="variables") from None
    except (msgspec.DecodeError, UnicodeError, ValueError) as error:
        raise InvalidJson(f"variables: this is not JSON: {error}", field="variables") from None
    except RecursionError:
        raise InvalidJson("variables: this is nested too deeply", field="variables") from None
    return variables
