"""Subscribers that count what they get, by bare sockets: on a small machine a real client would take the processor time
that is to be measured."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Sequence
from typing import cast

import msgspec

from tidelock.errors import Difference

_HANDSHAKE_END = b"\r\n\r\n"
# What an operation sends; everything else is about the connection.
_NEXT = b'"next"'
_LOOKED_AT = 100
_CLOSE = 0x88


class Tally:
    """What all subscribers got together."""

    def __init__(self) -> None:
        self.open = self.messages = self.bytes = 0
        #: the last one
        self.message = b""
        self._changed = asyncio.Event()
        self._wrong: str | None = None

    async def until(self, *, opened: int = 0, messages: int = 0, seconds: float) -> None:
        """Raises Difference when it does not come to so much in time."""
        try:
            async with asyncio.timeout(seconds):
                while self.open < opened or self.messages < messages:
                    self._changed.clear()
                    await self._changed.wait()
                    if self._wrong is not None:
                        raise Difference(self._wrong)
        except TimeoutError:
            told = f"{self.open} of {opened} subscribers, {self.messages} of {messages} messages"
            raise Difference(f"after {seconds:.0f} s there are {told}") from None

    def changed(self) -> None:
        self._changed.set()

    def fail(self, message: str) -> None:
        self._wrong = message
        self._changed.set()


class Subscriber(asyncio.Protocol):
    """One connection with one subscription."""

    def __init__(self, tally: Tally, host: str, path: str, document: str) -> None:
        self._tally = tally
        self._head = "\r\n".join(
            [
                f"GET {path} HTTP/1.1",
                f"Host: {host}",
                "Upgrade: websocket",
                "Connection: Upgrade",
                f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
                "Sec-WebSocket-Version: 13",
                "Sec-WebSocket-Protocol: graphql-transport-ws",
                "",
                "",
            ]
        )
        self._said: list[dict[str, object]] = [
            {"type": "connection_init"},
            {"id": "8d4ab7a0-7f5f-4c19-a3ac-5e1d6e0e8f00", "type": "subscribe", "payload": {"query": document}},
        ]
        self._buffer = b""
        self._opened = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._head.encode())

    def connection_lost(self, exc: Exception | None) -> None:
        self._tally.open -= self._opened

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        tally = self._tally
        tally.bytes += len(data)
        buffer = self._buffer + data if self._buffer else data
        if not self._opened:
            head, end, buffer = buffer.partition(_HANDSHAKE_END)
            if not end:
                self._buffer = head
                return
            if b" 101 " not in head.partition(b"\r\n")[0]:
                tally.fail(f"the server did not let a subscriber in: {head[:300].decode(errors='replace')}")
            self._opened = True
            tally.open += 1
            # One after another, as the protocol has it, would only be slower.
            self._transport.write(b"".join(map(_masked, self._said)))
        self._buffer = self._count(buffer)
        tally.changed()

    def _count(self, buffer: bytes) -> bytes:
        """Count the whole frames, and give the rest."""
        position, length = 0, len(buffer)
        while length - position >= 2:
            size, start = buffer[position + 1], position + 2
            if size == 126:
                size, start = int.from_bytes(buffer[position + 2 : position + 4]), position + 4
            elif size == 127:
                size, start = int.from_bytes(buffer[position + 2 : position + 10]), position + 10
            if start + size > length:
                break
            if buffer[position] == _CLOSE:
                self._tally.fail(f"the server closed: {buffer[start : start + size]!r}")
            elif buffer.find(_NEXT, start, start + _LOOKED_AT) >= 0:
                self._tally.messages += 1
                self._tally.message = buffer[start : start + size]
            position = start + size
        return buffer[position:]


def _masked(message: dict[str, object]) -> bytes:
    """A frame as clients send it, with a mask that changes nothing."""
    text = msgspec.json.encode(message)
    return b"\x81" + bytes((0x80 | 126,)) + len(text).to_bytes(2) + bytes(4) + text


async def subscribe(
    tally: Tally, host: str, port: int, count: int, document: str, *, path: str = "/graphql"
) -> Sequence[Subscriber]:
    """So many subscribers, connected."""
    loop = asyncio.get_running_loop()
    made = []
    for _ in range(count):
        _, subscriber = await loop.create_connection(lambda: Subscriber(tally, host, path, document), host, port)
        made.append(subscriber)
    await tally.until(opened=count, seconds=60)
    return made
