"""One HTTP/1.1 connection: uvicorn's, with limits for incomplete requests.

A request has a head and a body, and then the connection is idle until the next. Bytes are counted before the parser
sees them, because it buffers a header until it is complete. How long each part may take is decided by `Gate`, whose
queues the connection moves through.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import httptools
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tidelock.http.gate import HEALTH, IDLE, Gate, Peer, Waiting
from tidelock.http.problems import problem

#: how long an endless response may take to end when the server stops
GOODBYE_S = 2.0
# Requests that a client may pipeline. Each waits in memory.
_PIPELINED_MAX = 64
# How much the system buffers for a client beyond what is in flight.
_UNSENT_BYTES_MAX = 128 * 1024

_NOTHING, _HEAD, _BODY = range(3)


class HttpConnection(HttpToolsProtocol):
    """HTTP/1.1; errors that the application never sees have the same form as all others.

    A client that does not read its response for long is disconnected: nobody else would notice, and the response waits.
    """

    def __init__(self, *given: Any, stall_s: float, gate: Gate, retry_after_s: int, **named: Any) -> None:
        super().__init__(*given, **named)
        self._stall_s = stall_s
        self._stalled: asyncio.TimerHandle | None = None
        self._gate = gate
        self._retry_after_s = retry_after_s
        self._bytes_max = gate.limits.head_bytes_max
        #: which part of a request is being read
        self._part = _NOTHING
        #: bytes since the last request, the last head or the last piece of a body was complete
        self._unread = 0
        #: of the current request
        self._body_bytes = 0
        #: of the body, when it came into its queue
        self._body_bytes_before = 0
        #: of answers, when it came into its queue
        self._unsent_before = 0
        #: the last response has been written: only the rest of its request is read
        self._leaves = False
        self._queue: Waiting | None = None
        #: a request has come
        self._asked = False
        #: why only health checks are answered here
        self._crowded: str | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Also for WebSockets, which start this way.
        _take_little(transport)
        address = None if self.client is None else self.client[0]
        self._crowded = self._gate.enter(self, address, self.loop.time())
        if self._crowded is not None:
            self.app = _Crowded(self.app, self._too_many)
        self._wait_in(self._gate.heads)

    def data_received(self, data: bytes) -> None:
        if self._queue is self._gate.leaving or self._queue is self._gate.closing:
            return
        room = self._bytes_max - self._unread
        if len(data) <= room:
            going_on = self._feed(data)
        else:
            # Never more at a time than the parser may keep.
            view, start, going_on = memoryview(data), 0, True
            while going_on and start < len(view):
                room = self._bytes_max - self._unread
                going_on = self._feed(view[start : start + room])
                start += room
        if going_on:
            self._wait_in(self._queue_of_part())
            if self._queue is self._gate.unwanted:
                self._check_unwanted()

    def _feed(self, data: bytes | memoryview) -> bool:
        """Give the parser some bytes; False: the connection is no longer ours to read from."""
        self._unread += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self._upgrade()
                return False
        except httptools.HttpParserError:
            self._refuse(400, "invalid_request", "this is not an HTTP/1.1 request", "invalid_request")
            return False
        if self._leaves and self._part != _BODY:
            self._close()
            return False
        if self._unread < self._bytes_max:
            return True
        if self._part == _HEAD and len(self.url) > self._bytes_max // 2:
            status, what = 414, "the URL is too long"
        else:
            status, what = 431, "the headers are too large"
        message = f"{what}: request line and headers may have at most {self._bytes_max} bytes together"
        self._refuse(status, "head_too_large", message, "head_too_large")
        return False

    def _queue_of_part(self) -> Waiting | None:
        if self._part == _HEAD:
            return self._gate.heads
        if self._part == _BODY:
            if self.cycle.response_complete:
                return self._gate.unwanted
            return self._gate.bodies
        if not self._asked:
            return self._gate.heads  # line ends before the first request
        return self._gate.idle if self.cycle.response_complete and not self.pipeline else None

    def _wait_in(self, queue: Waiting | None) -> None:
        if queue is self._queue:
            return
        if self._queue is not None:
            del self._queue[self]
        self._queue = queue
        if queue is not None:
            queue[self] = self.loop.time()
            self._body_bytes_before = self._body_bytes

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _PIPELINED_MAX:
            raise ValueError("too many requests are pipelined")
        super().on_message_begin()
        self._wait_in(None)  # its time starts now, even if it follows another at once
        self._part = _HEAD
        self._body_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        # Nobody reads what comes after a body.
        if self._part == _HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._part, self._asked = _BODY, True
        self._unread = 0
        if self._leaves:
            return
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is before:
            return  # a WebSocket
        declared = next((value for name, value in self.headers if name == b"content-length"), b"0")
        if int(declared) > self._gate.limits.unwanted_bytes_max or not self.cycle.keep_alive:
            self._end_with_this(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        self._body_bytes += len(body)
        if self._body_bytes > self._gate.limits.unwanted_bytes_max and not self.cycle.response_started:
            self._end_with_this(self.cycle)
        super().on_body(body)

    def _end_with_this(self, cycle: RequestResponseCycle) -> None:
        """Announce in the response that the connection closes after it, so that the client sends nothing more on it."""
        cycle.keep_alive = False
        cycle.transport = _LastAnswer(self, cycle)

    def leave(self) -> None:
        """The last response is written. Closed only after the rest of its request: see `_check_unwanted`."""
        self._leaves = True

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._part = _NOTHING
        self._unread = 0

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._close()
            return
        if self._leaves and not (self._part == _BODY and self.cycle.response_complete):
            self._close()
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        self._wait_in(self._queue_of_part())

    def overdue(self, waiting: Waiting) -> None:
        gate, now = self._gate, self.loop.time()
        if waiting is gate.idle:
            self._end(IDLE)
            self._close()
        elif waiting is gate.leaving:
            self.abort()
        elif waiting is gate.closing:
            self._check_unsent(waiting, now)
        elif waiting is gate.unwanted:
            self._end("body_unwanted")
            self._close()
        elif waiting is gate.heads:
            if self.flow.read_paused:
                waiting.renew(self, now)  # it is we who do not read
            elif self._part == _NOTHING:
                self._end("head_timeout")
                self._close()
            else:
                message = f"the request's headers were not complete within {waiting.limit_s:g} s"
                self._refuse(408, "request_timeout", message, "head_timeout")
        else:
            self._check_body(waiting, now)

    def _check_body(self, waiting: Waiting, now: float) -> None:
        needed = self._gate.limits.body_bytes_per_s * waiting.limit_s
        paused = self.flow.read_paused or self.cycle.waiting_for_100_continue
        if paused or self._body_bytes - self._body_bytes_before >= needed:
            self._body_bytes_before = self._body_bytes
            waiting.renew(self, now)
        else:
            rate = self._gate.limits.body_bytes_per_s
            message = f"the request's body arrived more slowly than {rate} bytes a second for {waiting.limit_s:g} s"
            self._refuse(408, "request_timeout", message, "body_timeout")

    def _check_unwanted(self) -> None:
        """A body answered before its end is read to the end, so that a client that reads last sees the response."""
        if self._body_bytes - self._body_bytes_before > self._gate.limits.unwanted_bytes_max:
            self._end("body_unwanted")
            self._linger()

    def _close(self) -> None:
        """Close once the client has read everything, and in any case when it stops reading.

        A closed transport waits only for the first, and nobody else watches it.
        """
        self.transport.close()
        if self in self.connections and self.transport.get_write_buffer_size():
            self._unsent_before = _unsent(self.transport)
            self._wait_in(self._gate.closing)

    def _check_unsent(self, waiting: Waiting, now: float) -> None:
        unsent = _unsent(self.transport)
        if unsent < self._unsent_before:
            self._unsent_before = unsent
            waiting.renew(self, now)
        else:
            self._end("answer_unread")
            self.transport.abort()

    def abort(self) -> None:
        self._wait_in(None)
        self.transport.abort()

    def _end(self, reason: str) -> None:
        self._gate.closed[reason] += 1
        self._wait_in(None)

    def _refuse(self, status: int, code: str, message: str, reason: str) -> None:
        """Answer what is not a request, and close.

        The client may still be sending. A close with unread bytes resets the connection, and the client might never see
        the response; so nothing more is read, and the reset comes a little later.
        """
        self._end(reason)
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            # A response is being sent. If it is to this request, it is no longer needed.
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started or self.pipeline or self._part == _HEAD:
                self.transport.abort()
                return
        self._write(problem(status, code, message))
        self._linger()

    def _linger(self) -> None:
        if self.transport.is_closing():
            self._close()
        else:
            self.flow.pause_reading()
            self.transport.write_eof()
            self._wait_in(self._gate.leaving)

    def _write(self, response: Response) -> None:
        """Answer without a request for the application."""
        head = [f"HTTP/1.1 {response.status_code} {HTTPStatus(response.status_code).phrase}".encode()]
        head += [b"connection: close", *(name + b": " + value for name, value in response.raw_headers)]
        self.transport.write(b"\r\n".join([*head, b"", bytes(response.body)]))

    def _too_many(self) -> Response:
        """The response if there are too many connections."""
        reason = self._crowded or ""
        self._gate.closed[reason] += 1
        if reason == "address_max":
            response = problem(429, "overloaded", "this address has too many connections; close some")
        else:
            response = problem(503, "unavailable", "the server has too many connections; try again later")
        response.headers["retry-after"] = str(self._retry_after_s)
        return response

    def _upgrade(self) -> None:
        self._wait_in(None)
        if self._crowded is not None:
            self._write(self._too_many())
            self._close()
            return
        self.handle_websocket_upgrade()
        successor: Peer = self.transport.get_protocol()  # type: ignore[assignment]
        self._gate.hand_over(self, successor)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        task = self.loop.create_task(cycle.run_asgi(app))
        task.add_done_callback(self._answered)
        self.tasks.add(task)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if self.transport.is_closing():
            self._close()  # an answer that failed halfway is closed without another word

    def _unset_keepalive_if_required(self) -> None:
        """There is no timer: see `Gate`."""

    def _unsupported_upgrade_warning(self) -> None:
        """Not logged: anybody could fill the log."""

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look_again()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read_again()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._wait_in(None)
        self._gate.leave(self)
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

    def shutdown(self) -> None:
        super().shutdown()
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            # An endless response: the server would wait in vain. Its client reconnects.
            self.transport.close()
            self.loop.call_later(GOODBYE_S, self.transport.abort)


def _take_little(transport: asyncio.Transport) -> None:
    """Keep the system from buffering megabytes for a client that does not read.

    The rest waits here, where it is bounded and where newer changes of a row replace older ones.
    """
    connection = transport.get_extra_info("socket")
    if connection is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES_MAX)


def _unsent(transport: asyncio.Transport) -> int:
    """Bytes that the client has not read yet, including those buffered by the system."""
    unsent = transport.get_write_buffer_size()
    connection = transport.get_extra_info("socket")
    with suppress(OSError, ValueError):
        if connection is not None:
            (taken,) = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0" * 4))
            unsent += taken
    return unsent


class _LastAnswer(asyncio.Transport):
    """What the last response of a connection is written to.

    uvicorn closes after it. If the client is still sending its request then, the close resets the connection, and the
    client might never see the response.
    """

    def __init__(self, connection: HttpConnection, cycle: RequestResponseCycle) -> None:
        super().__init__()
        self._connection = connection
        self._cycle = cycle

    def write(self, data: Any) -> None:
        self._connection.transport.write(data)

    def is_closing(self) -> bool:
        return self._connection.transport.is_closing()

    def close(self) -> None:
        if self._cycle.response_complete:
            self._connection.leave()
        else:
            self._connection.transport.close()


class _Crowded:
    """The application on a connection beyond the limits: it answers one health check."""

    def __init__(self, app: Any, refusal: Callable[[], Response]) -> None:
        self._app: ASGIApp = app
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def last(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        app = self._app if scope["path"] in HEALTH else self._refusal()
        await app(scope, receive, last)
