"""A mirror that runs on a thread, and a plain consumer of what it made."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.running import Running
from tidelock.mirror.broker import Broker
from tidelock.mirror.runner import Mirror
from tidelock.postgres.database import Database
from tidelock.settings import Settings
from tidelock.settings.groups import KafkaSettings

_numbers = itertools.count(1)


def settings_for(broker: Broker, **kafka: Any) -> Settings:
    """Settings of a mirror whose topics are those of no other test."""
    given = {"brokers": (broker.address,), "topic_prefix": f"test{next(_numbers)}.", "pause_max": 500_000_000}
    return Settings(kafka=KafkaSettings(**{**given, **kafka}))


class RunningMirror(Running):
    def __init__(self, database: Database, settings: Settings) -> None:
        told: list[str] = []
        super().__init__("mirror", told, Mirror(database, settings, told.append, patient=True))


@contextmanager
def mirroring(database: Database, settings: Settings) -> Iterator[RunningMirror]:
    mirror = RunningMirror(database, settings)
    mirror.start()
    try:
        yield mirror
    finally:
        mirror.stop()
    assert mirror.error is None, repr(mirror.error)


def mirror_once(database: Database, settings: Settings) -> None:
    """Everything that is recorded now."""
    with database.connect_sync() as connection:
        (end,) = connection.execute("SELECT ingress_sequence FROM ledger_head").fetchone() or (0,)
    Mirror(database, settings, lambda _: None, patient=False).run(threading.Event(), through=end)


@dataclass(frozen=True, slots=True)
class Received:
    """A message as any consumer gets it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes
    text: bytes
    value: dict[str, Any]
    headers: list[tuple[str, bytes | None]]

    @property
    def sequence(self) -> int:
        return int(self.value["ingressSequence"])


def consume(settings: Settings) -> list[Received]:
    """Everything in the mirror's topics, by a plain consumer: each partition in the order of its offsets."""
    config: dict[str, Any] = {"bootstrap.servers": settings.kafka.brokers[0], **settings.kafka.options}
    topics = {
        name: len(topic.partitions)
        for name, topic in AdminClient(config).list_topics(timeout=10).topics.items()
        if name.startswith(settings.kafka.topic_prefix)
    }
    # That a partition has ended is known by a fetch that brings nothing.
    own = {"group.id": "plain", "enable.auto.commit": False, "enable.partition.eof": True, "fetch.wait.max.ms": 10}
    consumer = Consumer({**config, **own})
    try:
        places = {(name, partition) for name, count in topics.items() for partition in range(count)}
        consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in places])
        received: list[Received] = []
        while places:
            message = consumer.poll(20)
            assert message is not None, f"{places} do not come to an end"
            if (error := message.error()) is None:
                received.append(_received(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                places.discard((message.topic(), message.partition()))
        return sorted(received, key=lambda message: (message.topic, message.partition, message.offset))
    finally:
        consumer.close()


def first_of_each(received: Sequence[Received]) -> list[Received]:
    """Without repeats, in total order: what comes first in its partition counts."""
    found: dict[int, Received] = {}
    for message in received:
        found.setdefault(message.sequence, message)
    return [found[sequence] for sequence in sorted(found)]


def _received(message: Any) -> Received:
    return Received(
        message.topic(), message.partition(), message.offset(), message.timestamp()[1], key=message.key(),
        text=message.value(), value=msgspec.json.decode(message.value()), headers=message.headers(),
    )  # fmt: skip
