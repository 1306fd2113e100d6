"""Settings of the mirror."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tidelock.settings.options as fields
from tidelock.settings.option_values import KAFKA_PROPERTIES


@dataclass(frozen=True, slots=True)
class Kafka:
    """The mirror, which copies the ledger to Kafka."""

    brokers: tuple[str, ...] = fields.names(
        "Brokers to begin with. The ledger is mirrored to them by `up`, or by `tidelock mirror` beside a `serve`.",
        example='["kafka.example:9092"]',
        unset="none, and no mirror",
    )
    topic_prefix: str = fields.pattern(
        "tidelock.",
        r"[A-Za-z0-9._-]{1,100}",
        "up to 100 of the characters A-Z a-z 0-9 . _ -",
        "What the name of every topic begins with; the stream follows.",
    )
    partitions: int = fields.integer(
        1, "Partitions of a topic that the mirror makes. It never changes one that is there.", maximum=10_000
    )
    replication: int | None = fields.integer(
        None, "Replicas of a topic that the mirror makes.", unset="what the brokers do by default", maximum=100
    )
    retention: int | None = fields.duration(
        None, "How long a topic that the mirror makes keeps its messages.", unset="for ever", minimum="1s"
    )
    batch_events_max: int = fields.integer(
        10_000, "Most events that are sent before their acknowledgement is recorded.", maximum=1_000_000
    )
    batch_bytes_max: int = fields.size(
        "16MiB", "Most bytes of events' data that are read from the ledger at a time.", minimum="1KiB", maximum="1GiB"
    )
    queue_bytes_max: int = fields.size(
        "64MiB", "Most bytes of messages that wait for brokers.", minimum="4MiB", maximum="2047MiB"
    )
    ack_timeout: int = fields.duration(
        "2m", "How long brokers have to acknowledge a message before the mirror starts anew from what is.", minimum="1s"
    )
    pause_max: int = fields.duration(
        "30s",
        "Longest pause before brokers that failed are tried again; the first is a tenth of a second.",
        minimum="100ms",
    )
    options: Mapping[str, str] = fields.properties(
        KAFKA_PROPERTIES,
        "Further properties of the client, passed to librdkafka as they are: SASL, TLS, compression.",
        example='{ "security.protocol" = "SASL_SSL", "sasl.mechanism" = "PLAIN", "sasl.username" = "tidelock" }',
        secret=True,
    )
