"""Batches: messages that are under way together, and what brokers said of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelock.errors import Unreachable


class Place(NamedTuple):
    """Where a message goes."""

    topic: str
    partition: int


@dataclass(slots=True)
class Span:
    """What one partition gets of a batch. Only of the first and the last message the offset is asked for: within a
    partition messages arrive in order, and a report is a call into Python for every message."""

    count: int = 0
    first_offset: int = -1
    last_offset: int = -1

    @property
    def missing(self) -> int:
        """How many messages cannot have arrived between the first and the last."""
        return max(0, self.count - (self.last_offset - self.first_offset + 1))

    def joined(self, following: Span) -> Span:
        return Span(self.count + following.count, self.first_offset, following.last_offset)

    def before(self, following: Span) -> bool:
        return self.last_offset < following.first_offset


@dataclass(slots=True)
class Batch:
    """Events of the ledger one after another."""

    first_sequence: int
    last_sequence: int
    #: the last one ends a commit
    whole: bool
    spans: dict[Place, Span] = field(default_factory=dict)
    #: reports that are still to come
    waiting: int = 0
    #: why a message was not taken
    refusal: str | None = None

    @property
    def acknowledged(self) -> bool:
        """Raises Unreachable where it never will be."""
        if self.refusal is not None:
            raise Unreachable(self.refusal)
        if self.waiting:
            return False
        for place, span in self.spans.items():
            if span.missing:
                raise Unreachable(f"{place.topic} did not take {span.missing} of {span.count} messages")
        return True


@dataclass(frozen=True, slots=True)
class Range:
    """Whole commits that are in Kafka, and where."""

    first_sequence: int
    last_sequence: int
    spans: dict[Place, Span]

    @property
    def events(self) -> int:
        return sum(span.count for span in self.spans.values())

    def joined(self, following: Range) -> Range:
        spans = dict(self.spans)
        for place, span in following.spans.items():
            spans[place] = spans[place].joined(span) if place in spans else span
        return Range(self.first_sequence, following.last_sequence, spans)

    def before(self, following: Range) -> bool:
        """Whether offsets go on where they ended; they do not in a topic that was deleted and made anew."""
        return all(
            span.before(following.spans[place]) for place, span in self.spans.items() if place in following.spans
        )


def range_of(batches: Iterable[Batch]) -> Range:
    """The range of batches one after another, all acknowledged."""
    ranges = [Range(batch.first_sequence, batch.last_sequence, batch.spans) for batch in batches]
    whole = ranges[0]
    for following in ranges[1:]:
        whole = whole.joined(following)
    return whole
