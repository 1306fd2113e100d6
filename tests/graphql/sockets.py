"""A client of graphql-transport-ws, word by word, so that it can also say what no client should."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import websockets
from websockets.asyncio.client import ClientConnection
from websockets.typing import Subprotocol

from tests.budgets import HANG_S

PROTOCOL = "graphql-transport-ws"


class Socket:
    """One connection."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def say(self, type_: str, **members: Any) -> None:
        await self.connection.send(json.dumps({"type": type_, **members}))

    async def hear(self, seconds: float = HANG_S) -> Any:
        """The next message that is no ping."""
        async with asyncio.timeout(seconds):
            while (message := json.loads(await self.connection.recv()))["type"] == "ping":
                pass
            return message

    async def init(self, payload: Mapping[str, Any] | None = None) -> None:
        await self.say("connection_init", **({} if payload is None else {"payload": payload}))
        assert await self.hear() == {"type": "connection_ack"}

    async def subscribe(self, query: str, name: str = "1", **variables: Any) -> None:
        await self.say("subscribe", id=name, payload={"query": query, "variables": variables})

    async def next(self, name: str = "1", seconds: float = HANG_S) -> Any:
        """The data of the next message, which must be of this operation."""
        message = await self.hear(seconds)
        assert (message["type"], message["id"]) == ("next", name), message
        return message["payload"]["data"]

    async def error(self, name: str = "1") -> Any:
        """The one error that the operation ends with."""
        message = await self.hear()
        assert (message["type"], message["id"]) == ("error", name), message
        (error,) = message["payload"]
        return error

    async def silent(self, seconds: float = 0.3) -> bool:
        try:
            message = await self.hear(seconds)
        except TimeoutError:
            return True
        raise AssertionError(message)

    async def closing(self, seconds: float = HANG_S) -> tuple[int | None, str | None]:
        """Code and reason of the server's close."""
        await asyncio.wait_for(self.connection.wait_closed(), seconds)
        return self.connection.close_code, self.connection.close_reason


@asynccontextmanager
async def opened(
    url: str, *, headers: Mapping[str, str] | None = None, protocols: tuple[str, ...] = (PROTOCOL,), **options: Any
) -> AsyncIterator[Socket]:
    """A connection to a server's `/graphql`, before anything was said."""
    address = url.replace("http", "ws") + "/graphql"
    subprotocols = [Subprotocol(name) for name in protocols] or None
    async with websockets.connect(
        address, subprotocols=subprotocols, additional_headers=headers, **options
    ) as connection:
        yield Socket(connection)


@asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[Socket]:
    """A connection that was let in."""
    async with opened(url, **options) as socket:
        await socket.init()
        yield socket
