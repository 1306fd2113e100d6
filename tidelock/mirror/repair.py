"""Repair: mirror again from a sequence on. What was mirrored from there on counts no more."""

from __future__ import annotations

from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tidelock.errors import SettingsError, Unreachable
from tidelock.mirror.cluster import Cluster, open_client, reason
from tidelock.mirror.ranges import QUERIES, read_position
from tidelock.settings import Settings

_ANSWER_S = 10.0


def restart_from(connection: psycopg.Connection[Any], settings: Settings, first: int) -> int:
    """Move the cursor back so that a sequence and all behind it are sent again; gives where it stands then.

    A mirror that runs sees that its cursor was moved, and goes on from there.
    """
    position = read_position(connection)
    if not 1 <= first <= position:
        upto = f"1 to {position}" if position else "none yet"
        raise SettingsError(f"--from {first}: the sequences that were mirrored are {upto}")
    ends = read_ends(settings)
    with connection.transaction():
        row = connection.execute(QUERIES["restart"], {"first": first}).fetchone()
        connection.execute(QUERIES["forget_from"], (first,))
        connection.cursor().executemany(QUERIES["repaired"], [(*place, end) for place, end in ends.items()])
    assert row is not None, "whoever has a position has a cursor"
    return int(row[0])


def read_ends(settings: Settings) -> dict[tuple[str, int], int]:
    """Where the partitions of the mirror's topics end now."""
    cluster = Cluster(settings.kafka, settings.event_bytes_max)
    topics = {name: n for name, n in cluster.look().items() if name.startswith(settings.kafka.topic_prefix)}
    consumer: Consumer = open_client(Consumer, settings.kafka, {"group.id": "tidelock", "enable.auto.commit": False})
    try:
        return {
            (topic, partition): consumer.get_watermark_offsets(TopicPartition(topic, partition), _ANSWER_S)[1]
            for topic, count in topics.items()
            for partition in range(count)
        }
    except KafkaException as error:
        raise Unreachable(f"Cannot read where topics end: {reason(error)}") from None
    finally:
        consumer.close()
