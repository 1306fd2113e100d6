"""Meters: which events count, into which counter, and what a counter is worth."""

from __future__ import annotations

from dataclasses import dataclass
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
class Entry:
    """An event as a meter counts it."""

    sequence: int
    occurred_at: int
    quantity: Decimal | None = None
    #: by which `unique_count` counts it
    text: str | None = None


@dataclass(frozen=True)
class Aggregate:
    """Entries that are counted together, and their value. One without quantity only counts."""

    entries: tuple[Entry, ...] = ()

    def plus(self, entry: Entry) -> Aggregate:
        return Aggregate((*self.entries, entry))

    def minus(self, entry: Entry) -> Aggregate:
        assert entry in self.entries
        return Aggregate(tuple(other for other in self.entries if other != entry))

    @property
    def count(self) -> int:
        return len(self.entries)

    @property
    def sum(self) -> Decimal:
        return sum(self._quantities, Decimal(0))

    @property
    def max(self) -> Decimal | None:
        return max(self._quantities, default=None)

    @property
    def min(self) -> Decimal | None:
        return min(self._quantities, default=None)

    @property
    def last(self) -> Decimal | None:
        """By time, then by sequence."""
        quantities = [(e.occurred_at, e.sequence, e.quantity) for e in self.entries if e.quantity is not None]
        return max(quantities)[2] if quantities else None

    @property
    def unique_count(self) -> int:
        return len({entry.text for entry in self.entries})

    @property
    def _quantities(self) -> list[Decimal]:
        return [entry.quantity for entry in self.entries if entry.quantity is not None]

    def value(self, aggregation: str) -> Decimal | None:
        """Choice: of no events the sum and the counts are 0, all else is null."""
        match aggregation:
            case "sum":
                return self.sum
            case "count":
                return Decimal(self.count)
            case "unique_count":
                return Decimal(self.unique_count)
            case "avg":
                return average(self.sum, self.count) if self.count else None
        found: Decimal | None = {"max": self.max, "min": self.min, "last": self.last}[aggregation]
        return found


@dataclass
class Counter:
    """A counter, or one group of it."""

    #: what the value is of: folded events, without those that were taken out in time
    folded: Aggregate = Aggregate()
    #: what the total is of: folded and adjusted events, without any that were taken out
    together: Aggregate = Aggregate()
    #: greatest occurred_at that was ever folded; it stays when its event is taken out
    watermark: int | None = None

    def columns(self, aggregation: str) -> dict[str, Any]:
        return {
            # Of distinct texts there is no sum, as there is no maximum.
            "agg_sum": None if aggregation == "unique_count" else self.folded.sum,
            "agg_count": self.folded.count,
            "agg_max": self.folded.max,
            "agg_min": self.folded.min,
            "agg_last": self.folded.last,
            "watermark_ts": self.watermark,
            "value": self.folded.value(aggregation),
            "total": self.together.value(aggregation),
        }

    def is_late(self, occurred_at: int, lateness: int) -> bool:
        return self.watermark is not None and occurred_at < self.watermark - lateness

    def add(self, entry: Entry, *, late: bool) -> None:
        self.together = self.together.plus(entry)
        if not late:
            self.folded = self.folded.plus(entry)
            self.watermark = max(entry.occurred_at, entry.occurred_at if self.watermark is None else self.watermark)

    def take_out(self, entry: Entry, *, late: bool) -> None:
        """Late: its value stays. The watermark stays in any case."""
        self.together = self.together.minus(entry)
        if not late:
            self.folded = self.folded.minus(entry)


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
