"""Mirrored: which offsets of which partitions hold which events, for those who look for trouble."""

from __future__ import annotations

import msgspec

from tidelock.postgres.queries import load

#: takes how many to tell of at most
MIRRORED = load("tidelock.mirror", "sql/ranges.sql")["mirrored"]
TOLD_MAX = 1_000


class MirroredPartition(msgspec.Struct, frozen=True, rename="camel"):
    """A partition of Kafka: the offsets that the mirror has recorded there, and the sequences they lie between."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    first_sequence: int
    last_sequence: int
