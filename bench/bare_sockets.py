"""The limit of fan-out: a bare loop that sends what was encoded beforehand, over WebSockets as Tidelock has them.

Run by itself (`python -m bench.bare_sockets`), so that its processor time is its own. It prints its port.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import msgspec
import uvloop
from starlette.types import ASGIApp, Receive, Scope, Send

from tidelock.http.listener import bind, listen
from tidelock.settings import Settings


class Order(msgspec.Struct):
    """What is to be sent to every subscriber: texts, in turn."""

    texts: list[str]


class BareSockets:
    """Takes everybody, listens to nobody, and sends what it is ordered to by `POST /send`."""

    def __init__(self) -> None:
        self._subscribers: set[Send] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await answer_order(receive, send, self._send)
            return
        await receive()
        await send({"type": "websocket.accept", "subprotocol": "graphql-transport-ws"})
        self._subscribers.add(send)
        try:
            while (await receive())["type"] != "websocket.disconnect":
                pass
        finally:
            self._subscribers.discard(send)

    async def _send(self, order: Order) -> None:
        for text in order.texts:
            for send in list(self._subscribers):
                await send({"type": "websocket.send", "text": text})
            # Sending to those who read never waits: let the loop have its turn.
            await asyncio.sleep(0)


async def answer_order(receive: Receive, send: Send, carry_out: Callable[[Order], Awaitable[None]]) -> None:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    await carry_out(msgspec.json.decode(body, type=Order))
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


def serve(app: ASGIApp) -> None:
    """Until standard input ends."""
    uvloop.run(_serve(app))


async def _serve(app: ASGIApp) -> None:
    with bind("127.0.0.1", 0) as listening:
        async with listen(app, listening, Settings()):
            print(listening.getsockname()[1], flush=True)
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    serve(BareSockets())
