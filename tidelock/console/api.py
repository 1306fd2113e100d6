"""The API as pages call it: in this process, with the visitor's key, and with errors that can be shown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

import httpx
import msgspec
from starlette.types import ASGIApp

from tidelock.console import exact
from tidelock.console.following import Refused, follow

_TIMEOUT_S = 30.0

# Pages ask every few seconds, and nobody needs to be told.
logging.getLogger("httpx").setLevel(logging.WARNING)


class ApiError(Exception):
    """What the API answered where it did not do what was asked."""

    def __init__(self, status: int, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.field = field


class Api:
    """The API for one visitor."""

    def __init__(self, app: ASGIApp, key: Callable[[], str | None]) -> None:
        """`key`: that of the visitor now. Once they have signed out it gives None, which the API refuses."""
        self._app = app
        self._key = key
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        # The name of the host is what a server without keys answers to.
        self._client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")

    async def get(self, path: str, **parameters: object) -> Any:
        """The answer; parameters that are None are left out. Raises ApiError."""
        return await self.send("GET", path, **parameters)

    async def exact(self, path: str, **parameters: object) -> Any:
        """As `get`, with numbers that keep their digits. Raises ApiError."""
        content = await self._asked("GET", path, None, parameters)
        return exact.read(content) if content else None

    async def send(self, method: str, path: str, body: object = None, **parameters: object) -> Any:
        """`body` is sent as JSON. None for an answer without a body."""
        content = await self._asked(method, path, body, parameters)
        return msgspec.json.decode(content) if content else None

    async def _asked(self, method: str, path: str, body: object, parameters: Mapping[str, object]) -> bytes:
        given = {name: str(value) for name, value in parameters.items() if value is not None}
        content = None if body is None else msgspec.json.encode(body)
        headers = _authorization(self._key()) | ({} if body is None else {"content-type": "application/json"})
        try:
            # A limit of our own: the client's are for connections, and here is none.
            async with asyncio.timeout(_TIMEOUT_S):
                response = await self._client.request(method, path, params=given, content=content, headers=headers)
        except TimeoutError:
            raise ApiError(503, "unavailable", f"the server has not answered in {_TIMEOUT_S:.0f} s") from None
        except httpx.HTTPError as error:
            raise ApiError(503, "unavailable", f"the server does not answer: {error}") from None
        if response.is_success:
            return response.content
        raise _error(response.status_code, response.content)

    async def follow(self, subscription: str) -> AsyncGenerator[Any]:
        """What a GraphQL subscription gives, until one has enough or signs out. Raises ApiError."""
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
        except Refused as refused:
            raise _error(refused.status, refused.body) from None
        if not signed_in():
            raise ApiError(401, "unauthorized", "you have signed out")


def _authorization(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}


def _error(status: int, body: bytes) -> ApiError:
    try:
        told = msgspec.json.decode(body)["error"]
        return ApiError(status, told["code"], told["message"], told.get("field"))
    except (msgspec.DecodeError, KeyError, TypeError):
        return ApiError(status, "unknown", f"the server answered {status}")
