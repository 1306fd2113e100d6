"""`bench webhooks`: deliveries from the outbox beside a bare loop of the same client, and beside dead endpoints."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import uvloop

from bench import scratch
from bench.harness import Say
from tidelock.errors import Unreachable
from tidelock.instants import SECOND
from tidelock.ledger.opening import migrate_ledger, open_database
from tidelock.postgres.database import Database
from tidelock.postgres.queries import load
from tidelock.settings import Settings
from tidelock.triggers.attempts import WebhookSender
from tidelock.triggers.definition import event_id
from tidelock.triggers.delivery import open_delivery
from tidelock.triggers.outbox import Transition, append
from tidelock.triggers.payloads import payload
from tidelock.triggers.signatures import Signer, generate_secret

QUERIES = load("bench", "webhooks.sql")

CONCURRENCY = 32
#: transitions of each key, which are delivered one after another
CHAIN = 5
#: events of each dead endpoint
DEAD_EVENTS = 1_000


class _Taken(NamedTuple):
    """What so many requests took."""

    per_s: float
    #: processor time of this process for each
    cpu_us: float


def measure(
    settings: Settings, events: int, rounds: int, say: Say, *, seconds: int, dead: int, place: Path | None = None
) -> dict[str, float | int]:
    """Deliveries a second against the bare client, medians of rounds; then for so many seconds the time from the
    outbox to a receiver, alone and beside so many endpoints that hang."""
    with scratch.directory(place) as data:
        settings = replace(
            settings, data=data, database_url=None, webhook_allow_private=True, webhook_concurrency=CONCURRENCY
        )
        with open_database(settings) as database:
            migrate_ledger(database)
            bench = _Bench(settings, database, say)
            return bench.throughput(events, rounds) | bench.latency(seconds, dead)


class _Bench:
    def __init__(self, settings: Settings, database: Database, say: Say) -> None:
        self._settings = settings
        self._database = database
        self._say = say
        self._secret = generate_secret()

    def throughput(self, events: int, rounds: int) -> dict[str, float | int]:
        bare: list[_Taken] = []
        delivered: list[_Taken] = []
        with _receiver() as receiver:
            for number in range(rounds + 1):
                # The first round warms up.
                count = events if number else min(events, 1_000)
                bare.append(uvloop.run(self._bare(receiver.url, count)))
                delivered.append(uvloop.run(self._delivered(receiver.url, count)))
                if number:
                    limit, ours = bare[-1], delivered[-1]
                    self._say(
                        f"  round {number}: bare {limit.per_s:,.0f}/s ({limit.cpu_us:.0f} µs of processor time), "
                        f"delivered {ours.per_s:,.0f}/s ({ours.cpu_us:.0f} µs)"
                    )
        ratios = [ours.per_s / limit.per_s for ours, limit in zip(delivered[1:], bare[1:], strict=True)]
        return {
            "bareRequestsPerSecond": round(statistics.median(taken.per_s for taken in bare[1:])),
            "bareCpuMicroseconds": round(statistics.median(taken.cpu_us for taken in bare[1:])),
            "deliveriesPerSecond": round(statistics.median(taken.per_s for taken in delivered[1:])),
            "deliveryCpuMicroseconds": round(statistics.median(taken.cpu_us for taken in delivered[1:])),
            "deliveriesRatioToBare": round(statistics.median(ratios), 3),
        }

    def latency(self, seconds: int, dead: int) -> dict[str, float | int]:
        figures: dict[str, float | int] = {"deadEndpoints": dead}
        for name, count in (("alone", 0), ("beside", dead)):
            with _receiver() as receiver:
                uvloop.run(self._trickle(receiver.url, seconds, count))
                taken_ns = sorted(receiver.taken_ns())
            figures |= {
                f"{name}P50Ms": round(taken_ns[len(taken_ns) // 2] / 1e6, 1),
                f"{name}P99Ms": round(taken_ns[int(len(taken_ns) * 0.99)] / 1e6, 1),
            }
            self._say(f"  {name}: p50 {figures[f'{name}P50Ms']} ms, p99 {figures[f'{name}P99Ms']} ms")
        return figures

    async def _bare(self, url: str, count: int) -> _Taken:
        """The same requests, made and signed the same way, from a loop that does nothing else."""
        settings = self._settings
        sender = WebhookSender(
            timeout_s=settings.webhook_timeout_s,
            response_bytes_max=settings.webhook_response_bytes_max,
            allow_private=True,
        )
        signer, transitions = Signer([self._secret]), iter(_transitions(1, "bench", count))

        async def send() -> None:
            for one in transitions:
                now = time.time_ns()
                body = payload(
                    event_id=one.event_id, event_type=one.event_type, trigger="bench",
                    source_timestamp=one.source_timestamp, data=one.data, sent_at_ns=now,
                )  # fmt: skip
                result = await sender.post(url, signer.headers(one.event_id, now // SECOND, body), body)
                if result.outcome != "delivered":
                    raise Unreachable(f"the receiver did not answer: {result}")

        watch = _Watch(count)
        await asyncio.gather(*(send() for _ in range(CONCURRENCY)))
        taken = watch.read()
        await sender.close()
        return taken

    async def _delivered(self, url: str, count: int) -> _Taken:
        """From an outbox that is full, until the last is delivered and everything is settled."""
        trigger = self._begin(url)
        with self._database.connect_sync() as connection, connection.transaction():
            append(connection, _transitions(trigger, "bench", count))
        delivery = open_delivery(self._settings, self._database, _disable)
        watch = _Watch(count)
        await delivery.start()
        attempts = delivery.dispatch.attempts
        while attempts["delivered"] < count or delivery.dispatch.done:  # noqa: ASYNC110  (nobody tells)
            await asyncio.sleep(0.002)
        taken = watch.read()
        await delivery.close()
        return taken

    async def _trickle(self, url: str, seconds: int, dead: int) -> None:
        """A hundred events a second for one endpoint, while others have much to be sent and never answer."""
        trigger = self._begin(url)
        with self._database.connect_sync() as connection:
            for number in range(dead):
                other = self._trigger(f"dead{number}", f"{url.removesuffix('/hook')}/dead/{number}")
                append(connection, _transitions(other, f"dead{number}", DEAD_EVENTS))
        delivery = open_delivery(self._settings, self._database, _disable)
        await delivery.start()
        await asyncio.to_thread(self._feed, trigger, seconds)
        while delivery.dispatch.attempts["delivered"] < seconds * 100:  # noqa: ASYNC110  (nobody tells)
            await asyncio.sleep(0.01)
        # What is under way never ends.
        await delivery.close(finish_s=0)

    def _feed(self, trigger: int, seconds: int) -> None:
        with self._database.connect_sync() as connection:
            started = time.monotonic()
            for number in range(seconds * 100):
                time.sleep(max(0.0, started + number / 100 - time.monotonic()))
                (one,) = _transitions(trigger, "bench", 1, first=number)
                append(connection, [one])

    def _begin(self, url: str) -> int:
        with self._database.connect_sync() as connection:
            connection.execute(QUERIES["clear"])
        return self._trigger("bench", url)

    def _trigger(self, name: str, url: str) -> int:
        with self._database.connect_sync() as connection:
            connection.execute(QUERIES["add_secrets"], {"name": name, "secrets": [self._secret]})
            row = connection.execute(QUERIES["add_trigger"], {"name": name, "webhook": url}).fetchone()
            assert row is not None, "it returns its id"
            return int(row[0])


class _Watch:
    def __init__(self, count: int) -> None:
        self._count = count
        self._started, self._cpu_started = time.perf_counter(), time.process_time()

    def read(self) -> _Taken:
        seconds, cpu_s = time.perf_counter() - self._started, time.process_time() - self._cpu_started
        return _Taken(self._count / seconds, cpu_s / self._count * 1e6)


class _Receiver:
    """The receiver in its own process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self.url = f"http://127.0.0.1:{int(process.stdout.readline())}/hook"

    def taken_ns(self) -> list[int]:
        """Ends it, and gives how long each webhook took."""
        said, _ = self._process.communicate()
        found: list[int] = json.loads(said)
        return found


@contextmanager
def _receiver() -> Iterator[_Receiver]:
    command = [sys.executable, "-m", "bench.webhook_receiver"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield _Receiver(process)
        finally:
            process.kill()


def _transitions(trigger: int, name: str, count: int, first: int = 0) -> list[Transition]:
    """Rows of five columns; each key enters and leaves some times."""
    made = []
    for number in range(first, first + count):
        key, time_ns = str(number // CHAIN if count > 1 else number), 1_705_316_445_000_000_000 + number
        data: dict[str, Any] = {
            "trade_id": int(key), "symbol": "AAPL", "quantity": number % 1000, "price": "101.25",
            "sent_ns": time.monotonic_ns(),
        }  # fmt: skip
        event_type: Any = "UNMATCH" if number % 2 else "MATCH"
        identity = event_id(name, key, time_ns)
        made.append(
            Transition(
                trigger,
                "default",
                key,
                identity,
                event_type=event_type,
                source_timestamp=time_ns,
                data=msgspec.json.encode(data),
            )
        )
    return made


async def _disable(name: str) -> int:
    raise AssertionError("no receiver here is gone")
