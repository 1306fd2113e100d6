"""Watermarks: how far time has come for an output and tenant, judged collection by collection. Pure decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

#: before every instant
EARLIEST = -(2**63)


class Collection(NamedTuple):
    """What a collection has for one stream and tenant."""

    #: source timestamp
    at: int
    #: rows that windows by arrival take
    rows: int
    #: first and last event time; None: no row has one
    earliest: int | None
    latest: int | None


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an output stands for a tenant: what is stored of it."""

    #: None: no row has come, or it goes by arrival
    watermark: int | None = None
    max_timestamp_seen: int | None = None
    #: greatest end that drains have closed: what lies before it comes too late
    closed_through: int | None = None
    #: source timestamp of the last row, whatever became of it
    last_row_at: int = 0
    buffer_size: int = 0
    late_dropped_count: int = 0
    watermark_emitted_count: int = 0
    released: int = 0

    def threshold(self, watermark: int | None) -> int:
        """The greatest time that comes too late, at that watermark."""
        floor = EARLIEST if self.closed_through is None else self.closed_through - 1
        return floor if watermark is None else max(watermark, floor)


@dataclass(frozen=True, slots=True)
class Course:
    """What some collections did to a watermark."""

    #: after them
    standing: Standing
    #: the watermark before each of them
    before: Sequence[int | None]
    #: source timestamp and watermark of those that raised it
    raises: Sequence[tuple[int, int]]


def eventtime_watermark(standing: Standing, collections: Sequence[Collection], tolerance_ns: int) -> Course:
    """By the rows' own time. Rows are judged by the watermark before their collection, and then raise it together.

    The latest row of a collection is enough: if that one is late, or drained, so are the others.
    """
    watermark, seen = standing.watermark, standing.max_timestamp_seen
    floor = EARLIEST if standing.closed_through is None else standing.closed_through
    before: list[int | None] = []
    raises: list[tuple[int, int]] = []
    for collection in collections:
        before.append(watermark)
        latest = collection.latest
        if latest is None or latest < floor or (seen is not None and latest <= seen):
            continue
        seen = latest
        reached = max(latest - tolerance_ns, EARLIEST)
        if watermark is None or reached > watermark:
            watermark = reached
            raises.append((collection.at, watermark))
    return Course(_after(standing, collections, len(raises), watermark, seen), before, raises)


def process_time_watermark(standing: Standing, collections: Sequence[Collection]) -> Course:
    """By arrival: every row has the time of its collection, so that none is late and none waits."""
    raises = [(collection.at, collection.at) for collection in collections]
    seen = collections[-1].at if collections else standing.max_timestamp_seen
    return Course(_after(standing, collections, len(raises), None, seen), [None] * len(raises), raises)


def _after(
    standing: Standing, collections: Sequence[Collection], raised: int, watermark: int | None, seen: int | None
) -> Standing:
    return replace(
        standing,
        watermark=watermark,
        max_timestamp_seen=seen,
        last_row_at=collections[-1].at if collections else standing.last_row_at,
        watermark_emitted_count=standing.watermark_emitted_count + raised,
    )
