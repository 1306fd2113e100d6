"""The shapes of an explanation, as it is answered."""

from __future__ import annotations

import msgspec

from tidelock.model import Recorded


class ExplainedEvent(Recorded, frozen=True, gc=False, rename="camel", kw_only=True):
    """A recorded event, and what became of it in the counter."""

    #: what became of it: counted in time (folded), or late (adjusted); not counted because of what it lacks (error), by
    #: the meter's filter (filtered), or because it removes a row (deleted)
    part: str
    #: what the meter took for its quantity; null where it took none
    counted: str | None
    #: the counter's total after it, and by how much it changed that; null where it is not counted
    total: str | None
    change: str | None
    #: its group, of a meter that has groups
    group: str | None
    #: of an error: what the event lacks
    code: str | None
    message: str | None


class Part(msgspec.Struct, frozen=True, rename="camel"):
    """What some events of a counter come to."""

    count: int
    sum: str
    max: str | None
    min: str | None
    last: str | None
    first_sequence: int | None
    last_sequence: int | None


class Errors(msgspec.Struct, frozen=True):
    """Events that could not be counted, by what they lack."""

    count: int
    codes: dict[str, int]


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """Why a counter is what it is: what was folded, what came too late, what was not counted, and the events."""

    metric: str
    tenant_id: str
    customer_ref: str
    stream: str
    aggregation: str
    period: str
    lateness: str
    #: the meter's definition, and the numbers below, in words
    definition: str
    why: str
    period_start: str
    period_end: str
    group: str | None
    value: str | None
    adjustment: str | None
    total: str | None
    watermark: str | None
    #: explained are the events up to this one; the sequence asked for, or how far the fold is
    through_sequence: int
    #: of what is counted
    first_sequence: int | None
    last_sequence: int | None
    #: counted in time, as `value` has it
    folded: Part
    #: counted too, but late: only `total` has it
    adjusted: Part
    errors: Errors
    #: left out by the meter's filter
    filtered: int
    #: events that remove a row are not counted
    deleted: int
    #: recorded after `through_sequence`
    pending: int
    #: whether the fold's counter has the same numbers; null where they were asked for as of a sequence
    agrees: bool | None
    items: list[ExplainedEvent]
    next: str | None
