"""`bench mirror`: a backlog sent to Kafka beside a bare loop that sends the same messages from memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from bench import memory, scratch
from bench.backlog import Backlog
from bench.harness import Rounds, Say
from bench.runs import Figures
from tidelock.errors import Difference
from tidelock.ledger.opening import migrate_ledger, open_database
from tidelock.mirror.broker import Broker
from tidelock.mirror.cluster import KafkaCluster
from tidelock.mirror.messages import LedgerPages, Message
from tidelock.mirror.proof import MirrorProof
from tidelock.mirror.runner import Mirror, calm_collector
from tidelock.mirror.sender import COMPRESSION
from tidelock.postgres.database import Database
from tidelock.settings import Settings

ROWS = {
    "events": "events",
    "bytesPerMessage": "bytes of a message's value",
    "bareEventsPerSecond": "a bare producer loop with the messages in memory (the limit), events/s",
    "mirrorEventsPerSecond": "the mirror: read, encoded, sent, acknowledged, recorded, events/s",
    "mirrorRatioToBare": "    against the bare loop",
    "mirrorPeakMb": "    peak of its memory, MB",
}
_CUSTOMERS = 10_000
_BARE, _MIRROR = "bare loop", "mirror"
_POLL_EVERY = 1_000


def measure(settings: Settings, events: int, rounds: int, say: Say, *, place: Path | None) -> Figures:
    """On a Kafka and a Postgres of its own in `place`."""
    with scratch.directory(place) as data:
        scratch.take_jars(settings.data, data)
        say("starting a Kafka")
        with Broker(data / "kafka", data, settings.spark.java) as broker:
            kafka = replace(settings.kafka, brokers=(broker.address,))
            own = replace(settings, data=data, database_url=None, kafka=kafka)
            with open_database(own) as database:
                migrate_ledger(database)
                say(f"filling a ledger: {events:,} events")
                Backlog(database, events, _CUSTOMERS, own.partition_events)
                return _measure(database, own, events, rounds, say)


def _measure(database: Database, settings: Settings, events: int, rounds: int, say: Say) -> Figures:
    mirrors = _Mirrors(database, settings, events)
    # While there is nothing else in memory.
    memory.forget_peak(os.getpid())
    mirrors.run()
    peak = memory.peak_mb(os.getpid())
    messages = _read_all(database, settings)
    bare = _BareLoops(settings, messages)
    calm_collector()
    bare.run()
    timed = Rounds("sent", {_BARE: bare.run, _MIRROR: mirrors.run}, say)
    for _ in range(rounds):
        timed.run()
    mirrors.check()
    bare_s, mirror_s = timed.median_s(_BARE), timed.median_s(_MIRROR)
    return {
        "events": events,
        "bytesPerMessage": round(sum(len(message.value) for message in messages) / events),
        "bareEventsPerSecond": round(events / bare_s),
        "mirrorEventsPerSecond": round(events / mirror_s),
        "mirrorRatioToBare": round(bare_s / mirror_s, 3),
        "mirrorPeakMb": peak,
    }


class _Mirrors:
    """The mirror as it runs in production, each time from the first event on and into topics of its own."""

    def __init__(self, database: Database, settings: Settings, events: int) -> None:
        self._database = database
        self._settings = settings
        self._events = events
        self._number = 0

    def run(self) -> float:
        self._number += 1
        kafka = replace(self._settings.kafka, topic_prefix=f"mirror{self._number}.")
        self._settings = replace(self._settings, kafka=kafka)
        with self._database.connect_sync() as connection:
            connection.execute("TRUNCATE mirrored")
            connection.execute("DELETE FROM cursors WHERE name = 'kafka'")
        runner = Mirror(self._database, self._settings, lambda _: None, patient=False)
        started = time.perf_counter()
        runner.run(threading.Event(), through=self._events)
        return time.perf_counter() - started

    def check(self) -> None:
        """Raises Difference where the last one is not the ledger: what is wrong is not fast."""
        proof = MirrorProof(self._database, self._settings)
        proof.compare(lambda *_: None)
        if not (found := proof.check()).ok:
            raise Difference(f"the mirror that was measured differs: {found.detail}")


class _BareLoops:
    """What a program does that has its messages in memory, and wants to know that each was taken."""

    def __init__(self, settings: Settings, messages: Sequence[Message]) -> None:
        self._settings = settings
        self._messages = [(message, message.headers) for message in messages]
        self._number = 0

    def run(self) -> float:
        self._number += 1
        kafka = replace(self._settings.kafka, topic_prefix=f"bare{self._number}.")
        ((topic, _),) = KafkaCluster(kafka, self._settings.event_bytes_max).topics(["events"]).values()
        taken = 0

        def report(error: Any, _: Any) -> None:
            nonlocal taken
            taken += error is None

        started = time.perf_counter()
        producer = Producer(
            {
                "bootstrap.servers": ",".join(kafka.brokers),
                "enable.idempotence": True,
                "acks": "all",
                **COMPRESSION,
                "queue.buffering.max.kbytes": kafka.queue_bytes_max >> 10,
                **kafka.options,
            }
        )
        for number, (message, headers) in enumerate(self._messages):
            while True:
                try:
                    producer.produce(
                        topic, message.value, message.key, on_delivery=report, timestamp=message.timestamp,
                        headers=headers,
                    )  # fmt: skip
                    break
                except BufferError:
                    producer.poll(0.01)
            if number % _POLL_EVERY == 0:
                producer.poll(0)
        producer.flush()
        seconds = time.perf_counter() - started
        if taken != len(self._messages):
            raise Difference(f"the bare loop lost {len(self._messages) - taken} messages")
        return seconds


def _read_all(database: Database, settings: Settings) -> list[Message]:
    messages: list[Message] = []
    with closing(LedgerPages(database, settings.kafka.batch_events_max, settings.kafka.batch_bytes_max)) as source:
        while found := source.read(messages[-1].sequence if messages else 0).messages:
            messages += found
    return messages
