"""Requests: what a GraphQL client sends, whatever it came by."""

from __future__ import annotations

from typing import Any

import msgspec


class Request(msgspec.Struct, frozen=True, rename={"operation_name": "operationName"}):
    """A document and what it is to be executed with."""

    query: str
    operation_name: str | None = None
    #: numbers are exact: int, or a float that knows the text it was sent as
    variables: dict[str, Any] | None = None
    #: how many bytes it came in
    size: int = 0


def read_request(body: bytes) -> Request:
    """The request that a JSON text is. Raises InvalidJson, or RequestError when it is none."""
    raise NotImplementedError
