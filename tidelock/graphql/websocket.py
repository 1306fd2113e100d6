"""GraphQL over WebSocket: `/graphql`, sub-protocol `graphql-transport-ws`.

A row event is encoded once per selection; only the few bytes of the operation's ID differ per client. Errors of an
operation are sent as `error` with its ID, errors of the client as the close code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from starlette.types import Receive, Scope, Send

from tidelock.errors import InvalidJson, Overflowed, RequestError, TidelockError
from tidelock.graphql.execution import SCOPES, Operations
from tidelock.graphql.requests import LIMIT_EXCEEDED, Request, RequestRefused, errors_of, read_request, refusal
from tidelock.http.access import Access, Grant
from tidelock.http.clients import (
    CLOSE_SLOW,
    AccessWatch,
    ClientSlots,
    KeepAlive,
    OpenClient,
    close_code,
    say_goodbye,
    trust,
)
from tidelock.http.problems import outages
from tidelock.ingest.nesting import cut_below
from tidelock.instants import SECOND
from tidelock.settings import Settings

PROTOCOL = "graphql-transport-ws"

#: close codes of the protocol
CLOSE_BAD_REQUEST = 4400
CLOSE_UNAUTHORIZED = 4401
CLOSE_FORBIDDEN = 4403
CLOSE_SUBPROTOCOL = 4406
CLOSE_INIT_TIMEOUT = 4408
CLOSE_ID_TAKEN = 4409
CLOSE_SECOND_INIT = 4429

# How long a client may take to send `connection_init`.
_INIT_S = 5.0
# It is in every message of its operation.
_ID_CHARACTERS_MAX = 255

_ACK = b'{"type":"connection_ack"}'
_NULL = b"null"


# Replaces a payload that is nested too deeply to be read.
_TOO_DEEP = msgspec.Raw(b"")


class _Message(msgspec.Struct):
    type: str
    id: str | None = None
    payload: msgspec.Raw = msgspec.Raw(_NULL)

    @property
    def operation(self) -> str:
        """The id, of a message that must have one."""
        if not self.id or len(self.id) > _ID_CHARACTERS_MAX:
            raise _Over(CLOSE_BAD_REQUEST, f"Invalid message: {self.type} needs an id of 1 to {_ID_CHARACTERS_MAX}")
        return self.id


class _Over(Exception):
    """The connection ends, with this code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class _Gone(Exception):
    """The client is gone."""


_messages = msgspec.json.Decoder(_Message)
_parameters = msgspec.json.Decoder(dict[str, object] | None)
_encode = msgspec.json.Encoder().encode


class GraphQLSockets:
    """The route."""

    def __init__(self, operations: Operations, access: Access, places: ClientSlots, settings: Settings) -> None:
        self.operations = operations
        self.access = access
        #: of each tenant, shared with other transports
        self.places = places
        # Unauthenticated clients take no places from authenticated ones.
        self.waiting = ClientSlots(settings.live_connections_max, "GraphQL clients that have not authenticated yet")
        self.watch = AccessWatch(access)
        self.keep_alive = KeepAlive(settings.live_keep_alive / SECOND)
        self.operations_max = settings.live_subscriptions_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        if PROTOCOL not in scope["subprotocols"]:
            await send({"type": "websocket.accept"})
            await say_goodbye(send, CLOSE_SUBPROTOCOL, f"Subprotocol not acceptable: this path supports {PROTOCOL}")
            return
        await send({"type": "websocket.accept", "subprotocol": PROTOCOL})
        try:
            await _Connection(self, scope, receive, send).run()
        except (_Gone, OSError):
            pass
        except _Over as over:
            await say_goodbye(send, over.code, over.reason)
        except Overflowed as error:
            await say_goodbye(send, CLOSE_SLOW, error.message)
        except Exception as error:
            await say_goodbye(send, *close_code(error, CLOSE_FORBIDDEN, "a GraphQL connection"))


class _Connection(OpenClient):
    """One client."""

    still_here = b'{"type":"ping"}'

    def __init__(self, route: GraphQLSockets, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__()
        self._route = route
        self._scope = scope
        self._headers = dict(scope["headers"])
        self._receive = receive
        self._send = send
        #: by the ids of their operations
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def give(self, parts: Sequence[bytes]) -> None:
        await self._send({"type": "websocket.send", "texts": parts})

    async def run(self) -> None:
        """Serve until the client leaves (_Gone) or must be closed: the exception says why."""
        route = self._route
        with route.waiting.take():
            await self._meet()
            grant = (await route.access.grant(self._headers)).need(*SCOPES)
        trust(self._scope)
        with (
            route.places.take(grant.tenant_id),
            route.watch.over(self._headers, grant.reads(None), self.end),
            route.keep_alive.over(self),
        ):
            await self.write([_ACK])
            listening = asyncio.create_task(self._listen(grant))
            try:
                await self.ended
            finally:
                await _cancel(listening, *self._tasks.values())

    async def _meet(self) -> None:
        """Receive `connection_init`, and check its key."""
        try:
            async with asyncio.timeout(_INIT_S):
                while (message := await self._next()).type != "connection_init":
                    if message.type == "subscribe":
                        raise _Over(CLOSE_UNAUTHORIZED, "Unauthorized: send connection_init first")
                    await self._answer(message)
        except TimeoutError:
            raise _Over(CLOSE_INIT_TIMEOUT, "Connection initialisation timeout") from None
        key = _authorization(message)
        if key is not None:
            self._headers[b"authorization"] = key

    async def _listen(self, grant: Grant) -> None:
        """Handle the client's messages, until it leaves or violates the protocol."""
        try:
            while True:
                message = await self._next()
                if message.type == "subscribe":
                    await self._subscribe(message.operation, message.payload, grant)
                elif message.type == "complete":
                    task = self._tasks.pop(message.operation, None)
                    if task is not None:
                        task.cancel()
                elif message.type == "connection_init":
                    raise _Over(CLOSE_SECOND_INIT, "Too many initialisation requests")
                else:
                    await self._answer(message)
        except Exception as error:
            self.end(error)

    async def _next(self) -> _Message:
        received = await self._receive()
        if received["type"] == "websocket.disconnect":
            raise _Gone
        text = received.get("text")
        if text is None:
            raise _Over(CLOSE_BAD_REQUEST, "Invalid message: not text")
        try:
            return _messages.decode(text)
        except RecursionError:
            return _shallow(text)
        except msgspec.DecodeError as error:
            raise _Over(CLOSE_BAD_REQUEST, f"Invalid message: {error}") from None

    async def _answer(self, message: _Message) -> None:
        if message.type in ("ping", "pong"):
            payload = bytes(message.payload)
            if payload != _NULL and not payload.startswith(b"{"):
                raise _Over(CLOSE_BAD_REQUEST, f"Invalid message: the payload of {message.type} is not an object")
            if message.type == "ping":
                # Unchanged: clients measure latency with it.
                more = b"" if payload == _NULL else b',"payload":' + payload
                await self.write([b'{"type":"pong"%b}' % more])
        else:
            raise _Over(CLOSE_BAD_REQUEST, f"Invalid message: {message.type[:40]!r} is not a type of the protocol")

    async def _subscribe(self, name: str, payload: msgspec.Raw, grant: Grant) -> None:
        if name in self._tasks:
            raise _Over(CLOSE_ID_TAKEN, f"Subscriber for {name} already exists")
        try:
            request = _request(payload)
            most = self._route.operations_max
            if len(self._tasks) >= most:
                raise refusal(LIMIT_EXCEEDED, f"a connection has at most {most} concurrent operations")
        except (InvalidJson, RequestRefused) as error:
            await self._tell(name, error)
        except RequestError as error:
            raise _Over(CLOSE_BAD_REQUEST, f"Invalid message: {error.message}") from None
        else:
            self._tasks[name] = asyncio.create_task(self._operate(name, request, grant))

    async def _operate(self, name: str, request: Request, grant: Grant) -> None:
        head = b'{"id":' + _encode(name) + b',"type":"next","payload":'

        async def send(payloads: Sequence[bytes]) -> None:
            await self.write([b"%b%b}" % (head, encoded) for encoded in payloads])

        try:
            try:
                await self._route.operations.run(request, grant, send, self.end)
            except TidelockError as error:
                await self._tell(name, error)
            else:
                # Immediately, because the client may reuse the ID as soon as it knows.
                del self._tasks[name]
                await self.write([_encode({"id": name, "type": "complete"})])
        except Exception as error:
            self.end(error)

    async def _tell(self, name: str, error: TidelockError) -> None:
        """Report why an operation has ended."""
        if isinstance(error, Overflowed):
            raise error
        outages.note(error)
        self._tasks.pop(name, None)
        await self.write([_encode({"id": name, "type": "error", "payload": errors_of(error)})])


def _shallow(text: str) -> _Message:
    """A message without its payload, which is nested too deeply: the client's other operations need not suffer."""
    try:
        message = _messages.decode(cut_below(text.encode(), 1))
    except (msgspec.DecodeError, TidelockError):
        raise _Over(CLOSE_BAD_REQUEST, "Invalid message: nested too deeply") from None
    message.payload = _TOO_DEEP
    return message


def _request(payload: msgspec.Raw) -> Request:
    if payload is _TOO_DEEP:
        raise InvalidJson("the payload is nested too deeply")
    return read_request(bytes(payload))


def _authorization(message: _Message) -> bytes | None:
    """The key in `connection_init`, if there is one: among its members, or among `headers` as Hasura's clients send."""
    try:
        sent = _parameters.decode(message.payload)
    except (msgspec.DecodeError, RecursionError):
        raise _Over(CLOSE_BAD_REQUEST, "Invalid message: the payload of connection_init is not an object") from None
    headers = next((value for name, value in (sent or {}).items() if name.lower() == "headers"), None)
    for members in (sent or {}, headers if isinstance(headers, dict) else {}):
        for name, value in members.items():
            if name.lower() == "authorization" and isinstance(value, str):
                return value.encode()
    return None


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
