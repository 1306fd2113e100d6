"""Event times of recorded events, and how a window's watermark advanced, for the picture of a window.

The fold decides what is late. Its watermark can be reconstructed from the last events alone: it is the latest time
seen so far minus the tolerance, so after a few events earlier ones no longer matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from tidelock.durations import parse_duration
from tidelock.instants import SECOND, parse_rfc3339

Json = dict[str, Any]
Fate = Literal["on time", "late", "drained", "error"]

#: type -> nanoseconds of its unit
_UNITS = {
    "unixtimestamp": SECOND,
    "unixtimestamp_s": SECOND,
    "unixtimestamp_ms": 1_000_000,
    "unixtimestamp_us": 1_000,
    "unixtimestamp_ns": 1,
}
# An event further ahead of its arrival is an error row.
_AHEAD_NS = 3600 * SECOND


@dataclass(frozen=True, slots=True)
class Timed:
    """An event with its time."""

    sequence: int
    #: nanoseconds
    source_timestamp: int
    event_time: int
    fate: Fate


@dataclass(frozen=True, slots=True)
class Picture:
    """What is drawn: events, steps of the watermark (source timestamp, watermark), and the windows it closed."""

    events: Sequence[Timed]
    steps: Sequence[tuple[int, int]]


def time_of(event: Json, eventtime: Mapping[str, str] | None) -> int | None:
    """An event's event time; None if it cannot be determined here."""
    if eventtime is None:
        return None
    column, kind = eventtime["column"], eventtime.get("type")
    if kind is None:
        return parse_rfc3339(event["occurredAt"])
    value = event["data"]
    for member in column.removeprefix("data.").split("."):
        value = value.get(member) if isinstance(value, dict) else None
    try:
        if kind in _UNITS:
            return int(float(value) * _UNITS[kind]) if isinstance(value, float) else int(value) * _UNITS[kind]
        return parse_rfc3339(value) if kind == "rfc3339" else None
    except (TypeError, ValueError):
        return None


def picture(
    events: Iterable[Json],
    eventtime: Mapping[str, str],
    tolerance: str,
    late: Mapping[int, Json],
    *,
    judged: int,
    warm: int,
) -> Picture:
    """Events in ledger order; the first `warm` only establish the watermark.

    `late`: sequence -> the late row that the fold has made of it. `judged`: through which sequence it has; what came
    after that is drawn as it will be judged.
    """
    tolerance_ns = parse_duration(tolerance)
    timed: list[Timed] = []
    steps: list[tuple[int, int]] = []
    mark: int | None = None
    # Of the collection: its events are compared with the watermark before it.
    before, collection = mark, 0
    for at, event in enumerate(events):
        moment = time_of(event, eventtime)
        if moment is None:
            continue
        sequence, arrived = event["ingressSequence"], int(event["sourceTimestamp"])
        if arrived != collection:
            before, collection = mark, arrived
        known = late.get(sequence)
        if known is not None and known["watermark"] is not None:
            mark = max(parse_rfc3339(known["watermark"]), mark or 0)
        fate: Fate = "on time"
        if moment > arrived + _AHEAD_NS:
            fate = "error"
        elif known is not None:
            fate = "drained" if known["reason"] == "drained" else "late"
        elif sequence > judged and before is not None and moment <= before:
            fate = "late"
        if fate == "on time":
            mark = max(mark, moment - tolerance_ns) if mark is not None else moment - tolerance_ns
        if at >= warm:
            timed.append(Timed(sequence, arrived, moment, fate))
            if mark is not None and (not steps or steps[-1][1] < mark):
                steps.append((arrived, mark))
    return Picture(timed, steps)


def closings(steps: Sequence[tuple[int, int]], size: int, *, most: int) -> list[tuple[int, int, int]]:
    """Windows of a size that the watermark has closed: start, end, and the source timestamp at which it did."""
    found: list[tuple[int, int, int]] = []
    for (_, before), (arrived, mark) in pairwise(steps):
        first, last = before // size + 1, mark // size
        found += [((number - 1) * size, number * size, arrived) for number in range(max(first, last - most), last + 1)]
    return found[-most:]
