"""The listener: an application on a socket, from the first connection it accepts to the last response it sends."""

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
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request
from websockets.protocol import OPEN

from tidelock.errors import SettingsError
from tidelock.http.clients import CLOSE_SLOW, TRUST
from tidelock.http.connection import GOODBYE_S, HttpConnection
from tidelock.http.gate import Gate, GateLimits, Waiting, raise_file_limit
from tidelock.instants import SECOND
from tidelock.settings import Settings

# How long responses in progress may take when the server stops.
_GRACE_S = 10
# How long a client that lags far may take to read up to the close, and how many such clients are waited for.
_LEAVING_S, _LEAVING_MAX = 60.0, 100
_BACKLOG = 2048
# Keep-alive intervals that a client may pass without reading.
_STALLS = 2
# Clients send nothing on a WebSocket beyond a subscription.
_FRAME_BYTES_MAX = 2**20
_FRAGMENTS_MAX = 1024
# Before it is admitted, it only has to send a key.
_STRANGER_FRAME_BYTES_MAX = 16 * 1024
_STRANGER_BYTES_MAX = 2 * _STRANGER_FRAME_BYTES_MAX
# Pings are answered up to here. A transport asks for a pause at this size, but pings arrive anyway.
_UNREAD_BYTES_MAX = 64 * 1024
_FINAL_TEXT = 0x81


class Server(uvicorn.Server):
    """A server that leaves signals to the composition and reports when it accepts connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()


class _WebSocket(WebSocketsSansIOProtocol):
    """WebSocket, with an end: what a client does not read within a while after the close is discarded.

    One extension of ASGI: `websocket.send` with `texts`, several text frames at once, as bytes. They are written in one
    go, which for small frames takes a fraction of the time.
    """

    #: those that were closed and may still read that, with the timer that ends it, oldest first
    _leaving: ClassVar[dict[_WebSocket, asyncio.TimerHandle]] = {}

    def __init__(self, *given: Any, gate: Gate, **named: Any) -> None:
        super().__init__(*given, **named)
        self._gate = gate
        # What the client sends meanwhile is read and dropped. Left unread, it would cut off what is still to be sent.
        self.close_timeout = _LEAVING_S
        self._stranger = True
        self.conn.max_message_size = _STRANGER_FRAME_BYTES_MAX

    def data_received(self, data: bytes) -> None:
        if self._stranger and self.handshake_initiated:
            if self._gate.heard(self, len(data)) > _STRANGER_BYTES_MAX and not self.close_sent:
                self._gate.closed["stranger"] += 1
                self._fail("too much was sent before an API key")
            if self.transport.is_closing():
                return
        super().data_received(data)

    def _trust(self) -> None:
        """The application admits the client."""
        self._stranger = False
        self._gate.trust(self)
        self.conn.max_message_size = _FRAME_BYTES_MAX

    def _fail(self, reason: str) -> None:
        self.conn.fail(CloseCode.MESSAGE_TOO_BIG, reason)
        self.handle_parser_exception()

    async def send(self, message: Any) -> None:
        texts = message.get("texts")
        if texts is not None:
            await self._send_texts(texts)
            return
        if message["type"] == "websocket.close":
            if self.close_sent:
                return
            # The close is sent at once, even to a client that does not read.
            self.writable.set()
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            # Refused with an HTTP response: not an error for the log.
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

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.close_sent:
            self._leave()  # not a handshake
        else:
            self.scope["extensions"][TRUST] = self._trust  # type: ignore[assignment]

    async def run_asgi(self) -> None:
        await super().run_asgi()
        self._leave()

    def _leave(self) -> None:
        """Closing waits until everything written before has been read. A client that was too slow must get to the code
        that says so; one that never reads again must not stay for ever.
        """
        if self.disconnected:
            return
        self._leaving[self] = self.loop.call_later(_LEAVING_S, self.transport.abort)
        if len(self._leaving) > _LEAVING_MAX:
            oldest = next(iter(self._leaving))
            self._leaving.pop(oldest).cancel()
            oldest.transport.abort()

    def handle_ping(self) -> None:
        """Answer, unless the client leaves so many answers unread that they are useless."""
        pong = b"".join(self.conn.data_to_send())
        if not self.close_sent and self.transport.get_write_buffer_size() < _UNREAD_BYTES_MAX:
            self.transport.write(pong)

    def handle_cont(self, event: Frame) -> None:
        # Each costs memory, even an empty one.
        if len(self.frames) < _FRAGMENTS_MAX:
            super().handle_cont(event)
        elif not self.close_sent:
            self._fail("a message has too many fragments")

    def overdue(self, waiting: Waiting) -> None:
        """Not in any queue: pings find dead clients."""

    def abort(self) -> None:
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._gate.leave(self)
        if (timer := self._leaving.pop(self, None)) is not None:
            timer.cancel()

    def keepalive_timeout(self) -> None:
        """No answer to a ping. If the client ever reads this, the code makes it reconnect."""
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
        self.loop.call_later(GOODBYE_S, self.transport.abort)


def _frame_head(size: int) -> bytes:
    """The header of a complete text frame of this many bytes (RFC 6455, 5.2): final, text, no mask."""
    if size < 126:
        return bytes((_FINAL_TEXT, size))
    if size < 2**16:
        return bytes((_FINAL_TEXT, 126, size >> 8, size & 0xFF))
    return bytes((_FINAL_TEXT, 127)) + size.to_bytes(8)


@asynccontextmanager
async def listen(
    app: ASGIApp, listening: socket.socket, settings: Settings, gate: Gate | None = None
) -> AsyncIterator[asyncio.Task[None]]:
    """Serve while the block runs, which starts once connections are accepted; yields the serving task. `gate` limits
    and counts the connections; without one, the settings' limits apply.

    At the end no new request is accepted, responses in progress are completed and WebSocket clients are closed (1012).
    """
    gate = gate or open_gate(settings)
    server = Server(_config(app, settings, gate))
    watching = asyncio.create_task(gate.watch(), name="gate")
    serving = asyncio.create_task(server.serve([listening]), name="server")
    accepting = asyncio.create_task(server.accepting.wait())
    try:
        await asyncio.wait([serving, accepting], return_when=asyncio.FIRST_COMPLETED)
        yield serving
    finally:
        accepting.cancel()
        server.should_exit = True
        try:
            await serving
        finally:
            watching.cancel()


def open_gate(settings: Settings) -> Gate:
    """The gate for connections, with as many open files as the system allows this process."""
    raise_file_limit()
    return Gate(GateLimits.of(settings))


def bind(host: str, port: int) -> socket.socket:
    """A socket on host and port, where 0 is any free one. Raises SettingsError if it is not available."""
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


def _config(app: ASGIApp, settings: Settings, gate: Gate) -> uvicorn.Config:
    # Its own messages ("started", "shutting down") add nothing to those of the command line.
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger().level))
    stall_s = _STALLS * settings.live_keep_alive / SECOND
    http = partial(HttpConnection, stall_s=stall_s, gate=gate, retry_after_s=settings.retry_after_s)
    return uvicorn.Config(
        app,
        http=http,  # type: ignore[arg-type]
        ws=partial(_WebSocket, gate=gate),  # type: ignore[arg-type]
        ws_max_size=_FRAME_BYTES_MAX,
        ws_ping_interval=settings.ws_ping_s,
        ws_ping_timeout=settings.ws_ping_s,
        # Events are small and encoded once for all; compression would run for each client.
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
