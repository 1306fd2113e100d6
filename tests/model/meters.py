"""Meters: which events count, into which counter, and what a counter is worth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from tests.model.values import EXACT, SECOND, exact, fits, moment_of, nanoseconds

NUMERIC = ("int", "bigint", "double", "decimal")
UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND, "d": 86400 * SECOND}
#: Choice: a quantity has at most so many digits before its point, and nine after it. All bigints do, and a sum of 10^10
#: of them still fits decimal(38,9): nothing can overflow.
WHOLE_DIGITS = 19


@dataclass(frozen=True)
class Aggregate:
    """What is kept of some events, and their value."""

    sum: Decimal = Decimal(0)
    count: int = 0
    max: Decimal | None = None
    min: Decimal | None = None
    last: Decimal | None = None
    #: (occurred_at, ingress_sequence) of the last
    last_at: tuple[int, int] | None = None
    #: greatest occurred_at
    watermark: int | None = None

    def plus(self, quantity: Decimal | None, occurred_at: int, sequence: int) -> Aggregate:
        """With one more event. One without quantity counts and moves the watermark; it has no other part."""
        counted = replace(
            self,
            count=self.count + 1,
            watermark=occurred_at if self.watermark is None else max(self.watermark, occurred_at),
        )
        if quantity is None:
            return counted
        at = (occurred_at, sequence)
        latest = self.last_at is None or at > self.last_at
        return replace(
            counted,
            sum=self.sum + quantity,
            max=quantity if self.max is None else max(self.max, quantity),
            min=quantity if self.min is None else min(self.min, quantity),
            last=quantity if latest else self.last,
            last_at=at if latest else self.last_at,
        )

    def value(self, aggregation: str) -> Decimal | None:
        """Choice: of no events the sum and the count are 0, all else is null."""
        match aggregation:
            case "sum":
                return self.sum
            case "count":
                return Decimal(self.count)
            case "avg":
                return average(self.sum, self.count) if self.count else None
        found: Decimal | None = {"max": self.max, "min": self.min, "last": self.last}[aggregation]
        return found


@dataclass
class Counter:
    """A counter, or one group of it."""

    folded: Aggregate = Aggregate()
    #: folded and adjusted events
    together: Aggregate = Aggregate()

    def columns(self, aggregation: str) -> dict[str, Any]:
        return {
            "agg_sum": self.folded.sum,
            "agg_count": self.folded.count,
            "agg_max": self.folded.max,
            "agg_min": self.folded.min,
            "agg_last": self.folded.last,
            "watermark_ts": self.folded.watermark,
            "value": self.folded.value(aggregation),
            "total": self.together.value(aggregation),
        }

    def is_late(self, occurred_at: int, lateness: int) -> bool:
        return self.folded.watermark is not None and occurred_at < self.folded.watermark - lateness

    def take(self, quantity: Decimal | None, occurred_at: int, sequence: int, *, late: bool) -> None:
        self.together = self.together.plus(quantity, occurred_at, sequence)
        if not late:
            self.folded = self.folded.plus(quantity, occurred_at, sequence)


def quantity_of(type_: str | None, value: Any) -> Decimal | None:
    """What a meter aggregates; None where there is nothing, or no legal quantity.

    Choice: a double is the decimal it is written as, rounded half away from zero at nine digits, as windows have it;
    nothing else is rounded. A path needs a number, or its text.
    """
    if value is None or (type_ is not None and not type_.startswith(NUMERIC)):
        return None
    try:
        number = exact(value if type_ is None else repr(value) if type_ == "double" else str(value))
    except ValueError:
        return None
    if type_ == "double" and number.adjusted() < WHOLE_DIGITS:
        number = number.quantize(Decimal("1e-9"), ROUND_HALF_UP, EXACT)
    return number if fits(number, WHOLE_DIGITS, 9) else None


def average(total: Decimal, count: int) -> Decimal:
    """Nine decimals, half away from zero; by whole numbers, so that nothing is rounded twice."""
    units, rest = divmod(abs(int(total.scaleb(9, EXACT))), count)
    units += 2 * rest >= count
    return Decimal(-units if total < 0 else units).scaleb(-9, EXACT)


def period_start(period: str, occurred_at: int) -> int:
    """Start of the UTC period an instant lies in; a period does not include its end."""
    hour = moment_of(occurred_at).replace(minute=0, second=0)
    day = hour.replace(hour=0)
    starts = {
        "hour": hour,
        "day": day,
        "week": day - timedelta(days=day.weekday()),
        "month": day.replace(day=1),
    }
    return nanoseconds(starts[period])


def period_end(period: str, start: int) -> int:
    """Where the period that starts there ends."""
    moment = moment_of(start)
    ends = {
        "hour": moment + timedelta(hours=1),
        "day": moment + timedelta(days=1),
        "week": moment + timedelta(days=7),
        "month": (moment + timedelta(days=31)).replace(day=1),
    }
    return nanoseconds(ends[period])


def duration(text: str) -> int:
    digits = text.rstrip("nusmhd")
    return int(digits) * UNITS[text[len(digits) :]]
