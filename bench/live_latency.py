"""How long after its acknowledgement an event reaches a subscriber, at a steady rate, through a real fold."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import websockets
from websockets.asyncio.client import ClientConnection
from websockets.typing import Subprotocol

from bench import load, scratch
from bench.latency import METER, WARM_UP_S, Acknowledged, Watcher, events, send, server_of_its_own, visible_figures
from tidelock.errors import Difference
from tidelock.settings import Settings

Say = Callable[[str], None]
Figures = dict[str, object]

_DOCUMENT = """subscription { counters(where: {metric: {_eq: "bench_latency"}}) {
    operation ts_timestamp data { customer_ref agg_count value } } }"""
#: how long the last events may take
_LAST_S = 30.0


class _Row(msgspec.Struct):
    customer_ref: str


class _Update(msgspec.Struct):
    ts_timestamp: str
    data: _Row


class _Data(msgspec.Struct):
    counters: _Update


class _Payload(msgspec.Struct):
    data: _Data


class _Message(msgspec.Struct):
    type: str
    payload: msgspec.Raw = msgspec.Raw(b"null")


_messages = msgspec.json.Decoder(_Message)
_payloads = msgspec.json.Decoder(_Payload)


class _Subscriber:
    """Notes when it got what of each customer."""

    def __init__(self) -> None:
        #: source timestamps by customer, and when each was got; both ascending
        self._times: dict[str, list[int]] = defaultdict(list)
        self._got_s: dict[str, list[float]] = defaultdict(list)
        #: of the last event there is, as soon as that is known
        self.last: int | None = None

    async def run(self, connection: ClientConnection) -> None:
        """Returns when it has got the last."""
        async for text in connection:
            now = time.perf_counter()
            message = _messages.decode(text)
            if message.type == "ping":
                await connection.send('{"type":"pong"}')
            elif message.type == "next":
                update = _payloads.decode(message.payload).data.counters
                self._times[update.data.customer_ref].append(int(update.ts_timestamp))
                self._got_s[update.data.customer_ref].append(now)
                if int(update.ts_timestamp) == self.last:
                    return
            elif message.type != "connection_ack":
                raise Difference(f"the server sent {text[:300]!r}")

    def got_s(self, customer: str, source_timestamp: int) -> float:
        """When it knew of an event: what waits together for a subscriber is told in one message."""
        times = self._times[customer]
        place = bisect_left(times, source_timestamp)
        if place == len(times):
            raise Difference(f"an event of {customer} did not reach the subscriber")
        return self._got_s[customer][place]


def measure(
    settings: Settings, seconds: int, rate: int, say: Say, *, config: Path | None = None, place: Path | None = None
) -> Figures:
    """Figures of a server and a fold of their own in `place`, with the settings of a file."""
    with server_of_its_own(settings, METER, say, config=config, place=place) as (served, database):
        say(f"sending {rate} events a second for {WARM_UP_S} s and, measured, for {seconds} s")
        with Watcher(database) as watcher:
            return asyncio.run(_measure(served, (WARM_UP_S + seconds) * rate, rate, watcher))


async def _measure(served: scratch.Served, count: int, rate: int, watcher: Watcher) -> Figures:
    sample = list(events(count))
    requests = [load.request(served.host, [event]) for event in sample]
    subscriber = _Subscriber()
    url = f"ws://{served.host}:{served.port}/graphql"
    async with websockets.connect(url, subprotocols=[Subprotocol("graphql-transport-ws")]) as connection:
        await connection.send('{"type":"connection_init"}')
        subscribe = {"id": "1", "type": "subscribe", "payload": {"query": _DOCUMENT}}
        await connection.send(msgspec.json.encode(subscribe).decode())
        following = asyncio.create_task(subscriber.run(connection))
        sent = await send(served, requests, rate)
        subscriber.last = max(int(each.verdict.source_timestamp) for each in sent)
        try:
            async with asyncio.timeout(_LAST_S):
                await following
        except TimeoutError:
            pass  # what is missing is told below
    watcher.wait(count)
    delays = watcher.delays_s(sent)[WARM_UP_S * rate :]
    got = _figures(sent[WARM_UP_S * rate :], [str(event["customerRef"]) for event in sample], subscriber)
    return {**got, **visible_figures("visible", delays)}


def _figures(sent: Sequence[Acknowledged], customers: Sequence[str], subscriber: _Subscriber) -> Figures:
    delays = [
        max(0.0, subscriber.got_s(customers[each.turn], int(each.verdict.source_timestamp)) - each.at_s)
        for each in sent
    ]
    return {
        "latencyEvents": len(delays),
        **visible_figures("live", delays),
    }
