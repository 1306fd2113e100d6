"""A broker that is away for ten minutes under load: ingest and fold go on, the mirror stays small and catches up.

`SOAK_OUTAGE_S` makes it longer or shorter.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.memory import resident_mb
from tests.faults.killing import Watched, started
from tests.faults.processes import found, mirror_of
from tests.faults.servers import Producer
from tidelock.mirror.broker import Broker
from tidelock.mirror.proof import MirrorProof
from tidelock.settings import Settings
from tidelock.settings.groups import KafkaSettings

CONFIG = """
[spark]
master = "local[2]"
driver_memory = "768MiB"
[meters.s]
aggregation = "count"
[kafka]
brokers = ["{broker}"]
queue_bytes_max = "16MiB"
pause_max = "2s"
"""
OUTAGE_S = float(os.environ.get("SOAK_OUTAGE_S", "600"))
BEFORE_S = min(60.0, OUTAGE_S)
WRITERS, PAUSE_S = 4, 0.4
#: what the queue may hold, and as much again for what its messages are made of
MEMORY_MB = 64


class Timed(Producer):
    """Keeps how long its requests took."""

    took_s: list[float]

    async def _send_until_answered(self, client: httpx.AsyncClient, keys: list[str]) -> None:
        begun = time.monotonic()
        await super()._send_until_answered(client, keys)
        self.took_s.append(time.monotonic() - begun)


class Period:
    """What was seen while something was so."""

    def __init__(self, server: Watched, producers: list[Timed]) -> None:
        self._server = server
        self._mirror = found(lambda: mirror_of(server.pid), "the mirror")
        self._producers = producers
        self.memory_mb = [0]
        #: how long the fold was behind
        self.fold_s = [0.0]
        for producer in producers:
            producer.took_s = []

    def look(self) -> None:
        self.memory_mb.append(resident_mb(self._mirror) or 0)
        for reader in (self._server.health() or {"readers": []})["readers"]:
            if reader["name"] == "fold":
                self.fold_s.append(reader["lagSeconds"])

    async def last(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(1)

    def quantiles_ms(self) -> tuple[float, float]:
        """p50 and p99 of requests."""
        cuts = statistics.quantiles((took for producer in self._producers for took in producer.took_s), n=100)
        return 1000 * cuts[49], 1000 * cuts[98]

    def __str__(self) -> str:
        requests = sum(len(producer.took_s) for producer in self._producers)
        p50, p99 = self.quantiles_ms()
        return (
            f"{requests} requests, p50/p99 {p50:.0f}/{p99:.0f} ms; fold behind p50/max "
            f"{statistics.median(self.fold_s):.1f}/{max(self.fold_s):.1f} s; mirror at most {max(self.memory_mb)} MB"
        )


@pytest.fixture
def broker(jars: Path, tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "kafka", jars) as started:
        yield started


def mirrored(server: Watched, broker: Broker) -> Any:
    proof = MirrorProof(server.database, Settings(kafka=KafkaSettings(brokers=(broker.address,))))
    proof.compare(lambda *_: None)
    return proof.check()


@pytest.mark.soak
@pytest.mark.timeout(3 * OUTAGE_S + 900)
async def test_a_broker_away_for_ten_minutes_harms_nobody_and_is_caught_up_with(
    jars: Path, broker: Broker, tmp_path: Path
) -> None:
    with started(Watched, jars, tmp_path, CONFIG.format(broker=broker.address)) as server:
        await asyncio.to_thread(server.wait_until_ready, 180)
        producers = [Timed(server.url, f"{number}") for number in range(WRITERS)]
        for producer in producers:
            producer.pause_s, producer.took_s = PAUSE_S, []
        sending = [asyncio.create_task(producer.run()) for producer in producers]
        before = Period(server, producers)
        await before.last(BEFORE_S)
        print(f"before: {before}", flush=True)
        await asyncio.to_thread(broker.kill)
        meanwhile = Period(server, producers)
        await meanwhile.last(OUTAGE_S)
        behind = await asyncio.to_thread(server.positions)
        print(f"{OUTAGE_S:.0f} s without a broker: {meanwhile}; {behind}", flush=True)
        await asyncio.to_thread(server.wait_until_read, await asyncio.to_thread(server.head), "fold")
        await asyncio.to_thread(broker.start)
        back = time.monotonic()
        catching_up = Period(server, producers)
        watching = asyncio.create_task(catching_up.last(3600))
        # Of what had come until now, and then of what has come meanwhile: it is faster than those who write.
        for _ in range(2):
            await asyncio.to_thread(server.wait_until_read, await asyncio.to_thread(server.head), "kafka")
        caught_up_s = time.monotonic() - back
        watching.cancel()
        for producer in producers:
            producer.stopping.set()
        await asyncio.gather(*sending)
        print(f"caught up in {caught_up_s:.1f} s: {catching_up}", flush=True)
        await asyncio.to_thread(server.wait_until_read, await asyncio.to_thread(server.head), "fold", "kafka")
        check = await asyncio.to_thread(mirrored, server, broker)
        print(check.detail, flush=True)
    assert check.ok, check.detail
    assert sum(producer.retries for producer in producers) == 0, "every request was taken the first time"
    assert max(meanwhile.memory_mb) < max(before.memory_mb) + MEMORY_MB, "events wait in the ledger, not in memory"
    assert meanwhile.quantiles_ms()[0] < 3 * before.quantiles_ms()[0], "nobody who writes waits for a broker"
    assert statistics.median(meanwhile.fold_s) < statistics.median(before.fold_s) + 2, "nor does the fold"
