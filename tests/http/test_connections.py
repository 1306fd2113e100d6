"""Connections before anybody knows whose they are: what each may take, and that nobody else suffers."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import websockets
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.budgets import HANG_S
from tests.http.test_access import bearer, make_key
from tests.serving import Start
from tidelock.app import Serving
from tidelock.http.clients import trust
from tidelock.http.connection import HttpConnection
from tidelock.http.gate import Gate, GateLimits, Waiting
from tidelock.http.listener import bind, listen, open_gate
from tidelock.settings import Settings
from tidelock.settings.groups import ConnectionLimits

HEAD = b"POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
MS = 1_000_000
SHORT = ConnectionLimits(head_timeout=200 * MS, body_timeout=200 * MS, keep_alive=400 * MS)


class Raw:
    """A client that sends what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> bytes:
        """Everything until the server closes, which it must."""
        async with asyncio.timeout(HANG_S):
            return await self.reader.read()

    async def until_reset(self) -> None:
        """Send, until nobody reads any more."""
        with suppress(OSError):
            while True:
                await asyncio.wait_for(self.send(b"a" * 10_000), HANG_S)

    async def head(self) -> bytes:
        """The head of the next answer."""
        async with asyncio.timeout(HANG_S):
            return await self.reader.readuntil(b"\r\n\r\n")


@asynccontextmanager
async def raw(server: Serving) -> AsyncIterator[Raw]:
    url = urlsplit(server.url)
    opened = Raw(*await asyncio.open_connection(url.hostname, url.port))
    try:
        yield opened
    finally:
        opened.writer.transport.abort()


async def closed(client: httpx.AsyncClient) -> dict[str, int]:
    """How many connections were closed or refused, by reason, where that is any."""
    text = (await client.get("/metrics")).text
    found = re.findall(r'tidelock_connections_closed_total\{reason="(\w+)"\} ([0-9.]+)', text)
    return {reason: int(float(count)) for reason, count in found if float(count) and reason != "idle"}


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_S):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def until_answered(client: httpx.AsyncClient, headers: dict[str, str] | None = None) -> None:
    async with asyncio.timeout(HANG_S):
        while (await client.get("/admin/events", headers=headers)).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def client_of(server: Serving) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url)


@pytest.fixture(scope="module")
async def server(start: Start) -> AsyncIterator[Serving]:
    async with start(connections=SHORT) as serving:
        yield serving


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nx: ", b"431"),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\nx: a\r\ny: ", b"431"),
        (b"GET /", b"414"),
        (b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 6_000, b"431"),
        (b"\r\n" * 20_000, b"431"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\nx: ", b"431"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n2;", b"431"),
    ],
    ids=["header", "second header", "URL", "headers", "line ends", "trailer", "chunk extension"],
)
async def test_a_head_without_end_is_refused_and_read_no_further(server: Serving, sent: bytes, status: bytes) -> None:
    async with raw(server) as client:
        await client.send(sent + b"a" * 80_000)
        answer = await client.answer()
        assert answer.startswith(b"HTTP/1.1 " + status), answer[:200]
        assert b'"code":"head_too_large"' in answer
        await client.until_reset()


async def test_a_head_of_exactly_as_many_bytes_as_are_allowed_is_taken(server: Serving) -> None:
    for size, status in ((32 * 1024, b"200"), (32 * 1024 + 1, b"431")):
        head = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: "
        async with raw(server) as client:
            await client.send(head + b"a" * (size - len(head) - 4) + b"\r\n\r\n")
            assert (await client.head()).startswith(b"HTTP/1.1 " + status)


async def test_a_large_body_is_not_taken_for_a_head(server: Serving) -> None:
    body = b'[{"stream":"s","data":"' + b"a" * 900_000 + b'"}]'
    async with raw(server) as client:
        whole = b"content-length: %d\r\n\r\n%b" % (len(body), body)
        chunked = b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\nx: y\r\n\r\n" % (len(body), body)
        for rest in (whole, chunked):
            await client.send(HEAD + rest)
            assert (await client.head()).startswith(b"HTTP/1.1 200")
            await client.reader.readuntil(b"}]}")


async def test_a_client_that_is_silent_or_stops_halfway_is_closed_and_the_log_says_so_in_one_line(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    async with start(connections=SHORT) as server, httpx.AsyncClient(base_url=server.url) as client:
        parts = {
            b"": b"",
            b"GET /heal": b"HTTP/1.1 408",
            HEAD: b"HTTP/1.1 408",
            HEAD + b"content-length: 9\r\n\r\n[": b"HTTP/1.1 408",
            HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n[]": b"HTTP/1.1 408",
        }
        with caplog.at_level(logging.WARNING, "tidelock.http.gate"):
            async with asyncio.TaskGroup() as group:
                for part, status in parts.items():
                    for _ in range(20):
                        group.create_task(_stops_after(server, part, status))
            assert await closed(client) == {"head_timeout": 60, "body_timeout": 40}
            await until(lambda: bool(caplog.records))
        (line,) = [record.getMessage() for record in caplog.records]
        assert "sent no complete headers within connections.head_timeout" in line
        assert (await client.get("/healthz")).status_code == 200


async def _stops_after(server: Serving, part: bytes, status: bytes) -> None:
    async with raw(server) as client:
        await client.send(part)
        assert (await client.answer()).startswith(status)


async def test_a_drip_is_as_slow_as_silence(server: Serving) -> None:
    for head in (b"GET / HTTP/1.1\r\nx: ", HEAD + b"content-length: 100000\r\n\r\n"):
        async with raw(server) as client:
            await client.send(head)
            answer = asyncio.create_task(client.answer())
            while not answer.done():
                client.writer.write(b"a")
                await asyncio.sleep(0.01)
            assert (await answer).startswith(b"HTTP/1.1 408")


async def test_a_body_that_keeps_coming_may_take_long(server: Serving) -> None:
    """Three times as long as one that comes too slowly."""
    body = b'[{"stream":"s","data":"' + b"a" * 60 * 100 + b'"}]'
    async with raw(server) as client:
        await client.send(HEAD + b"content-length: %d\r\n\r\n" % len(body))
        for start in range(0, len(body), 100):
            await client.send(body[start : start + 100])
            await asyncio.sleep(0.01)
        assert (await client.head()).startswith(b"HTTP/1.1 200")


async def test_a_connection_that_is_idle_between_requests_is_closed_without_a_word(server: Serving) -> None:
    async with raw(server) as client:
        for _ in range(2):
            await client.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert (await client.head()).startswith(b"HTTP/1.1 200")
            assert await client.reader.readexactly(15) == b'{"status":"ok"}'
        assert await client.answer() == b""


async def test_requests_sent_ahead_are_answered_in_order_and_bounded(server: Serving) -> None:
    async with raw(server) as client:
        await client.send(b"GET /healthz HTTP/1.1\r\n\r\n" * 20 + b"GET /nothing HTTP/1.1\r\nconnection: close\r\n\r\n")
        answer = await client.answer()
        assert answer.count(b"HTTP/1.1 200") == 20
        assert answer.rindex(b"HTTP/1.1 200") < answer.index(b"HTTP/1.1 404")
    async with raw(server) as client:
        await client.send(b"GET /readyz HTTP/1.1\r\n\r\n" * 10_000)
        with suppress(ConnectionResetError):
            assert (await client.answer()).count(b"HTTP/1.1") < 100


@pytest.mark.parametrize("body", [b"", b'[{"stream":"s","data":"' + b"a" * 600 + b'"}]'], ids=["heads", "bodies"])
async def test_the_time_of_each_request_sent_ahead_is_its_own(server: Serving, body: bytes) -> None:
    """Each piece ends one request and begins the next, for several times as long as one may take."""
    head = HEAD + b"content-length: %d\r\n\r\n" % len(body) if body else b"GET /healthz HTTP/1.1\r\n\r\n"
    half = len(head) + len(body) // 2 if body else 10
    first, second = (head + body)[:half], (head + body)[half:]
    async with raw(server) as client:
        await client.send(first)
        for _ in range(60):
            await client.send(second + first)
            await asyncio.sleep(0.01)
            answer = await client.head()
            assert answer.startswith(b"HTTP/1.1 200"), answer
            (length,) = re.findall(rb"content-length: (\d+)", answer)
            await client.reader.readexactly(int(length))


async def test_the_rest_of_a_body_that_was_answered_is_read_for_a_while_only(start: Start) -> None:
    async with start(connections=SHORT, request_bytes_max=100_000) as server, raw(server) as client:
        await client.send(HEAD + b"content-length: 10000000000\r\n\r\n")
        assert (await client.head()).startswith(b"HTTP/1.1 413")
        await client.until_reset()


@pytest.mark.parametrize("sized", [True, False], ids=["declared", "chunked"])
async def test_the_response_to_a_body_that_is_not_read_to_its_end_says_that_the_connection_closes(
    start: Start, sized: bool
) -> None:
    """A client with a pool of connections would send its next request on this one, and lose it."""
    body = b"[" + b" " * 500_000 + b"]"

    async def chunks() -> AsyncIterator[bytes]:
        for begin in range(0, len(body), 10_000):
            yield body[begin : begin + 10_000]

    async with start(connections=SHORT, request_bytes_max=100_000) as server, client_of(server) as client:
        for _ in range(20):
            given = body if sized else chunks()
            response = await client.post("/v1/events", content=given, headers={"content-type": "application/json"})
            assert (response.status_code, response.headers.get("connection")) == (413, "close")
            assert (await client.get("/healthz")).status_code == 200


async def test_a_client_that_wants_the_connection_closed_sees_the_response_while_it_still_sends(start: Start) -> None:
    body = b"[" + b" " * 2_000_000 + b"]"
    head = b"POST /nothing HTTP/1.1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with start(connections=SHORT) as server:
        for _ in range(20):
            async with raw(server) as client:
                await client.send(head)
                await client.send(body[:1_000_000])
                assert (await client.head()).startswith(b"HTTP/1.1 404")
                await client.send(body[1_000_000:] + b"GET /healthz HTTP/1.1\r\n\r\n")
                assert b"HTTP/1.1" not in await client.answer()


async def test_long_lived_clients_are_not_timed(server: Serving) -> None:
    """Neither a WebSocket nor an answer without end is idle, however little is sent."""
    subscription = {"query": "subscription { counters(where: {}) { operation } }"}
    ws = server.url.replace("http", "ws")
    async with (
        httpx.AsyncClient(base_url=server.url) as client,
        websockets.connect(ws + "/ws") as tail,
        websockets.connect(ws + "/graphql", subprotocols=[websockets.Subprotocol("graphql-transport-ws")]) as live,
        client.stream("POST", "/graphql", json=subscription, headers={"accept": "text/event-stream"}) as events,
    ):
        await live.send('{"type":"connection_init"}')
        lines = events.aiter_lines()
        assert await anext(lines) == ":"
        async with raw(server) as witness:
            await witness.send(b"GET /healthz HTTP/1.1\r\n\r\n")
            await witness.answer()  # it was idle for longer than it may be
        await client.post("/v1/events", json={"stream": "s"})
        assert "ingressSequence" in str(await asyncio.wait_for(tail.recv(), HANG_S))
        assert "connection_ack" in str(await live.recv())
        await live.send('{"type":"ping"}')
        assert "pong" in str(await asyncio.wait_for(live.recv(), HANG_S))


@asynccontextmanager
async def _many(server: Serving, count: int, sent: bytes) -> AsyncIterator[list[socket.socket]]:
    url = urlsplit(server.url)
    address = (url.hostname, url.port)
    loop = asyncio.get_running_loop()
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.setblocking(False)
            await loop.sock_connect(each, address)
            await loop.sock_sendall(each, sent)
        yield sockets
    finally:
        for each in sockets:
            each.close()


async def test_beyond_the_limit_of_connections_health_is_answered_and_all_else_is_503(start: Start) -> None:
    limits = ConnectionLimits(max=20, health_max=4)
    async with start(connections=limits) as server:
        ws = server.url.replace("http", "ws") + "/ws"
        async with _many(server, 20, HEAD + b"content-length: 9\r\n\r\n"), httpx.AsyncClient() as client:
            # More than are kept for health: the silent ones there make room.
            async with _many(server, 10, b"") as silent:
                for path in ("/healthz", "/readyz", "/metrics"):
                    answer = await client.get(server.url + path)
                    assert (answer.status_code, answer.headers["connection"]) == (200, "close")
                assert "tidelock_connections{" not in answer.text
                assert re.search(r"tidelock_connections 2[1-4]\.0", answer.text)
                refused = await client.get(server.url + "/admin/events")
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
                assert refused.headers["retry-after"] == "1"
                with pytest.raises(websockets.InvalidStatus) as socket_refused:
                    await websockets.connect(ws)
                assert socket_refused.value.response.status_code == 503
                loop = asyncio.get_running_loop()
                assert await asyncio.wait_for(loop.sock_recv(silent[0], 1), HANG_S) == b""
            assert (await closed(client_of(server)))["connections_max"] >= 8
        async with client_of(server) as client:
            await until_answered(client)


async def test_at_the_limit_a_new_connection_replaces_a_silent_one(start: Start) -> None:
    # Replaced after half their time at the latest; closed for it only after ten seconds.
    limits = ConnectionLimits(max=20, keep_alive=20 * MS)
    async with start(connections=limits) as server, _many(server, 20, b""), client_of(server) as client:
        await until_answered(client)
        assert (await closed(client))["replaced"] >= 1


async def test_where_others_are_let_in_one_address_has_its_limit(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections of this machine are not counted, so the test has to pretend that they are another's."""
    monkeypatch.setattr("tidelock.http.gate._network", lambda address: address)
    async with start() as first:
        key = bearer(await make_key(first, "*", ["read"]))
        url = first.ledger.database.url
        limits = ConnectionLimits(per_address_max=5)
        async with start(host="0.0.0.0", database_url=url, connections=limits) as server, client_of(server) as client:
            async with _many(server, 5, b"G"):
                refused = await client.get("/admin/events", headers=key)
                assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
                assert (await client.get("/healthz")).status_code == 200
            await until_answered(client, key)


@asynccontextmanager
async def listening(app: ASGIApp, **settings: Any) -> AsyncIterator[tuple[int, Gate]]:
    """Another application behind the same gate. Gives its port."""
    given = Settings(**{"connections": SHORT, **settings})
    gate = open_gate(given)
    opened = bind("127.0.0.1", 0)
    async with listen(app, opened, given, gate):
        yield opened.getsockname()[1], gate


@asynccontextmanager
async def deaf(port: int, sent: bytes) -> AsyncIterator[socket.socket]:
    """A client that sends, and reads only what it is told to."""
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    opened.setblocking(False)
    loop = asyncio.get_running_loop()
    with opened:
        await loop.sock_connect(opened, ("127.0.0.1", port))
        await loop.sock_sendall(opened, sent)
        yield opened


async def _answer_of_a_size(scope: Scope, receive: Receive, send: Send) -> None:
    """As many bytes as the path says, and where it says so, one more is promised that never comes."""
    kind, size = scope["path"].strip("/").split("/")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x" * int(size), "more_body": kind == "broken"})
    if kind == "broken":
        raise OSError("halfway")


@pytest.mark.parametrize("kind", ["kept", "closed", "broken", "left", "half"])
async def test_a_client_that_does_not_read_the_rest_of_its_answer_is_closed(kind: str) -> None:
    """The system takes part of an answer. Whether the rest is much or little, somebody must look after it."""
    async with listening(_answer_of_a_size, live_keep_alive=100 * MS) as (port, gate), AsyncExitStack() as clients:
        for size in range(64, 1024, 32):
            request = f"GET /{kind}/{size * 1024} HTTP/1.1\r\n"
            request += "connection: close\r\n\r\n" if kind == "closed" else "\r\n"
            request += "GET /half" if kind == "half" else ""
            client = await clients.enter_async_context(deaf(port, request.encode()))
            if kind in ("left", "half"):
                client.shutdown(socket.SHUT_WR)
        await until(lambda: gate.open == 0)
        assert gate.closed["answer_unread"] >= 1


async def test_a_client_that_reads_the_rest_of_its_answer_slowly_has_all_of_it() -> None:
    """For many times as long as one that reads nothing may stay."""
    head = b"GET /closed/400000 HTTP/1.1\r\nconnection: close\r\n\r\n"
    async with listening(_answer_of_a_size) as (port, gate), deaf(port, head) as client:
        loop = asyncio.get_running_loop()
        read = 0
        while piece := await loop.sock_recv(client, 8192):
            read += len(piece)
            await asyncio.sleep(0.02)
        assert read > 400_000
        assert gate.closed["answer_unread"] == 0


async def test_at_the_limit_a_new_connection_replaces_one_that_does_not_read_the_rest_of_its_answer() -> None:
    limits = ConnectionLimits(max=10, body_timeout=60_000 * MS)
    async with listening(_answer_of_a_size, connections=limits) as (port, gate), AsyncExitStack() as clients:
        for _ in range(10):
            request = b"GET /closed/4000000 HTTP/1.1\r\nconnection: close\r\n\r\n"
            await clients.enter_async_context(deaf(port, request))
        await until(lambda: len(gate.closing) == 10)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client, asyncio.timeout(HANG_S):
            while (await client.get("/closed/1")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert gate.closed["replaced"] == 1


HANDSHAKE = (
    b"GET %b HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n%b\r\n"
)


def frame(opcode: int, data: bytes, size: int | None = None) -> bytes:
    """As a client sends it, under a mask of zeros; `size` promises more than there is."""
    size = len(data) if size is None else size
    head = bytes((opcode, 0x80 | size)) if size < 126 else bytes((opcode, 0xFF)) + size.to_bytes(8)
    return head + bytes(4) + data


async def _listener(scope: Scope, receive: Receive, send: Send) -> None:
    """Accepts, and hears until the client goes."""
    await receive()
    if scope["path"] == "/trusted":
        trust(scope)
    await send({"type": "websocket.accept"})
    while (await receive())["type"] != "websocket.disconnect":
        pass


async def _sent_until_closed(client: socket.socket, data: bytes, most: int) -> int:
    """How often that was sent before the server closed."""
    loop = asyncio.get_running_loop()
    for times in range(most):
        try:
            await asyncio.wait_for(loop.sock_sendall(client, data), 5)
        except OSError:
            return times
        await asyncio.sleep(0)
    return most


async def test_pings_of_a_client_that_does_not_read_are_not_answered_without_end() -> None:
    pings = frame(0x89, b"p" * 125) * 500
    async with listening(_listener) as (port, gate), deaf(port, HANDSHAKE % (b"/trusted", b"")) as client:
        assert b" 101 " in await asyncio.get_running_loop().sock_recv(client, 1000)
        assert await _sent_until_closed(client, pings, 100) == 100
        (connection,) = gate._admitted
        assert connection.transport.get_write_buffer_size() < 500_000  # type: ignore[attr-defined]


async def test_a_message_of_fragments_without_end_is_refused() -> None:
    async with listening(_listener) as (port, gate), deaf(port, HANDSHAKE % (b"/trusted", b"")) as client:
        loop = asyncio.get_running_loop()
        assert b" 101 " in await loop.sock_recv(client, 1000)
        await loop.sock_sendall(client, frame(0x01, b"a"))
        await _sent_until_closed(client, frame(0x00, b"") * 500, 20)
        await until(lambda: gate.open == 0)


async def test_a_client_that_has_shown_no_key_may_send_little_by_websocket(start: Start) -> None:
    """Enough for a key; who was let in may send a subscription of any size."""
    init = b'{"type":"connection_init","payload":{"authorization":"%b"}}'
    protocol = b"sec-websocket-protocol: graphql-transport-ws\r\n"
    async with start() as server:
        key = (await make_key(server, "*", ["read"])).encode()
        for path, more in ((b"/ws", b""), (b"/graphql", protocol)):
            for sent in (frame(0x81, b"a" * 100, 20_000), frame(0x89, b"a" * 100) * 400):
                async with raw(server) as client:
                    await client.send(HANDSHAKE % (path, more))
                    assert b" 101 " in await client.head()
                    await client.send(sent)
                    assert (1009).to_bytes(2) in await client.answer()
            async with raw(server) as client:
                await client.send(HANDSHAKE % (path, more))
                await client.head()
                await client.send(frame(0x81, init % (b"Bearer " + key)))
                if path == b"/graphql":
                    assert b"connection_ack" in await client.reader.read(100)
                else:
                    async with client_of(server) as other:
                        headers = bearer(await make_key(server, "*", ["ingest"]))
                        await other.post("/v1/events", json={"stream": "s"}, headers=headers)
                    assert b"ingressSequence" in await client.reader.read(1000)
                padded = b'{"type":"ping","payload":{"a":"' + b"a" * 100_000 + b'"}}'
                await client.send(frame(0x81, padded) + frame(0x89, b"still here"))
                async with asyncio.timeout(HANG_S):
                    await client.reader.readuntil(b"still here")


async def test_all_who_have_shown_no_key_may_send_a_limited_amount_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest make room: who has a key shows it at once."""
    monkeypatch.setattr("tidelock.http.gate._STRANGERS_BYTES_MAX", 50_000)
    async with listening(_listener) as (port, gate), AsyncExitStack() as clients:
        loop = asyncio.get_running_loop()
        opened = [await clients.enter_async_context(deaf(port, HANDSHAKE % (b"/", b""))) for _ in range(8)]
        for client in opened:
            assert b" 101 " in await loop.sock_recv(client, 1000)
            await loop.sock_sendall(client, frame(0x81, b"a" * 10_000, 16_000))
        await until(lambda: gate.open == 4)
        assert gate.closed["stranger"] == 4
        for client in opened[:4]:
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(loop.sock_recv(client, 1000), 5) == b""


async def test_a_bad_handshake_of_a_client_that_does_not_read_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelock.http.listener._LEAVING_S", 0.2)
    bad = (HANDSHAKE % (b"/", b"")).replace(b"version: 13", b"version: 12")
    request = b"GET /kept/4000000 HTTP/1.1\r\n\r\n"
    async with listening(_answer_of_a_size) as (port, gate), deaf(port, request) as client:
        await until(lambda: len(gate.idle) == 1)
        await asyncio.get_running_loop().sock_sendall(client, bad)
        await until(lambda: gate.open == 0)


class Silent:
    """A connection as far as it is counted."""

    def overdue(self, _: object) -> None: ...

    def abort(self) -> None: ...


async def test_a_connection_that_cannot_be_closed_does_not_keep_the_others_from_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    overdue = HttpConnection.overdue
    fails = [True]

    def once_bad(connection: HttpConnection, waiting: Waiting) -> None:
        if fails and fails.pop():
            raise RuntimeError("a defect")
        overdue(connection, waiting)

    monkeypatch.setattr(HttpConnection, "overdue", once_bad)
    async with listening(_answer_of_a_size) as (port, gate), deaf(port, b"GET"), deaf(port, b"GET"):
        await until(lambda: gate.open == 2)
        await until(lambda: gate.open == 0)
    assert "a defect" in caplog.text


def test_among_those_beyond_the_limit_who_is_silent_goes_before_who_is_answered() -> None:
    gate = Gate(GateLimits.of(Settings(connections=ConnectionLimits(max=1, health_max=2))))
    _, answered, silent, new = connections = [Silent() for _ in range(4)]
    for number, connection in enumerate(connections[:3]):
        gate.enter(connection, None, float(number))
    gate.heads[silent] = 2.0
    assert gate.enter(new, None, 3.0) == "connections_max"
    assert list(gate._crowded) == [answered, new]


def test_an_ipv6_network_counts_as_one_address_and_this_machine_as_none() -> None:
    gate = Gate(GateLimits.of(Settings(host="::", connections=ConnectionLimits(per_address_max=1))))
    addresses = ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "::ffff:192.0.2.1", "192.0.2.1", "127.0.0.1"]
    refusals = [gate.enter(Silent(), address, 0.0) for address in [*addresses, "::1", "127.0.0.1", "::1"]]
    assert refusals == [None, "address_max", None, None, "address_max", None, None, None, None]


def test_as_many_connections_are_taken_as_files_may_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, connections in ((256, 128), (1024, 768), (4096, 3072), (1_000_000, 12_000)):
        monkeypatch.setattr("resource.getrlimit", lambda _, files=files: (files, files))
        assert GateLimits.of(Settings()).connections_max == connections
        assert GateLimits.of(Settings(connections=ConnectionLimits(max=100))).connections_max == 100
    assert GateLimits.of(Settings()).per_address_max is None
    assert GateLimits.of(Settings(host="0.0.0.0")).per_address_max == 3_000
