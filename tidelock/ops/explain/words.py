"""Words: a meter's definition, and why its counter is what it is, for people."""

from __future__ import annotations

from collections.abc import Iterator

from tidelock.definitions import Meter
from tidelock.durations import format_duration
from tidelock.ops.explain.shapes import Errors, Part

_AGGREGATED = {
    "sum": "the sum of {}",
    "count": "the number of events",
    "max": "the greatest {}",
    "min": "the smallest {}",
    "last": "the latest {}",
    "avg": "the average {}",
}


def definition_of(meter: Meter) -> str:
    what = _AGGREGATED[meter.aggregation].format(meter.value)
    where = "" if meter.where is None else f" where {meter.where.text}"
    groups = "" if not meter.group_by else f", also by {' and '.join(meter.group_by)}"
    late = format_duration(meter.lateness_ns)
    return (
        f"{what} of stream {meter.stream}{where}, per customer and {meter.period} in UTC{groups}; an event that "
        f"occurred more than {late} before the counter's latest is an adjustment"
    )


def reason_of(value: str | None, total: str | None, folded: Part, adjusted: Part) -> str:
    """What a counter is made of."""
    if folded.count + adjusted.count == 0:
        return "Nothing is counted here."
    if adjusted.count == 0:
        return f"{total} is made of {events(folded.count)}, none of them late."
    alone = "nothing" if value is None else value
    make = "makes" if folded.count == 1 else "make"
    return (
        f"{total} is made of {events(folded.count)} in time, which alone {make} {alone}, "
        f"and of {events(adjusted.count)} that came too late for it."
    )


def asides_of(errors: Errors, filtered: int, deleted: int, pending: int) -> Iterator[str]:
    """What it is not made of."""
    if errors.count:
        codes = ", ".join(f"{count:,} {code}" for code, count in errors.codes.items())
        yield f"{_were(errors.count)} not counted, as something is missing or does not fit: {codes}."
    if filtered:
        yield f"{_were(filtered)} left out by the meter's filter."
    if deleted:
        yield f"{_were(deleted)} not counted, being the removal of a row."
    if pending:
        yield f"{_were(pending)} recorded later."


def _were(count: int) -> str:
    return f"{events(count)} {'was' if count == 1 else 'were'}"


def events(count: int) -> str:
    return "1 event" if count == 1 else f"{count:,} events"
