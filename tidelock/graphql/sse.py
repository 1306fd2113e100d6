"""GraphQL over server-sent events: `/graphql` for clients that accept `text/event-stream`, one operation per request.

As in graphql-sse's distinct connections mode: payloads are events `next`, errors too, and the last event is
`complete`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidelock.errors import TidelockError
from tidelock.graphql.execution import Operations
from tidelock.graphql.requests import Request, errors_of
from tidelock.http.access import Access, Grant
from tidelock.http.clients import AccessWatch, ClientSlots, KeepAlive, OpenClient, first_ended
from tidelock.http.problems import outages
from tidelock.instants import SECOND
from tidelock.settings import Settings

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    # Proxies that buffer whole responses would hold this one for ever.
    (b"x-accel-buffering", b"no"),
]
_COMPLETE = b"event: complete\ndata:\n\n"

_encode = msgspec.json.Encoder().encode


class GraphQLStreams:
    """The handler of event streams."""

    def __init__(self, operations: Operations, access: Access, places: ClientSlots, settings: Settings) -> None:
        self.operations = operations
        #: of each tenant, shared with other transports
        self.places = places
        self.watch = AccessWatch(access)
        self.keep_alive = KeepAlive(settings.live_keep_alive / SECOND)

    def answer(self, grant: Grant, request: Request, mutations: bool) -> Response:
        """What has been read as a request, answered; a mutation only to who may send it so."""
        return _Stream(self, grant, request, mutations)


class _Stream(Response):
    """The events of one request."""

    def __init__(self, route: GraphQLStreams, grant: Grant, request: Request, mutations: bool) -> None:
        super().__init__()
        self._route = route
        self._grant = grant
        self._request = request
        self._mutations = mutations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route, grant = self._route, self._grant
        client = _SseClient(send)
        with (
            route.places.take(grant.tenant_id),
            route.watch.over(dict(scope["headers"]), grant.reads(None), client.end),
            route.keep_alive.over(client),
        ):
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            # Immediately, so that the client knows the request arrived.
            await client.write([client.still_here])
            run = route.operations.run
            work = asyncio.create_task(
                run(self._request, grant, client.send_payloads, client.end, mutations=self._mutations)
            )
            gone = asyncio.create_task(_until_gone(receive))
            ends: list[asyncio.Future[None]] = [work, gone, client.ended]
            done = await first_ended(ends)
            if gone not in done:
                errors = [error for end in done if (error := end.exception()) is not None]
                await client.finish(errors[0] if errors else None)


class _SseClient(OpenClient):
    still_here = b":\n\n"

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send

    async def give(self, parts: Sequence[bytes]) -> None:
        await self._send({"type": "http.response.body", "body": b"".join(parts), "more_body": True})

    async def send_payloads(self, payloads: Sequence[bytes]) -> None:
        await self.write([b"event: next\ndata: %b\n\n" % payload for payload in payloads])

    async def finish(self, error: BaseException | None) -> None:
        if isinstance(error, TidelockError):
            outages.note(error)
            await self.send_payloads([_encode({"errors": errors_of(error)})])
        elif error is not None:
            raise error
        await self.write([_COMPLETE])
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
