"""Values sent and returned."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

#: an event by the names of the API: stream, customerRef, ts, quantity, data, ...
Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one event."""

    #: accepted, duplicate, conflict or rejected
    status: str
    #: its place in the ledger; of a duplicate or conflict, the original's
    ingress_sequence: int | None = None
    idempotency_key: str | None = None
    #: why it was rejected: code, message, field
    error: Mapping[str, Any] | None = None

    @property
    def recorded(self) -> bool:
        """Whether the ledger has this event, recorded now or before."""
        return self.status in ("accepted", "duplicate")


@dataclass(frozen=True, slots=True)
class UsagePeriod:
    """Usage of a customer in one period; `total` is `value` plus late events."""

    period_start: str
    period_end: str
    group: str | None
    value: Decimal | None
    adjustment: Decimal | None
    total: Decimal | None
    watermark: str | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of a customer, by period."""

    metric: str
    customer_ref: str
    aggregation: str
    period: str
    #: length of an item's period: the meter's, or the requested one
    window: str
    items: list[UsagePeriod]
    #: every event up to this one is counted
    through_sequence: int


def prepared(events: Iterable[Event]) -> Iterator[dict[str, Any]]:
    """Events that can be sent twice without being recorded twice: those without a key get one."""
    for event in events:
        sent = dict(event)
        # The key of a correction is derived from what it corrects.
        if sent.get("idempotencyKey") is None and sent.get("target") is None:
            sent["idempotencyKey"] = uuid.uuid4().hex
        yield sent


def correction(
    op: str, stream: str, target: str, *, quantity: Decimal | int | str | None = None, data: Any = None,
    reason: str | None, batch_id: str | None, key: str | None, tenant: str | None,
) -> Event:  # fmt: skip
    """A void or an amendment."""
    given = {"op": op, "stream": stream, "target": target, "quantity": quantity, "data": data, "reason": reason,
             "batchId": batch_id, "idempotencyKey": key, "tenantId": tenant}  # fmt: skip
    return {name: value for name, value in given.items() if value is not None}


def body(events: list[dict[str, Any]]) -> bytes:
    return _json({"events": events}).encode()


def filter_text(where: Mapping[str, Any]) -> str:
    """A filter as a query's parameter."""
    return _json(where)


def read_verdicts(answer: Mapping[str, Any]) -> list[Verdict]:
    return [
        Verdict(each["status"], each.get("ingressSequence"), each.get("idempotencyKey"), each.get("error"))
        for each in answer["results"]
    ]


@dataclass(frozen=True, slots=True)
class CustomerUsage:
    """What a customer used in a period."""

    customer_ref: str
    period_start: str
    period_end: str
    group: str | None
    value: Decimal | None
    adjustment: Decimal | None
    total: Decimal | None
    watermark: str | None


def read_customers(answer: Mapping[str, Any]) -> Iterator[CustomerUsage]:
    for each in answer["items"]:
        yield CustomerUsage(
            customer_ref=each["customerRef"],
            period_start=each["periodStart"],
            period_end=each["periodEnd"],
            group=each["group"],
            value=decimal(each["value"]),
            adjustment=decimal(each["adjustment"]),
            total=decimal(each["total"]),
            watermark=each["watermark"],
        )


@dataclass(frozen=True, slots=True)
class Reverted:
    """What became of the events of a batch."""

    voided: int
    #: void already
    duplicates: int
    #: how many stay in the meters, and the first of them: `ingressSequence`, `code`, `message`
    left_count: int
    left: tuple[Mapping[str, Any], ...]


NOTHING_REVERTED = Reverted(0, 0, 0, ())


def reverted(done: Reverted, answer: Mapping[str, Any]) -> Reverted:
    """What was done, with that of one more answer."""
    return Reverted(
        voided=done.voided + answer["voided"],
        duplicates=done.duplicates + answer["duplicates"],
        left_count=done.left_count + answer["leftCount"],
        left=(*done.left, *answer["left"]),
    )


def batch_body(batch_id: str, **given: str | None) -> dict[str, str]:
    """What a request about a batch says."""
    return {name: value for name, value in {"batchId": batch_id, **given}.items() if value is not None}


def read_usage(answer: Mapping[str, Any]) -> Usage:
    items = [
        UsagePeriod(
            period_start=each["periodStart"],
            period_end=each["periodEnd"],
            group=each["group"],
            value=decimal(each["value"]),
            adjustment=decimal(each["adjustment"]),
            total=decimal(each["total"]),
            watermark=each["watermark"],
        )
        for each in answer["items"]
    ]
    return Usage(
        metric=answer["metric"],
        customer_ref=answer["customerRef"],
        aggregation=answer["aggregation"],
        period=answer["period"],
        # Servers of before had the meter's only.
        window=answer.get("window", answer["period"]),
        items=items,
        through_sequence=answer["throughSequence"],
    )


def instant(given: datetime | str | None) -> str | None:
    """As the API writes it. A datetime must have a time zone."""
    if not isinstance(given, datetime):
        return given
    if given.tzinfo is None:
        raise ValueError(f"{given!r} has no time zone: add one, such as tzinfo=timezone.utc")
    return given.astimezone(UTC).isoformat().replace("+00:00", "Z")


def decimal(value: str | int | None) -> Decimal | None:
    """A number as the API has it."""
    return None if value is None else Decimal(value)


def _json(given: object) -> str:
    """NaN and infinities are not JSON: better a ValueError here than a refused request."""
    return json.dumps(given, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_form)


def _form(value: object) -> str | None:
    """Decimals are sent as they are written, never as floats."""
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise ValueError(f"{value} is not a quantity: send a number")
        return format(value, "f")
    if isinstance(value, datetime):
        return instant(value)
    raise TypeError(f"{value!r} cannot be sent: only JSON values, Decimal and datetime can")
