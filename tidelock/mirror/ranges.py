"""Ranges: messages in flight together, the brokers' acknowledgements, and what is recorded of them.

A range is recorded together with the cursor that says how far the mirror is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import psycopg

from tidelock.errors import CursorMoved, Unreachable
from tidelock.postgres.queries import load

QUERIES = load("tidelock.mirror", "sql/ranges.sql")

CURSOR = "kafka"
#: ranges are merged up to this many events: single events must not leave a row each for ever
_JOINED_EVENTS = 10_000

_Connection = psycopg.Connection[Any]


class Partition(NamedTuple):
    """Where a message goes."""

    topic: str
    partition: int


@dataclass(slots=True)
class Offsets:
    """The part of a batch for one partition. Only the offsets of the first and last message are requested: within a
    partition messages arrive in order, and a report is a call into Python for every message.
    """

    count: int = 0
    first_offset: int = -1
    last_offset: int = -1

    @property
    def missing(self) -> int:
        """How many messages cannot have arrived between the first and the last."""
        return max(0, self.count - (self.last_offset - self.first_offset + 1))

    def joined(self, following: Offsets) -> Offsets:
        return Offsets(self.count + following.count, self.first_offset, following.last_offset)

    def before(self, following: Offsets) -> bool:
        return self.last_offset < following.first_offset


@dataclass(slots=True)
class InFlight:
    """Events of the ledger one after another."""

    first_sequence: int
    last_sequence: int
    #: the last one ends a commit
    whole: bool
    spans: dict[Partition, Offsets] = field(default_factory=dict)
    #: reports that are still to come
    waiting: int = 0
    #: why a message was not accepted
    refusal: str | None = None

    @property
    def acknowledged(self) -> bool:
        """Raises Unreachable if it never will be."""
        if self.refusal is not None:
            raise Unreachable(self.refusal)
        if self.waiting:
            return False
        for place, span in self.spans.items():
            if span.missing:
                raise Unreachable(f"{place.topic} did not accept {span.missing} of {span.count} messages")
        return True


@dataclass(frozen=True, slots=True)
class MirroredRange:
    """Whole commits that are in Kafka, and where."""

    first_sequence: int
    last_sequence: int
    spans: dict[Partition, Offsets]

    @property
    def events(self) -> int:
        return sum(span.count for span in self.spans.values())

    def joined(self, following: MirroredRange) -> MirroredRange:
        spans = dict(self.spans)
        for place, span in following.spans.items():
            spans[place] = spans[place].joined(span) if place in spans else span
        return MirroredRange(self.first_sequence, following.last_sequence, spans)

    def before(self, following: MirroredRange) -> bool:
        """Whether offsets continue where they ended; they do not in a topic that was deleted and recreated."""
        return all(
            span.before(following.spans[place]) for place, span in self.spans.items() if place in following.spans
        )


def range_of(batches: Iterable[InFlight]) -> MirroredRange:
    """The range of batches one after another, all acknowledged."""
    ranges = [MirroredRange(batch.first_sequence, batch.last_sequence, batch.spans) for batch in batches]
    whole = ranges[0]
    for following in ranges[1:]:
        whole = whole.joined(following)
    return whole


class Ranges:
    """What one mirror records."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        connection.execute(QUERIES["begin"])
        self.position = read_position(connection)
        #: the last one recorded, while it is small
        self._last: MirroredRange | None = None

    def record(self, found: MirroredRange) -> None:
        """Raises CursorMoved when this is not the next one."""
        before, joined = self._last, found
        with self._connection.transaction():
            moved = self._connection.execute(QUERIES["move"], {"before": self.position, "after": found.last_sequence})
            if moved.rowcount != 1:
                raise CursorMoved(f"another process has moved the mirror's cursor from {self.position}")
            if before is not None and before.before(found):
                self._connection.execute(QUERIES["forget"], (before.last_sequence,))
                joined = before.joined(found)
            self._write(joined)
        self.position = found.last_sequence
        self._last = joined if joined.events < _JOINED_EVENTS else None

    def _write(self, found: MirroredRange) -> None:
        places, spans = list(found.spans), list(found.spans.values())
        given = {
            "first": found.first_sequence,
            "last": found.last_sequence,
            "topics": [place.topic for place in places],
            "partitions": [place.partition for place in places],
            "firsts": [span.first_offset for span in spans],
            "lasts": [span.last_offset for span in spans],
        }
        self._connection.execute(QUERIES["record"], given)


def read_position(connection: _Connection) -> int:
    row = connection.execute(QUERIES["position"]).fetchone()
    return 0 if row is None else int(row[0])


def read_ledger_end(connection: _Connection) -> int:
    row = connection.execute(QUERIES["ledger_end"]).fetchone()
    assert row is not None, "the head is always there"
    return int(row[0])
