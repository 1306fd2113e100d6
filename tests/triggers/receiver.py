"""A receiver of webhooks on loopback that behaves as it is told: it answers, refuses, hangs, cuts the line.

It is no web framework on purpose: what goes wrong with real receivers goes wrong below HTTP.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Request:
    path: str
    headers: Mapping[str, str]
    body: bytes
    at_s: float
    connection: int

    @property
    def payload(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: bytes = b"ok"
    headers: Mapping[str, str] = field(default_factory=dict)


#: never answers, until the other side hangs up
HANG = "hang"
#: closes the connection without a word
CLOSE = "close"
#: closes it in the middle of the answer's head
CUT = "cut"
#: answers, then closes before the body is complete
SHORT = "short"
#: answers what is not HTTP
GARBAGE = "garbage"

Behaviour = Callable[[Request], Reply | str | Awaitable[Reply | str]]


class Receiver:
    """What came, in order, and what it answered."""

    def __init__(self, behave: Behaviour | None = None) -> None:
        self.behave: Behaviour = behave or (lambda _: Reply())
        self.requests: list[Request] = []
        #: those that were answered 2xx, in the order of the answers
        self.accepted: list[Request] = []
        self.connections = 0
        self.url = ""
        self.news = asyncio.Event()

    async def until(self, true: Callable[[], object], seconds: float = 120) -> None:
        """Wait until something holds that depends on what came."""
        async with asyncio.timeout(seconds):
            while not true():
                self.news.clear()
                try:
                    async with asyncio.timeout(0.02):
                        await self.news.wait()
                except TimeoutError:
                    continue

    def ids(self) -> list[str]:
        return [request.id for request in self.accepted]

    def by_key(self) -> dict[str, list[str]]:
        """Ids as they were accepted, without repeats, by the key in the data."""
        found: dict[str, list[str]] = {}
        for request in self.accepted:
            ids = found.setdefault(str(request.payload["data"]["id"]), [])
            if request.id not in ids:
                ids.append(request.id)
        return found

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        try:
            while head := await _head(reader):
                path, headers = head
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                request = Request(path, headers, body, time.monotonic(), number)
                self.requests.append(request)
                self.news.set()
                if not await self._answer(request, reader, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    async def _answer(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        reply = self.behave(request)
        if isinstance(reply, Awaitable):
            reply = await reply
        match reply:
            case Reply():
                if 200 <= reply.status < 300:
                    self.accepted.append(request)
                writer.write(_encoded(reply))
                await writer.drain()
                self.news.set()
                return reply.headers.get("connection") != "close"
            case "hang":
                await reader.read()
            case "cut":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Le")
            case "short":
                self.accepted.append(request)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nnot all")
                self.news.set()
            case "garbage":
                writer.write(b"\x00\xff SSH-2.0 what?\r\n\r\n")
        return False


async def _head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]] | None:
    line = await reader.readline()
    if not line:
        return None
    headers = {}
    while field_line := (await reader.readline()).decode("latin-1").strip():
        name, _, value = field_line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return line.split()[1].decode(), headers


def _encoded(reply: Reply) -> bytes:
    headers = {"Content-Length": str(len(reply.body)), **reply.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {reply.status} x\r\n{lines}\r\n".encode() + reply.body


@asynccontextmanager
async def receiving(behave: Behaviour | None = None, port: int = 0) -> AsyncIterator[Receiver]:
    """A receiver that listens, for the time of the block."""
    receiver = Receiver(behave)
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(receiver.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", port)
    receiver.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    try:
        yield receiver
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
