"""The listener: an application on a socket, from the first connection it takes to the last answer it gives."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, ClassVar

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import OPEN

from tidelock.errors import SettingsError
from tidelock.instants import SECOND
from tidelock.ops.clients import CLOSE_SLOW
from tidelock.ops.problems import problem
from tidelock.settings import Settings

# How long answers under way may take when the server stops.
_GRACE_S = 10
_GOODBYE_S = 2.0
# How long one that is far behind may take to read up to the good-bye, and how many such are waited for.
_LEAVING_S, _LEAVING_MAX = 60.0, 100
_BACKLOG = 2048
# Keep-alives that a client may let pass without reading what it was sent.
_STALLS = 2
# Clients have nothing to say on a WebSocket beyond a subscription.
_FRAME_BYTES_MAX = 2**20
_FINAL_TEXT = 0x81
# What the system takes for a client beyond what is under way to it.
_UNSENT_BYTES_MAX = 128 * 1024


class Server(uvicorn.Server):
    """A server that leaves signals to the composition and tells when it accepts."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()


class _Protocol(HttpToolsProtocol):
    """HTTP/1.1, with the one error the application never sees in the form of all the others.

    A client that reads nothing of its answer for long is cut off: nobody else would notice, and the answer waits.
    """

    def __init__(self, *given: Any, stall_s: float, **named: Any) -> None:
        super().__init__(*given, **named)
        self._stall_s = stall_s
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Also for WebSockets, which begin so.
        _take_little(transport)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look_again()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read_again()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._read_again()

    def _look_again(self) -> None:
        self._stalled = self.loop.call_later(self._stall_s, self._look, self.transport.get_write_buffer_size())

    def _look(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:
            self._look_again()
        else:
            self.transport.abort()

    def _read_again(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def send_400_response(self, msg: str) -> None:
        response = problem(400, "invalid_request", "this is not an HTTP/1.1 request")
        body = bytes(response.body)
        head = [b"HTTP/1.1 400 Bad Request", b"connection: close"]
        head += [name + b": " + value for name, value in response.raw_headers]
        self.transport.write(b"\r\n".join([*head, b"", body]))
        self.transport.close()

    def shutdown(self) -> None:
        super().shutdown()
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            # An answer without an end: the server would wait for it in vain. Its client comes back.
            self.transport.close()
            self.loop.call_later(_GOODBYE_S, self.transport.abort)


class _WebSocket(WebSocketsSansIOProtocol):
    """WebSocket, with an end: what a client does not take within a while of the good-bye is thrown away.

    One more message than ASGI has: `websocket.send` with `texts`, several text frames at once, as bytes. They are
    written in one go, which for small ones takes a fraction of sending each by itself.
    """

    #: those who were said good-bye to and may still read it, with what ends that, from old to new
    _leaving: ClassVar[dict[_WebSocket, asyncio.TimerHandle]] = {}

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        # What the client says meanwhile is read and dropped. Left unread it would cut off what is still to be sent.
        self.close_timeout = _LEAVING_S

    async def send(self, message: Any) -> None:
        texts = message.get("texts")
        if texts is not None:
            await self._send_texts(texts)
            return
        if message["type"] == "websocket.close":
            if self.close_sent:
                return
            # Good-bye is said at once, also to a client that does not read what was sent before.
            self.writable.set()
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            # Refused with an HTTP answer, which is an answer: no error for the log.
            self.handshake_complete = True

    async def _send_texts(self, texts: Sequence[bytes]) -> None:
        if not self.writable.is_set():
            await self.writable.wait()
        if self.disconnected or self.close_sent or self.conn.state is not OPEN:
            raise ClientDisconnected
        parts: list[bytes] = []
        for text in texts:
            parts += (_frame_head(len(text)), text)
        self.transport.write(b"".join(parts))

    async def run_asgi(self) -> None:
        await super().run_asgi()
        if self.disconnected:
            return
        # Closing waits until everything was read that was written before. A client that was too slow must come to the
        # code that says so; one that never reads again must not stay for ever.
        self._leaving[self] = self.loop.call_later(_LEAVING_S, self.transport.abort)
        if len(self._leaving) > _LEAVING_MAX:
            oldest = next(iter(self._leaving))
            self._leaving.pop(oldest).cancel()
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if (timer := self._leaving.pop(self, None)) is not None:
            timer.cancel()

    def keepalive_timeout(self) -> None:
        """No answer to a ping. If the client ever reads that, it has a code after which it comes back."""
        self.pong_timer = self.pending_ping_payload = None
        if self.close_sent or self.transport.is_closing():
            return
        self.conn.send_close(CLOSE_SLOW, "pings were not answered")
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.close)
        self.queue.put_nowait({"type": "websocket.disconnect", "code": CLOSE_SLOW})
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()

    def shutdown(self) -> None:
        super().shutdown()
        self.loop.call_later(_GOODBYE_S, self.transport.abort)


def _take_little(transport: asyncio.Transport) -> None:
    """Keep the system from taking megabytes for a client that does not read.

    What it does not take waits here, where it is bounded, and where what becomes of a row meanwhile takes the place of
    what was to be sent.
    """
    connection = transport.get_extra_info("socket")
    if connection is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES_MAX)


def _frame_head(size: int) -> bytes:
    """What stands before a whole text of so many bytes (RFC 6455, 5.2): final, text, no mask."""
    if size < 126:
        return bytes((_FINAL_TEXT, size))
    if size < 2**16:
        return bytes((_FINAL_TEXT, 126, size >> 8, size & 0xFF))
    return bytes((_FINAL_TEXT, 127)) + size.to_bytes(8)


@asynccontextmanager
async def listen(app: ASGIApp, listening: socket.socket, settings: Settings) -> AsyncIterator[asyncio.Task[None]]:
    """Serve while the block runs; it begins when connections are taken. Gives the task that serves.

    At the end no new request is taken, answers under way are given and WebSocket clients are sent away (1012).
    """
    server = Server(_config(app, settings))
    serving = asyncio.create_task(server.serve([listening]), name="server")
    accepting = asyncio.create_task(server.accepting.wait())
    try:
        await asyncio.wait([serving, accepting], return_when=asyncio.FIRST_COMPLETED)
        yield serving
    finally:
        accepting.cancel()
        server.should_exit = True
        await serving


def bind(host: str, port: int) -> socket.socket:
    """A socket on host and port, 0 being any free one. Raises SettingsError when it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise SettingsError(f"cannot listen on {host}: {error.strerror or error}", field="host") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        message = f"cannot listen on {host} port {port}: {error.strerror or error}; choose another with --port"
        raise SettingsError(message, field="port") from None
    return listening


def url_of(listening: socket.socket) -> str:
    """Where a browser on this machine finds it."""
    host, port = listening.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def _config(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    # Its own messages ("started", "shutting down") say nothing that the command line does not say better.
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger().level))
    return uvicorn.Config(
        app,
        http=partial(_Protocol, stall_s=_STALLS * settings.live_keep_alive / SECOND),  # type: ignore[arg-type]
        ws=_WebSocket,
        ws_max_size=_FRAME_BYTES_MAX,
        ws_ping_interval=settings.ws_ping_s,
        ws_ping_timeout=settings.ws_ping_s,
        # Events are small and encoded once for all; compressing would be done for each client.
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
