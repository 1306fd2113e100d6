"""Clients that mean harm, in numbers, beside those that work. A short form is in tests/http/test_connections.py."""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.budgets import HANG_S
from tests.faults.servers import Server, running

EVENT = b'{"stream":"s","data":{"text":"' + b"x" * 100 + b'"}}'
HEAD = b"POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
REQUEST = HEAD + b"content-length: %d\r\n\r\n" % len(EVENT) + EVENT
#: a silent one, half a head, half a body
PARTS = (b"", b"POST /v1/events HTTP/1.1\r\nhost: local", HEAD + b"content-length: 1000\r\n\r\n[")
SOCKET = (
    b"GET %b HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
)
SOCKET += b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
TAIL = SOCKET % b"/ws" + b"\r\n"
LIVE = SOCKET % b"/graphql" + b"sec-websocket-protocol: graphql-transport-ws\r\n\r\n"
EVENTS = (
    b"GET /graphql?query=subscription{counters(where:{}){operation}} HTTP/1.1\r\nhost: localhost\r\n"
    b"accept: text/event-stream\r\n\r\n"
)


def _frame(text: bytes) -> bytes:
    """A short text as a client sends it, under a mask of zeros."""
    return bytes((0x81, 0x80 | len(text), 0, 0, 0, 0)) + text


def _memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024


@asynccontextmanager
async def _connected(server: Server) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def _hang(server: Server, part: bytes) -> None:
    """Send a part of a request and wait to be closed, again and again."""
    while True:
        with suppress(OSError):
            async with _connected(server) as (reader, writer):
                writer.write(part)
                await reader.read()


async def _flood(server: Server) -> None:
    """A header without end, again and again."""
    while True:
        with suppress(OSError):
            async with _connected(server) as (_, writer):
                writer.write(b"GET / HTTP/1.1\r\nx: ")
                while True:
                    writer.write(b"a" * 65_536)
                    await writer.drain()


@asynccontextmanager
async def _hostile(server: Server, silent: int) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(_hang(server, PARTS[number % 3])) for number in range(silent)]
    tasks.append(asyncio.create_task(_flood(server)))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _load(server: Server, seconds: float, latencies: list[float]) -> None:
    """One client that sends an event every few milliseconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        started = time.monotonic()
        writer.write(REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        await reader.readexactly(int(re.findall(rb"content-length: (\d+)", head)[0]))
        latencies.append(time.monotonic() - started)
        await asyncio.sleep(0.01)
    writer.close()


async def _measure(server: Server, seconds: float) -> list[float]:
    latencies: list[float] = []
    await asyncio.gather(*(_load(server, seconds, latencies) for _ in range(4)))
    return latencies


async def _get(server: Server, path: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        return await client.get(path)


async def _post(server: Server) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        assert (await client.post("/v1/events", json={"stream": "s"})).status_code == 200


def _p99_ms(latencies: Iterable[float]) -> float:
    return statistics.quantiles(latencies, n=100)[98] * 1000


@pytest.mark.soak
async def test_a_load_beside_320_hostile_clients_is_answered_as_fast_and_memory_stays(tmp_path: Path) -> None:
    with running(tmp_path / "data") as server:
        await _measure(server, 5)
        before_mb = most_mb = _memory_mb(server.pid)
        alone: list[float] = []
        beside: list[float] = []
        for _ in range(4):
            # In turns, because the machine is not equally fast at all times.
            alone += await _measure(server, 10)
            async with _hostile(server, 320):
                beside += await _measure(server, 15)
                most_mb = max(most_mb, _memory_mb(server.pid))
        closed = re.findall(r'closed_total\{reason="(\w+)"\} ([0-9.]+)', (await _get(server, "/metrics")).text)
        logged = [line for line in server.log().splitlines() if "closed or refused" in line]
        print(f"\nalone: p99 {_p99_ms(alone):.1f} ms of {len(alone)} requests")
        print(f"beside: p99 {_p99_ms(beside):.1f} ms of {len(beside)} requests")
        print(f"memory: {before_mb:.0f} MB before, {most_mb:.0f} MB at most; closed: {closed}")
        print(*logged, sep="\n")
        assert _p99_ms(beside) <= 2 * _p99_ms(alone)
        assert most_mb < before_mb + 50
        assert 1 <= len(logged) <= 3


@pytest.mark.soak
async def test_as_many_silent_clients_as_there_is_room_for_keep_nobody_from_health_or_work(tmp_path: Path) -> None:
    with running(tmp_path / "data") as server:
        before_mb = _memory_mb(server.pid)
        most = int(float(re.findall(r"tidelock_connections_max ([0-9.]+)", (await _get(server, "/metrics")).text)[0]))
        writers = []
        for number in range(most + 200):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            # Some that cannot be replaced: their bodies are on the way.
            writer.write(PARTS[2] if number % 2 else PARTS[0])
            writers.append(writer)
        seconds = []
        for _ in range(20):
            started = time.monotonic()
            assert (await _get(server, "/healthz")).status_code == 200
            seconds.append(time.monotonic() - started)
        open_now = re.findall(r"tidelock_connections [0-9.]+", (await _get(server, "/metrics")).text)
        print(f"\n{open_now} of {most}; memory {before_mb:.0f} MB before, {_memory_mb(server.pid):.0f} MB with them")
        print(f"/healthz in {max(seconds) * 1000:.1f} ms at most, {statistics.median(seconds) * 1000:.1f} ms usually")
        await _post(server)
        for writer in writers:
            writer.transport.abort()


@pytest.mark.soak
async def test_ten_thousand_clients_that_stay_are_kept(tmp_path: Path) -> None:
    config = tmp_path / "tidelock.toml"
    # Limits that each of them passes many times over, and pings that these clients do not answer far away.
    config.write_text(
        "ws_ping_s = 600\n[fold]\nenabled = false\n"
        '[connections]\nhead_timeout = "5s"\nbody_timeout = "2s"\nkeep_alive = "2s"\n'
    )
    with running(tmp_path / "data", config) as server:
        kinds = ((TAIL, 1_000), (LIVE, 4_500), (EVENTS, 4_500))
        opened: dict[bytes, list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = {}
        started = time.monotonic()
        for request, count in kinds:
            opened[request] = []
            for _ in range(count):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith((b"HTTP/1.1 101", b"HTTP/1.1 200")), head
                if request == LIVE:
                    writer.write(_frame(b'{"type":"connection_init"}'))
                    assert b"connection_ack" in await reader.read(100)
                opened[request].append((reader, writer))
        took_s = time.monotonic() - started
        await asyncio.sleep(15)  # longer than all limits, and than a keep-alive
        text = (await _get(server, "/metrics")).text
        counts = [re.findall(rf"tidelock_{name} ([0-9.]+)", text)[0] for name in ("ws_subscribers", "live_connections")]
        assert list(map(float, counts)) == [1_000, 9_000]
        await _post(server)
        for request, expected in ((TAIL, b"ingressSequence"), (LIVE, b'"ping"'), (EVENTS, b":\n\n")):
            for reader, writer in opened[request]:
                async with asyncio.timeout(HANG_S):
                    assert expected in await reader.read(10_000)
                writer.transport.abort()
        print(f"\n10,000 clients came in {took_s:.0f} s and were kept; the server has {_memory_mb(server.pid):.0f} MB")
