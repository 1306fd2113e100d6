"""GraphQL over HTTP: `/graphql` for queries, and the schema of now for those who come to subscribe."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tidelock.ledger.connections import Connections
from tidelock.live.documents import Documents
from tidelock.ops.access import Access
from tidelock.settings import Settings


class GraphQL:
    """The handler of `POST /graphql` and `GET /graphql`."""

    def __init__(self, connections: Connections, looks: Connections, access: Access, settings: Settings) -> None:
        pass

    async def current(self) -> Documents:
        """The documents over the tables of now: another object when definitions have changed."""
        raise NotImplementedError

    async def __call__(self, request: Request) -> Response:
        raise NotImplementedError
