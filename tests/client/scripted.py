"""A server that answers as it was told to, one answer after the other: what a real one says only when it is unwell."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    media_type: str
    text: str

    def encoded(self) -> bytes:
        body = self.text.encode()
        head = f"HTTP/1.1 {self.status} Said\r\ncontent-type: {self.media_type}\r\ncontent-length: {len(body)}\r\n"
        return f"{head}connection: close\r\n\r\n".encode() + body


def says(said: Any, status: int = 200) -> Answer:
    return Answer(status, "application/json", said if isinstance(said, str) else json.dumps(said))


def page(status: int) -> Answer:
    """As a proxy answers for a server that is away."""
    return Answer(status, "text/html", "<html><h1>Bad gateway</h1></html>")


def streams(*results: Any) -> Answer:
    """Results of a subscription by server-sent events, and its end."""
    events = [f"event: next\ndata: {json.dumps(result)}\n\n" for result in results]
    return Answer(200, "text/event-stream", ":\n\n" + "".join(events) + "event: complete\ndata:\n\n")


@asynccontextmanager
async def scripted(answers: Sequence[Answer]) -> AsyncIterator[tuple[str, list[Any]]]:
    """A URL, and the bodies of the requests that came so far, of JSON. Who asks for more than there is gets a 404."""
    asked: list[Any] = []
    remaining = iter(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(_END)).decode().lower()
        sizes = [line.partition(":")[2] for line in head.split("\r\n") if line.startswith("content-length:")]
        body = await reader.readexactly(int(sizes[0]) if sizes else 0)
        asked.append(json.loads(body) if body else None)
        writer.write(next(remaining, says({}, 404)).encoded())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()
