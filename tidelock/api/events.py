"""Events over HTTP: lists of the ledger, and the live tail over WebSocket.

The tail is `/ws`: one event per text frame, from now or from a sequence on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from tidelock.errors import Overloaded, TidelockError, Unauthorized
from tidelock.http.access import Access
from tidelock.http.clients import AccessWatch, ClientSlots, close_code, first_ended, say_goodbye, trust
from tidelock.http.parameters import Parameters, read_paging
from tidelock.http.problems import JSON
from tidelock.ledger.feed import Feed
from tidelock.ledger.reader import Slice, read_caused, read_head, read_page
from tidelock.ledger.routing import Filter
from tidelock.postgres.pool import Connections
from tidelock.settings import Settings

EVENTS = ("tenantId", "stream", "customerRef", "causalityKey", "correlationId", "source", "batchId",
          "targetSequence", "from", "to", "after", "before", "order", "limit", "cursor")  # fmt: skip
CAUSALITY = ("tenantId", "limit", "cursor")

TAIL = ("after", "stream", "customerRef", "causalityKey", "tenantId")

# A client that reads fewer frames than this in the time of two pings is gone, even if its connection looks alive.
_FRAMES_PER_CHECK = 100
# How long a client that sent no key with the handshake has to send it.
_INTRODUCTION_S = 5.0
_CLOSE_UNAUTHORIZED = 4401

_HOW = 'send a key: {"type":"connection_init","payload":{"authorization":"Bearer KEY"}}'


class EventLists:
    """The handlers of the lists."""

    def __init__(self, connections: Connections, access: Access, settings: Settings) -> None:
        self._connections = connections
        self._access = access
        self._settings = settings

    async def events(self, request: Request) -> Response:
        grant = await self._access.reader(request.scope)
        parameters = Parameters(request.scope["query_string"], EVENTS)
        paging = read_paging(parameters, self._settings, order=parameters.choice("order", ("asc", "desc")))
        wanted = Slice(
            tenant_id=grant.reads(parameters.name("tenantId")),
            stream=parameters.name("stream"),
            customer_ref=parameters.text("customerRef"),
            causality_key=parameters.text("causalityKey"),
            correlation_id=parameters.text("correlationId"),
            source=parameters.text("source"),
            batch_id=parameters.text("batchId"),
            corrected=parameters.sequence("targetSequence", minimum=1),
            occurred_from=parameters.instant("from"),
            occurred_to=parameters.instant("to"),
            after=parameters.sequence("after"),
            before=parameters.sequence("before"),
        )
        async with self._connections.lend() as connection:
            page = await read_page(
                connection,
                paging.narrow(wanted),
                rows_max=paging.limit,
                bytes_max=self._settings.page_bytes_max,
                descending=paging.descending,
            )
        return Response(paging.encode(page), media_type=JSON)

    async def causality(self, request: Request) -> Response:
        grant = await self._access.reader(request.scope)
        parameters = Parameters(request.scope["query_string"], CAUSALITY)
        paging = read_paging(parameters, self._settings)
        key = request.path_params["key"]
        wanted = Slice(tenant_id=grant.reads(parameters.name("tenantId")), causality_key=key)
        async with self._connections.lend() as connection:
            page = await read_caused(
                connection,
                paging.narrow(wanted),
                rows_max=paging.limit,
                bytes_max=self._settings.page_bytes_max,
            )
        return Response(paging.encode(page), media_type=JSON)


class _Authorization(msgspec.Struct):
    authorization: str | None = None


class _Introduction(_Authorization):
    """The first message of a client: its key flat, or as GraphQL clients send it."""

    type: str | None = None
    payload: _Authorization | None = None


_introduction = msgspec.json.Decoder(_Introduction)


class _Wanted(NamedTuple):
    """What a client requests."""

    only: Filter
    #: None: from now on
    after: int | None

    @classmethod
    def read(cls, query: bytes) -> _Wanted:
        parameters = Parameters(query, TAIL)
        only = Filter(
            parameters.name("tenantId"),
            parameters.name("stream"),
            parameters.text("customerRef"),
            parameters.text("causalityKey"),
        )
        return cls(only, parameters.sequence("after"))


class _Admitted(NamedTuple):
    """An admitted client, and its request."""

    #: with its key
    headers: Mapping[bytes, bytes]
    asked_tenant_id: str | None
    only: Filter
    after: int


class TailRoute:
    """`/ws`. Errors are HTTP errors before the handshake, and close codes after it."""

    def __init__(self, feed: Feed, connections: Connections, access: Access, settings: Settings) -> None:
        self._feed = feed
        self._connections = connections
        self._access = access
        self._watch = AccessWatch(access)
        self._places = ClientSlots(settings.ws_connections_max, "clients that follow the ledger")
        # Unauthenticated clients take no places from authenticated ones.
        self._waiting = ClientSlots(settings.ws_connections_max, "clients that have not authenticated yet")
        self._stall_s = 2 * settings.ws_ping_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        headers = dict(scope["headers"])
        wanted = _Wanted.read(scope["query_string"])
        if b"authorization" not in headers and await self._access.keys_needed():
            await self._meet(wanted, scope, receive, send)
            return
        client = await self._let_in(wanted, headers)
        trust(scope)
        with self._places.take():
            await send({"type": "websocket.accept"})
            await self._serve(client, receive, send)

    async def _meet(self, wanted: _Wanted, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a client that sends its key in the first frame: browsers cannot send it with the handshake."""
        with self._waiting.take():
            await send({"type": "websocket.accept"})
            try:
                first = await _first_message(receive)
                if first["type"] == "websocket.disconnect":
                    return
                headers = {**dict(scope["headers"]), b"authorization": _authorization(first)}
                client = await self._let_in(wanted, headers)
                trust(scope)
            except TidelockError as error:
                await _close_for(error, send)
                return
        try:
            with self._places.take():
                await self._serve(client, receive, send)
        except Overloaded as error:
            await _close_for(error, send)

    async def _let_in(self, wanted: _Wanted, headers: Mapping[bytes, bytes]) -> _Admitted:
        grant = (await self._access.grant(headers)).need("read")
        asked = wanted.only.tenant_id
        only = wanted.only._replace(tenant_id=grant.reads(asked))
        # Read in any case: a client should learn now that the ledger is unavailable, not later by silence.
        head = await self._connections.ask(read_head)
        return _Admitted(headers, asked, only, head.ingress_sequence if wanted.after is None else wanted.after)

    async def _serve(self, client: _Admitted, receive: Receive, send: Send) -> None:
        """Send until the client goes, may no longer read, or the server stops."""
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def refuse(error: Exception) -> None:
            if not refused.done():
                refused.set_exception(error)

        ends: list[asyncio.Future[None]] = [
            asyncio.create_task(self._send(client.only, client.after, send)),
            asyncio.create_task(_wait_for_end(receive)),
            refused,
        ]
        with self._watch.over(client.headers, client.only.tenant_id, refuse, asked_tenant_id=client.asked_tenant_id):
            done = await first_ended(ends)
        for end in done:
            await _close_for(end.exception(), send)

    async def _send(self, only: Filter, after: int, send: Send) -> None:
        async with aclosing(self._feed.follow(only, after)) as batches:
            async for frames in batches:
                for start in range(0, len(frames), _FRAMES_PER_CHECK):
                    async with asyncio.timeout(self._stall_s):
                        for frame in frames[start : start + _FRAMES_PER_CHECK]:
                            await send({"type": "websocket.send", "text": frame.text})
                    # Sending to a client that keeps up never waits: let others have a turn.
                    await asyncio.sleep(0)


async def _wait_for_end(receive: Receive) -> None:
    """Returns when the client is gone. What it sends is ignored."""
    while (await receive())["type"] != "websocket.disconnect":
        pass


async def _first_message(receive: Receive) -> Message:
    try:
        async with asyncio.timeout(_INTRODUCTION_S):
            return await receive()
    except TimeoutError:
        raise Unauthorized(_HOW) from None


def _authorization(message: Message) -> bytes:
    """The key in a client's first message."""
    try:
        sent = _introduction.decode(message.get("text") or "")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise Unauthorized(_HOW) from None
    authorization = sent.authorization
    if authorization is None and sent.type == "connection_init" and sent.payload is not None:
        authorization = sent.payload.authorization
    if authorization is None:
        raise Unauthorized(_HOW)
    return authorization.encode()


async def _close_for(error: BaseException | None, send: Send) -> None:
    """Close with the reason for which one of the tasks ended, if the client is still connected."""
    if error is None or isinstance(error, OSError):
        return  # the client is gone; a stalled one (TimeoutError is an OSError) gets nothing
    await say_goodbye(send, *close_code(error, _CLOSE_UNAUTHORIZED, "a client's live tail"))
