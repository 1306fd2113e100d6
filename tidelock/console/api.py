"""The API as pages call it: in this process, with the visitor's key, and with errors that can be shown.

Requests, subscriptions, and the tables that can be followed. The tenant of a subscription holds here as anywhere: it is
taken by the visitor's key, past the sockets only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
from starlette.types import ASGIApp, Message, Scope

from tidelock.console import exact
from tidelock.http.csvpages import CSV
from tidelock.http.problems import JSON

_TIMEOUT_S = 30.0

# Pages ask every few seconds, which is not worth a log line.
logging.getLogger("httpx").setLevel(logging.WARNING)

# Chunks of the response that wait here. Beyond them the API waits and queues.
_PARTS_MAX = 64
_END = b"\n\n"
# How soon an idle subscription ends once its visitor has signed out.
_LOOK_S = 1.0

_TABLES = "{ __schema { subscriptionType { fields { name } } } }"
_COLUMNS = "query($name: String!) { __type(name: $name) { fields { name description type { name ofType { name } } } } }"


class ApiError(Exception):
    """An error response of the API."""

    def __init__(self, status: int, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.field = field


class Api:
    """The API for one visitor."""

    def __init__(self, app: ASGIApp, key: Callable[[], str | None]) -> None:
        """`key`: returns the visitor's current key; None once they have signed out, which the API rejects."""
        self._app = app
        self._key = key
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        # The host name that a server without keys accepts.
        self._client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")

    async def get(self, path: str, **parameters: object) -> Any:
        """The response body; parameters that are None are left out. Raises ApiError."""
        return await self.send("GET", path, **parameters)

    async def exact(self, path: str, **parameters: object) -> Any:
        """Like `get`, with numbers that keep their digits. Raises ApiError."""
        content = await self._asked("GET", path, None, parameters)
        return exact.read(content) if content else None

    async def send(self, method: str, path: str, body: object = None, **parameters: object) -> Any:
        """Send `body` as JSON. Returns None for a response without a body."""
        content = await self._asked(method, path, body, parameters)
        return msgspec.json.decode(content) if content else None

    async def csv(self, path: str, **parameters: object) -> bytes:
        """The response as CSV. Raises ApiError."""
        return await self._asked("GET", path, None, parameters, accept=CSV)

    async def _asked(
        self,
        method: str,
        path: str,
        body: object,
        parameters: Mapping[str, object],
        *,
        accept: str = JSON,
    ) -> bytes:
        given = {name: str(value) for name, value in parameters.items() if value is not None}
        content = None if body is None else msgspec.json.encode(body)
        headers = {"accept": accept, **_authorization(self._key())}
        if body is not None:
            headers["content-type"] = "application/json"
        try:
            # Our own limit: the client's apply to connections, and there is none here.
            async with asyncio.timeout(_TIMEOUT_S):
                response = await self._client.request(method, path, params=given, content=content, headers=headers)
        except TimeoutError:
            raise ApiError(503, "unavailable", f"the server did not respond within {_TIMEOUT_S:.0f} s") from None
        except httpx.HTTPError as error:
            raise ApiError(503, "unavailable", f"the server does not respond: {error}") from None
        if response.is_success:
            return response.content
        raise _error(response.status_code, response.content)

    async def follow(self, subscription: str) -> AsyncGenerator[Any]:
        """The payloads of a GraphQL subscription, until the visitor leaves or signs out. Raises ApiError."""
        key = self._key()

        def signed_in() -> bool:
            return self._key() == key

        try:
            async with aclosing(follow(self._app, _authorization(key), subscription, signed_in)) as payloads:
                async for payload in payloads:
                    if payload.get("errors"):
                        told = payload["errors"][0]
                        raise ApiError(200, told.get("extensions", {}).get("code", "unknown"), told["message"])
                    yield payload["data"]
        except FollowRefused as refused:
            raise _error(refused.status, refused.body) from None
        if not signed_in():
            raise ApiError(401, "unauthorized", "you have signed out")


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a table, in their order."""

    #: column -> its type in GraphQL
    types: Mapping[str, str]
    #: column -> its type as it was declared
    declared: Mapping[str, str]


async def live_tables(api: Api) -> list[str]:
    """Tables whose changes are recorded, so that they support subscriptions and triggers."""
    found = await query(api, _TABLES)
    fields = (found["__schema"]["subscriptionType"] or {"fields": []})["fields"]
    return [field["name"] for field in fields]


async def columns_of(api: Api, table: str) -> Columns:
    """The columns of a table; empty if there is no such table."""
    found = (await query(api, _COLUMNS, {"name": table}))["__type"] or {"fields": []}
    fields = found["fields"] or []
    types = {field["name"]: field["type"]["name"] or field["type"]["ofType"]["name"] for field in fields}
    return Columns(types, {field["name"]: field["description"] or "" for field in fields})


async def query(api: Api, text: str, variables: Mapping[str, Any] | None = None) -> Any:
    """The data of a GraphQL query. Raises ApiError."""
    answer = await api.send("POST", "/graphql", {"query": text, "variables": variables or {}})
    if answer.get("errors"):
        error = answer["errors"][0]
        raise ApiError(200, error.get("extensions", {}).get("code", "unknown"), error["message"])
    return answer["data"]


def _authorization(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}


def _error(status: int, body: bytes) -> ApiError:
    try:
        told = msgspec.json.decode(body)["error"]
        return ApiError(status, told["code"], told["message"], told.get("field"))
    except (msgspec.DecodeError, KeyError, TypeError):
        return ApiError(
            status, "unknown", f"the server responded with HTTP {status} and no readable error; see its log"
        )


class FollowRefused(Exception):
    """The API refused the subscription."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"the server responded with HTTP {status} and no readable error; see its log")
        self.status = status
        self.body = body


async def follow(
    app: ASGIApp, headers: Mapping[str, str], query: str, allowed: Callable[[], bool]
) -> AsyncGenerator[dict[str, Any]]:
    """The payloads of a subscription, until it is closed, the API ends it or it is no longer allowed.

    Raises FollowRefused.
    """
    exchange = _Exchange(msgspec.json.encode({"query": query}), allowed)
    task = asyncio.ensure_future(app(_scope(headers), exchange.receive, exchange.send))
    task.add_done_callback(lambda _: exchange.end())
    try:
        async for payload in exchange.payloads():
            yield payload
    finally:
        exchange.gone.set()
        task.cancel()
        # A failure in there was answered and logged.
        await asyncio.gather(task, return_exceptions=True)


class _Exchange:
    """One request and its response, as ASGI messages."""

    def __init__(self, body: bytes, allowed: Callable[[], bool]) -> None:
        self._body: bytes | None = body
        self._allowed = allowed
        #: set when the subscriber has left
        self.gone = asyncio.Event()
        self._status = 200
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(_PARTS_MAX)
        self._ended = asyncio.Event()

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
        elif message.get("body"):
            await self._parts.put(message["body"])

    def end(self) -> None:
        self._ended.set()

    async def payloads(self) -> AsyncGenerator[dict[str, Any]]:
        rest = b""
        while (part := await self._next()) is not None:
            rest += part
            if self._status == 200:
                *events, rest = rest.split(_END)
                for event in events:
                    if event.startswith(b"event: next"):
                        yield msgspec.json.decode(event.partition(b"data: ")[2])
        if self._status != 200:
            raise FollowRefused(self._status, rest)

    async def _next(self) -> bytes | None:
        """The next chunk; None at the end of the response, or once the visitor may not read on."""
        while self._allowed():
            if not self._parts.empty():
                return self._parts.get_nowait()
            if self._ended.is_set():
                return None
            waits = [asyncio.ensure_future(self._parts.get()), asyncio.ensure_future(self._ended.wait())]
            try:
                await asyncio.wait(waits, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            if waits[0].done() and not waits[0].cancelled() and self._allowed():
                return waits[0].result()  # type: ignore[return-value]
        return None


def _scope(headers: Mapping[str, str]) -> Scope:
    given = {
        "host": "127.0.0.1",
        "content-type": "application/json",
        "accept": "text/event-stream",
        **headers,
    }
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/graphql",
        "raw_path": b"/graphql",
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 80),
    }
