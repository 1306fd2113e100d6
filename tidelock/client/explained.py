"""Explanations, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from tidelock.client.values import decimal, instant


@dataclass(frozen=True, slots=True)
class ExplainedEvent:
    """An event, and its effect on a counter."""

    ingress_sequence: int
    occurred_at: str
    #: folded, adjusted, error, filtered or deleted; of a correction void or amend
    part: str
    #: why only the total has it: late or closed, of a correction void, amend or closed; None: it was in time
    adjusted_reason: str | None
    #: the quantity used by the meter
    counted: Decimal | None
    #: by how much it changed the total, and the new total
    change: Decimal | None
    total: Decimal | None
    group: str | None
    #: of an error
    code: str | None
    message: str | None
    #: of a correction: the sequence of its target
    corrects: int | None
    #: of a corrected event: the sequence of its correction
    corrected_by: int | None
    #: the text by which unique_count tells it from others
    counted_text: str | None
    #: the whole event by the names of the API; decimals in its data are Decimal, as sent
    event: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """Summary of some events of a counter."""

    count: int
    sum: Decimal
    max: Decimal | None
    min: Decimal | None
    last: Decimal | None
    first_sequence: int | None
    last_sequence: int | None


@dataclass(frozen=True, slots=True)
class Corrections:
    """How many corrections there are."""

    #: those that changed the counter
    voids: int
    amendments: int
    #: of these, those that came too late, or after the close, and changed the total only
    adjusted: int
    #: corrections of events that are not counted here, which changed nothing
    uncounted: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a counter is what it is."""

    metric: str
    customer_ref: str
    aggregation: str
    period: str
    #: the meter's definition, and the numbers, in words
    definition: str
    why: str
    period_start: str
    period_end: str
    group: str | None
    value: Decimal | None
    adjustment: Decimal | None
    total: Decimal | None
    watermark: str | None
    #: the close after which no event moves `value`; None: the period is open
    closed_sequence: int | None
    #: every event up to this one is explained
    through_sequence: int
    #: counted on time, and late
    folded: Part
    adjusted: Part
    #: corrected late: included in `value`, and no longer in `total`
    withdrawn: Part
    corrections: Corrections
    #: code -> how many could not be counted for that reason
    errors: Mapping[str, int]
    filtered: int
    deleted: int
    #: recorded, but not explained yet
    pending: int
    #: whether the displayed counter has the same numbers; None: there is none as of a sequence
    agrees: bool | None
    items: list[ExplainedEvent]
    #: `cursor` of the next page; None: this is the last
    next: str | None


def explain_query(
    metric: str, customer_ref: str, period: datetime | date | str | None, group: str | None, *, no_group: bool,
    as_of: int | None, tenant: str | None, limit: int | None, cursor: str | None,
) -> dict[str, str]:  # fmt: skip
    given = {
        "metric": metric,
        "customerRef": customer_ref,
        "period": instant(period) if isinstance(period, datetime | str | None) else period.isoformat(),
        "group": group,
        "groupNull": "true" if no_group else None,
        "asOf": as_of,
        "tenantId": tenant,
        "limit": limit,
        "cursor": cursor,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


def read_explanation(answer: Mapping[str, Any]) -> Explanation:
    plain = (
        "metric", "customerRef", "aggregation", "period", "definition", "why", "periodStart", "periodEnd", "group",
        "watermark", "closedSequence", "throughSequence", "filtered", "deleted", "pending", "agrees", "next",
    )  # fmt: skip
    return Explanation(
        **{_snake(name): answer[name] for name in plain},
        value=decimal(answer["value"]),
        adjustment=decimal(answer["adjustment"]),
        total=decimal(answer["total"]),
        folded=_part(answer["folded"]),
        adjusted=_part(answer["adjusted"]),
        withdrawn=_part(answer["withdrawn"]),
        corrections=Corrections(**answer["corrections"]),
        errors=answer["errors"]["codes"],
        items=[_event(item) for item in answer["items"]],
    )


def _part(said: Mapping[str, Any]) -> Part:
    return Part(
        count=said["count"],
        sum=Decimal(said["sum"]),
        max=decimal(said["max"]),
        min=decimal(said["min"]),
        last=decimal(said["last"]),
        first_sequence=said["firstSequence"],
        last_sequence=said["lastSequence"],
    )


def _event(item: Mapping[str, Any]) -> ExplainedEvent:
    told = (
        "part", "adjustedReason", "counted", "change", "total", "group", "code", "message", "corrects", "correctedBy",
        "countedText",
    )  # fmt: skip
    return ExplainedEvent(
        ingress_sequence=item["ingressSequence"],
        occurred_at=item["occurredAt"],
        part=item["part"],
        adjusted_reason=item["adjustedReason"],
        counted=decimal(item["counted"]),
        change=decimal(item["change"]),
        total=decimal(item["total"]),
        group=item["group"],
        code=item["code"],
        message=item["message"],
        corrects=item["corrects"],
        corrected_by=item["correctedBy"],
        counted_text=item["countedText"],
        event={name: value for name, value in item.items() if name not in told},
    )


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
