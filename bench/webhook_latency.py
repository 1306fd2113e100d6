"""How long after its acknowledgement an event reaches a receiver of webhooks, at a steady rate, through a real fold."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench import load, scratch
from bench.latency import WARM_UP_S, Watcher, send, server_of_its_own, visible_figures
from bench.webhook_receiver import Receiving
from tidelock.errors import Difference
from tidelock.settings import Settings

Say = Callable[[str], None]
Figures = dict[str, object]

_STREAM = """
[streams.bench_alerts]
key = "k"
columns = { k = "bigint", level = "int" }

[meters.bench_latency]
stream = "bench_alerts"
aggregation = "count"
"""
#: how long the last webhooks may take
_LAST_S = 60.0


class _Row(msgspec.Struct):
    k: int


class _Body(msgspec.Struct):
    data: _Row


_bodies = msgspec.json.Decoder(_Body)


def measure(settings: Settings, seconds: int, rate: int, say: Say, *, place: Path | None = None) -> Figures:
    """Figures of a server, a fold and a delivery of their own, and a receiver in this process."""
    allowed = {"TIDELOCK_WEBHOOK_ALLOW_PRIVATE": "true"}
    with server_of_its_own(settings, _STREAM, say, place=place, environment=allowed) as (served, database):
        say(f"sending {rate} events a second for {WARM_UP_S} s and, measured, for {seconds} s")
        with Watcher(database) as watcher:
            return asyncio.run(_measure(served, (WARM_UP_S + seconds) * rate, rate, watcher))


async def _measure(served: scratch.Served, count: int, rate: int, watcher: Watcher) -> Figures:
    got_s: dict[int, float] = {}
    complete = asyncio.Event()

    def take(body: bytes, now_ns: int) -> None:
        got_s.setdefault(_bodies.decode(body).data.k, now_ns / 1e9)
        if len(got_s) == count:
            complete.set()

    connections: list[Receiving] = []

    def connection() -> Receiving:
        connections.append(Receiving(take))
        return connections[-1]

    receiver = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
    port = receiver.sockets[0].getsockname()[1]
    await asyncio.to_thread(_make_trigger, served, f"http://127.0.0.1:{port}/hook")
    requests = [
        load.request(
            served.host,
            [{"stream": "bench_alerts", "customerRef": "cus_1", "data": {"k": number, "level": number % 7}}],
        )
        for number in range(count)
    ]
    sent = await send(served, requests, rate)
    try:
        async with asyncio.timeout(_LAST_S):
            await complete.wait()
    except TimeoutError:
        raise Difference(f"only {len(got_s)} of {count} events reached the receiver") from None
    finally:
        receiver.close()
        for each in connections:
            each.close()
        # They end in the loop's next round.
        await asyncio.sleep(0)
    watcher.wait(count)
    delays = [max(0.0, got_s[each.turn] - each.at_s) for each in sent[WARM_UP_S * rate :]]
    return {
        "latencyEvents": len(delays),
        **visible_figures("acknowledgedToDelivered", delays),
        **visible_figures("visible", watcher.delays_s(sent)[WARM_UP_S * rate :]),
    }


def _make_trigger(served: scratch.Served, webhook: str) -> None:
    """One that every row matches."""
    said = json.dumps({"name": "bench", "table": "bench_alerts", "match": {}, "webhook": webhook}).encode()
    url = f"http://{served.host}:{served.port}/v1/triggers"
    request = urllib.request.Request(url, said, {"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()
