"""Refusals: what is wrong with a GraphQL request, as GraphQL tells it: messages, places in the document, codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelock.errors import RequestError, TidelockError

Json = dict[str, Any]


class Refused(RequestError):
    """A request that is not executed, with everything that is wrong with it."""

    def __init__(self, errors: Sequence[Json]) -> None:
        super().__init__(errors[0]["message"])
        #: at least one, as they stand in an answer's `errors`
        self.errors = list(errors)


def errors_of(error: TidelockError) -> list[Json]:
    """The `errors` of an answer that tell an error of ours, each with its `extensions.code`."""
    raise NotImplementedError
