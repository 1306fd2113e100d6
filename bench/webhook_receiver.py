"""A receiver of webhooks that costs next to nothing: it answers 200 at once, or to `/dead` never.

Run by itself (`python -m bench.webhook_receiver`), so that its processor time is its own. It prints its
port, and when its input ends how long each webhook took from the moment in its data (`sent_ns`, monotonic), in
nanoseconds.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Callable
from typing import cast

import msgspec
import uvloop

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_SENT = re.compile(rb'"sent_ns":(\d+)')
_HEAD_END = b"\r\n\r\n"


class Receiving(asyncio.Protocol):
    """One connection, over which requests come one after another; `take` gets each body and when it came."""

    def __init__(self, take: Callable[[bytes, int], None]) -> None:
        self._take = take
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is one too, but not by class.
        self._transport = cast(asyncio.Transport, transport)

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        self._buffer += data
        while (end := self._buffer.find(_HEAD_END)) >= 0:
            length = _LENGTH.search(self._buffer, 0, end)
            whole = end + len(_HEAD_END) + int(length[1] if length else 0)
            if len(self._buffer) < whole:
                return
            request, self._buffer = self._buffer[:whole], self._buffer[whole:]
            if request.startswith(b"POST /dead"):
                continue
            self._take(request[end + len(_HEAD_END) :], now_ns)
            self._transport.write(_ANSWER)


async def receive() -> None:
    loop, taken_ns = asyncio.get_running_loop(), list[int]()

    def take(body: bytes, now_ns: int) -> None:
        if sent := _SENT.search(body):
            taken_ns.append(now_ns - int(sent[1]))

    server = await loop.create_server(lambda: Receiving(take), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()
    print(msgspec.json.encode(taken_ns).decode(), flush=True)


if __name__ == "__main__":
    uvloop.run(receive())
