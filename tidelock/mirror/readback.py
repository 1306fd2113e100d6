"""Reading back: what the topics hold now, by a consumer that leaves no trace."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from tidelock.errors import Unreachable
from tidelock.mirror.batches import Place
from tidelock.mirror.cluster import brokers_of, open_client, reason
from tidelock.settings.kafka import Kafka

_ANSWER_S = 10.0
_SILENCE_S = 30.0
_WAIT_S = 0.2
_CHUNK = 5_000


class Readback:
    """A consumer of whole partitions."""

    def __init__(self, kafka: Kafka) -> None:
        self._brokers = brokers_of(kafka)
        own = {
            # Needed by the client, though this one joins no group and commits nothing.
            "group.id": "tidelock",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "check.crcs": True,
        }
        self._consumer: Consumer = open_client(Consumer, kafka, own)

    def close(self) -> None:
        self._consumer.close()

    def ends(self, topics: Mapping[str, int]) -> dict[Place, int]:
        """Where the partitions of topics end now: the offset behind the last."""
        return {place: end for place, (_, end) in self._bounds(topics).items()}

    def begins(self, topics: Mapping[str, int]) -> dict[Place, int]:
        """Where they begin now: the first offset that was not removed."""
        return {place: begin for place, (begin, _) in self._bounds(topics).items()}

    def chunks(self, ends: Mapping[Place, int]) -> Iterator[list[Any]]:
        """All messages of partitions from the first that there is to these ends, each partition in its order."""
        left = {place for place, end in ends.items() if end > 0}
        self._consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in left])
        heard_at = time.monotonic()
        while left:
            chunk = []
            # It waits for as many as it is asked for, or for so long.
            found = self._consumer.consume(_CHUNK, timeout=_WAIT_S)
            if found:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > _SILENCE_S:
                raise Unreachable(f"Kafka at {self._brokers} gives nothing of {min(left).topic} for {_SILENCE_S:.0f} s")
            for message in found:
                place = Place(message.topic() or "", message.partition() or 0)
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise Unreachable(f"{place.topic} cannot be read: {error.str()}")
                at = message.offset() or 0
                if error is None and at < ends[place]:
                    chunk.append(message)
                if at >= ends[place] - 1 and place in left:
                    left.discard(place)
                    self._consumer.pause([TopicPartition(*place)])
            yield chunk

    def _bounds(self, topics: Mapping[str, int]) -> dict[Place, tuple[int, int]]:
        places = [Place(topic, partition) for topic, count in topics.items() for partition in range(count)]
        found = {}
        try:
            for place in places:
                bounds = self._consumer.get_watermark_offsets(TopicPartition(*place), timeout=_ANSWER_S)
                if bounds is None:
                    raise Unreachable(f"Kafka at {self._brokers} does not say where {place.topic} ends")
                found[place] = bounds
        except KafkaException as error:
            raise Unreachable(f"Cannot reach Kafka at {self._brokers}: {reason(error)}") from None
        return found
