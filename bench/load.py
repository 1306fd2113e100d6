"""A load generator for the ingest route: closed loop on kept-alive connections, requests built beforehand.

Bare sockets on purpose: on a small machine a full HTTP client would take the processor time that is to be measured.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tidelock.errors import Difference
from tidelock.instants import MILLISECOND, format_instant


class _Counts(msgspec.Struct):
    accepted: int


_counts = msgspec.json.Decoder(_Counts)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run took."""

    events: int
    seconds: float
    #: of each request, ascending
    latencies_s: list[float]

    @property
    def events_per_s(self) -> float:
        return self.events / self.seconds

    def percentile_ms(self, fraction: float) -> float:
        return self.latencies_s[min(len(self.latencies_s) - 1, int(fraction * len(self.latencies_s)))] * 1000


def request(host: str, events: Sequence[object]) -> bytes:
    body = msgspec.json.encode({"events": events})
    head = (
        "POST /v1/events HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join([*head, "", ""]).encode() + body


def sample_events(first: int, count: int, *, start: int) -> list[dict[str, object]]:
    """Events as an API product sends them: ten thousand customers, a few fields of data, no key of their own."""
    return [
        {
            "tenantId": "acme",
            "stream": "api_calls",
            "customerRef": f"cus_{number % 10_000}",
            "ts": format_instant(start + number * MILLISECOND),
            "quantity": "1.5",
            "data": {"region": "eu", "path": "/v1/things", "status": 200, "ms": number % 977},
            "source": "sdk",
        }
        for number in range(first, first + count)
    ]


async def run(host: str, port: int, requests: Sequence[bytes], connections: int, events_per_request: int) -> Measured:
    """Send every request once, over so many connections, each waiting for its answer before the next."""
    latencies: list[float] = []
    started = time.perf_counter()
    await asyncio.gather(
        *(
            _send(host, port, requests[number::connections], events_per_request, latencies)
            for number in range(connections)
        )
    )
    return Measured(len(requests) * events_per_request, time.perf_counter() - started, sorted(latencies))


async def _send(host: str, port: int, requests: Sequence[bytes], expected: int, latencies: list[float]) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    for sent in requests:
        before = time.perf_counter()
        writer.write(sent)
        status, body = await read_answer(reader)
        latencies.append(time.perf_counter() - before)
        if status != 200 or _counts.decode(body).accepted != expected:
            raise Difference(f"the server answered {status}: {body[:300].decode(errors='replace')}")
    writer.close()
    await writer.wait_closed()


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of the next answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    return int(head[9:12]), await reader.readexactly(length)
