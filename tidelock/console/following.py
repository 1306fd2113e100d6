"""Following: a subscription of the API, in this process and with the visitor's key, so that its tenant holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Scope

# Parts of the answer that wait here. Beyond them the API waits, and keeps what it has to tell in a queue of its own.
_PARTS_MAX = 64
_END = b"\n\n"
# How soon a silent one ends whose visitor has signed out.
_LOOK_S = 1.0


class Refused(Exception):
    """The API does not follow this."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"the server answered {status}")
        self.status = status
        self.body = body


async def follow(
    app: ASGIApp, headers: Mapping[str, str], query: str, allowed: Callable[[], bool]
) -> AsyncGenerator[dict[str, Any]]:
    """What a subscription gives, payload by payload, until it is closed, the API ends it or it is no longer allowed.

    Raises Refused.
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
        # What failed in there was answered, and told to the log.
        await asyncio.gather(task, return_exceptions=True)


class _Exchange:
    """One request and its answer, as the server's interface has them."""

    def __init__(self, body: bytes, allowed: Callable[[], bool]) -> None:
        self._body: bytes | None = body
        self._allowed = allowed
        #: nobody follows any more
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
            raise Refused(self._status, rest)

    async def _next(self) -> bytes | None:
        """The next part; None when the answer is whole, or nobody may have more of it."""
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
