"""The sender: puts batches on the wire, in order, each message once per sender, and collects the acknowledgements."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from confluent_kafka import KafkaError, KafkaException, Producer

from tidelock.errors import Unreachable
from tidelock.mirror.cluster import BATCH_BYTES, brokers_of, open_client, reason
from tidelock.mirror.messages import Message
from tidelock.mirror.ranges import InFlight, Offsets, Partition
from tidelock.settings.groups import KafkaSettings

_ROOM_S = 0.05
_MESSAGE_BYTES_MAX = 1_000_000_000
#: a queue is full by its bytes; this many messages are no more than a few batches
_QUEUE_MESSAGES = 1_000_000

#: what every consumer reads as it is installed: for anything else KafkaJS and kafka-python need further packages
COMPRESSION: dict[str, Any] = {"compression.type": "gzip", "compression.level": 1}
_COMPRESSION = ("compression.type", "compression.codec", "compression.level")

_Topics = Mapping[str, tuple[str, int]]
_Report = Callable[[KafkaError | None, Any], None]


class KafkaSender:
    """A producer whose messages arrive in order or not at all: after a lost message nothing more is sent."""

    def __init__(self, kafka: KafkaSettings, *, careful: bool) -> None:
        self._brokers = brokers_of(kafka)
        #: every message is reported, to learn why one is not accepted
        self.careful = careful
        self._queue_bytes_max = kafka.queue_bytes_max
        #: the last error of the brokers
        self.complaint: str | None = None
        #: when something was last acknowledged, or waiting restarted
        self.heard_at = time.monotonic()
        own = {
            "enable.idempotence": True,
            "acks": "all",
            # A gap would be filled later, after its successors: out of order. So nothing is ever given up.
            "enable.gapless.guarantee": True,
            "message.timeout.ms": 0,
            "message.max.bytes": _MESSAGE_BYTES_MAX,
            "batch.size": BATCH_BYTES,
            "queue.buffering.max.kbytes": kafka.queue_bytes_max >> 10,
            "queue.buffering.max.messages": _QUEUE_MESSAGES,
            "error_cb": self._complain,
        }
        usual: dict[str, Any] = {"linger.ms": 5}
        if kafka.options.keys().isdisjoint(_COMPRESSION):
            usual |= COMPRESSION
        given = {name: value for name, value in usual.items() if name not in kafka.options}
        self._producer: Producer = open_client(Producer, kafka, {**given, **own})

    def send(self, messages: Sequence[Message], topics: _Topics, *, whole: bool, room: Callable[[], None]) -> InFlight:
        """Queue messages; `room` is called again and again while the queue is full, and may raise."""
        batch = InFlight(messages[0].sequence, messages[-1].sequence, whole)
        ways = _ways(messages, topics)
        reports = self._reports(batch, ways)
        produce = self._producer.produce
        for number, (message, way) in enumerate(zip(messages, ways, strict=True)):
            while True:
                try:
                    produce(
                        way.topic, message.value, message.key, way.partition, on_delivery=reports.get(number),
                        timestamp=message.timestamp, headers=message.headers,
                    )  # fmt: skip
                    break
                except BufferError:
                    self._check_size(message)
                    self.poll(_ROOM_S)
                    room()
                except KafkaException as error:
                    raise Unreachable(
                        f"{way.topic} did not accept sequence {message.sequence}: {reason(error)}"
                    ) from None
        self.poll(0)
        return batch

    def poll(self, seconds: float) -> None:
        """Collect acknowledgements. Raises Unreachable if this sender has failed."""
        try:
            self._producer.poll(seconds)
        except KafkaException as error:
            raise Unreachable(f"Kafka at {self._brokers}: {reason(error)}") from None

    def close(self) -> None:
        """Leave what is not acknowledged: it may arrive or not."""
        # A purge leaves a gap, which ends this producer: expected here.
        with suppress(KafkaException):
            self._producer.purge(in_queue=True, in_flight=True, blocking=False)
            self._producer.flush(0)

    def _check_size(self, message: Message) -> None:
        if len(message.value) >= self._queue_bytes_max:
            size = f"sequence {message.sequence} has {len(message.value)} bytes"
            raise Unreachable(f"{size}, more than the queue; raise kafka.queue_bytes_max")

    def _reports(self, batch: InFlight, ways: Sequence[_Way]) -> dict[int, _Report]:
        """The recipients of reports, by message."""
        reports: dict[int, _Report] = {}
        for way in dict.fromkeys(ways):
            place = Partition(way.topic, way.partition)
            batch.spans[place] = span = Offsets(way.count)
            reports[way.last] = self._report(batch, place, span, first=False)
            reports[way.first] = self._report(batch, place, span, first=True)
        if self.careful:
            for number, way in enumerate(ways):
                if number not in reports:
                    place = Partition(way.topic, way.partition)
                    reports[number] = self._report(batch, place, batch.spans[place], first=False)
        batch.waiting = len(reports)
        return reports

    def _report(self, batch: InFlight, place: Partition, span: Offsets, *, first: bool) -> _Report:
        def report(error: KafkaError | None, sent: Any) -> None:
            if error is not None:
                batch.refusal = f"{place.topic} did not accept a message: {error.str()}"
                return
            self.heard_at = time.monotonic()
            self.complaint = None
            offset = sent.offset()
            if first:
                span.first_offset = offset
            span.last_offset = max(span.last_offset, offset)
            batch.waiting -= 1

        return report

    def _complain(self, error: KafkaError) -> None:
        self.complaint = f"Kafka at {self._brokers}: {error.str()}"


@dataclass(slots=True, eq=False)
class _Way:
    """A partition, and which messages of a batch go there."""

    topic: str
    partition: int
    first: int
    last: int = 0
    count: int = 0


def _ways(messages: Sequence[Message], topics: _Topics) -> list[_Way]:
    """Where each message goes: by its key alone, as with librdkafka's own `consistent` partitioner."""
    found: list[_Way] = []
    known: dict[str, dict[int, _Way]] = {stream: {} for stream in {message.stream for message in messages}}
    for number, message in enumerate(messages):
        stream = message.stream
        topic, partitions = topics[stream]
        partition = crc32(message.key) % partitions if partitions > 1 else 0
        way = known[stream].get(partition)
        if way is None:
            way = known[stream][partition] = _Way(topic, partition, number)
        way.last = number
        way.count += 1
        found.append(way)
    return found
