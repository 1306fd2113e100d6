"""Documents: GraphQL texts, parsed and validated once each, and the operations that come of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidelock.live.fields import Changes
from tidelock.live.requests import Request

Kind = Literal["query", "mutation", "subscription"]


@dataclass(frozen=True, slots=True)
class Operation:
    """What a request wants done."""

    kind: Kind
    name: str | None
    #: in the order of the answer; a subscription has exactly one, of class Changes
    fields: tuple[Changes, ...]


class Documents:
    """The documents that are in use over one schema."""

    async def prepare(self, request: Request) -> Operation:
        """The operation that a request asks for, with its variables in place. Raises Refused."""
        raise NotImplementedError
