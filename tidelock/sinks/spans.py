"""Spans: which sequences a file of the lake is for, by its name, and what a step has to write where.

A file's name says which sequences belong in it, not which have come yet: the last file is written anew, in place, as
it fills. So a file is replaced by one rename, no events are ever in two files, and there is nothing to join later.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

_NAME = re.compile(r"events-([0-9]{19})-([0-9]{19})\.parquet")


class Span(NamedTuple):
    """The sequences from `first` through `last`."""

    first: int
    last: int

    @property
    def file(self) -> str:
        return f"events-{self.first:019}-{self.last:019}.parquet"


class Piece(NamedTuple):
    """Events above `lo` through `hi`, which belong in the file of a span."""

    span: Span
    lo: int
    hi: int


def span_of(name: str) -> Span | None:
    """What a file is for; None: it is none of ours."""
    found = _NAME.fullmatch(name)
    return Span(int(found[1]), int(found[2])) if found else None


def home(sequence: int, spans: Sequence[Span], file_events: int) -> Span:
    """Where a sequence belongs: in the file that is there for it, else in one that fits between its neighbours.

    `spans` are in order and do not overlap. Files that were made by another setting stay as they are.
    """
    place = bisect_right(spans, sequence, key=lambda span: span.first)
    if place and spans[place - 1].last >= sequence:
        return spans[place - 1]
    first = (sequence - 1) // file_events * file_events + 1
    last = first + file_events - 1
    if place:
        first = max(first, spans[place - 1].last + 1)
    if place < len(spans):
        last = min(last, spans[place].first - 1)
    return Span(first, last)


def pieces(
    lo: int, hi: int, spans: Sequence[Span], file_events: int, following: Callable[[int], int | None]
) -> Iterator[Piece]:
    """A step, cut where files end. `following` says which sequence is recorded next: numbers may be left out."""
    while lo < hi:
        sequence = following(lo)
        if sequence is None or sequence > hi:
            return
        span = home(sequence, spans, file_events)
        yield Piece(span, lo if lo >= span.first else span.first - 1, min(hi, span.last))
        lo = span.last


def overlapping(spans: Sequence[Span]) -> tuple[Span, Span] | None:
    """Two files that are both for some sequence; spans are in order."""
    for one, other in pairwise(spans):
        if one.last >= other.first:
            return one, other
    return None
