"""Explaining a counter: its definition, its figures and a page of its events, all consistent."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import psycopg

from tidelock.columns import STRING
from tidelock.definitions import Meter
from tidelock.durations import format_duration
from tidelock.errors import NotFound, RequestError
from tidelock.instants import format_instant, parse_instant
from tidelock.ledger.reader import Page, Slice, read_page
from tidelock.model import Recorded
from tidelock.periods import period_end, period_start
from tidelock.sections import shown
from tidelock.settings import Settings
from tidelock.usage.figures import (
    CODES,
    OF_PART,
    Counted,
    group_condition,
    latest_sql,
    page_sql,
    pending_sql,
    summary_sql,
)
from tidelock.usage.usage import Moment, Wanted, frontier, meter_of, moment, read_closes, usage_select
from tidelock.views.catalog import CatalogReader
from tidelock.where import TRUE, Expression
from tidelock.where.expressions import IsNull, one_of

#: the columns of an event, after its sequence
_TOLD = ("part", "adjusted_reason", "counted", "total", "change", "group", "code", "message")

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

_AGGREGATED = {
    "sum": "the sum of {}",
    "count": "the number of events",
    "max": "the greatest {}",
    "min": "the smallest {}",
    "last": "the latest {}",
    "avg": "the average {}",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """Which counter is to be explained."""

    tenant_id: str
    metric: str
    customer_ref: str
    #: any instant of the period; None: the latest
    period: int | None = None
    #: with `of_group`, the group's text, or None for the group of events without one
    group: str | None = None
    of_group: bool = False
    as_of: int | None = None


@dataclass(frozen=True, slots=True)
class ExplainLimits:
    """How much is read for one response."""

    timeout_ns: int
    bytes_max: int

    @classmethod
    def of(cls, settings: Settings) -> ExplainLimits:
        return cls(settings.explain_timeout, settings.page_bytes_max)


class ExplainedEvent(Recorded, frozen=True, gc=False, rename="camel", kw_only=True):
    """A recorded event, and its effect on the counter."""

    #: its part: counted on time (folded) or late (adjusted); not counted because something is missing (error), by the
    #: meter's filter (filtered), or because it removes a row (deleted)
    part: str
    #: of one that is adjusted: it came too late for its counter (late), or after its period was closed (closed)
    adjusted_reason: str | None
    #: the quantity used by the meter; null if none
    counted: str | None
    #: the counter's total after it, and the change; null if it is not counted
    total: str | None
    change: str | None
    #: its group, if the meter has groups
    group: str | None
    #: of an error: what is missing
    code: str | None
    message: str | None


class Part(msgspec.Struct, frozen=True, rename="camel"):
    """Summary of some events of a counter."""

    count: int
    sum: str
    max: str | None
    min: str | None
    last: str | None
    first_sequence: int | None
    last_sequence: int | None


class Errors(msgspec.Struct, frozen=True):
    """Events that could not be counted, by reason."""

    count: int
    codes: dict[str, int]


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """Why a counter is what it is: folded, late and uncounted events."""

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
    #: the close after which no event moves `value`; null: the period is open
    closed_sequence: int | None
    #: events up to this sequence are explained: the requested one, or the position of the fold
    through_sequence: int
    #: of what is counted
    first_sequence: int | None
    last_sequence: int | None
    #: counted on time: included in `value`
    folded: Part
    #: counted late: included in `total` only
    adjusted: Part
    errors: Errors
    #: excluded by the meter's filter
    filtered: int
    #: events that remove a row are not counted
    deleted: int
    #: recorded after `through_sequence`
    pending: int
    #: whether the fold's counter has the same numbers; null as of a sequence
    agrees: bool | None
    items: list[ExplainedEvent]
    next: str | None


class Explaining:
    """Explains counters over one connection."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], catalog: CatalogReader, limits: ExplainLimits) -> None:
        self._connection = connection
        self._catalog = catalog
        self._limits = limits

    async def explain(self, asked: Asked, *, limit: int, after: int = 0) -> tuple[Explanation, bool]:
        """With a page of events after a sequence, and whether there are more; the caller sets `next`.

        Raises NotFound for an undefined metric, and for a customer without events of its stream."""
        async with moment(self._connection, self._limits.timeout_ns) as now:
            definitions = (await self._catalog.read(self._connection)).definitions
            meter = meter_of(definitions, asked.metric)
            if asked.of_group and not meter.group_by:
                raise RequestError(f"{meter.name} has no groups: it is defined without group_by", field="group")
            through = await frontier(self._connection, asked.as_of)
            every = Counted.of(definitions, meter, asked.tenant_id, asked.customer_ref, through)
            closes = await read_closes(self._connection, meter, asked.tenant_id, through)
            counted = await _of_period(now, replace(every, closes=closes), asked)
            condition = group_condition(asked.group, chosen=asked.of_group)
            summary = await _row(now, summary_sql(counted, condition))
            pending = (await _row(now, pending_sql(counted)))[0]
            stored = None if asked.as_of is not None else await _stored(now, counted, asked)
            page = await self._page(now, counted, condition, limit=limit, after=after)
        return _explanation(counted, asked, summary, pending, stored=stored, items=page.events), page.more

    async def _page(
        self, now: Moment, counted: Counted, condition: str, *, limit: int, after: int
    ) -> Page[ExplainedEvent]:
        """First the parts of the events; then the events themselves, up to the page limit."""
        query = page_sql(counted, condition, after=after, limit=limit + 1)
        told = await (await now.execute(query.encode())).fetchall()
        more = len(told) > limit
        told = told[:limit]
        wanted = Slice(sequences=[row[0] for row in told])
        await now.hurry()
        page = await read_page(self._connection, wanted, rows_max=limit, bytes_max=self._limits.bytes_max)
        events = [
            ExplainedEvent(**msgspec.structs.asdict(event), **dict(zip(_TOLD, row[1:], strict=True)))
            for event, row in zip(page.events, told, strict=False)
        ]
        return Page(events, more or page.more)


def parse_period(text: str) -> int:
    """An instant of a period, usually its start; a bare date means its midnight. Raises ValueError."""
    return parse_instant(f"{text}T00:00:00Z" if _DATE.fullmatch(text) else text)


async def _of_period(now: Moment, every: Counted, asked: Asked) -> Counted:
    """The events of the requested period, or of the latest one."""
    instant = asked.period
    for any_event in (False, True):
        if instant is None and (found := await _found(now, latest_sql(every, any_event=any_event))):
            instant = found[0]
    if instant is None:
        raise NotFound(
            f"customer {shown(asked.customer_ref)} of tenant {shown(asked.tenant_id)} has no event of stream "
            f"{shown(every.meter.stream)} through sequence {every.through}",
            field="customerRef",
        )
    start = period_start(every.meter.period, instant)
    return replace(every, since=start, until=period_end(every.meter.period, start))


async def _stored(now: Moment, counted: Counted, asked: Asked) -> Sequence[Any] | None:
    """Value, adjustment, total and watermark of the fold's own counter."""
    start = counted.since
    assert start is not None
    wanted = Wanted(asked.tenant_id, asked.metric, asked.customer_ref, start, start + 1, grouped=asked.of_group)
    group: Expression = TRUE
    if asked.of_group:
        none = IsNull("group_key", STRING, negated=False)
        group = none if asked.group is None else one_of("group_key", STRING, [asked.group])
    query = usage_select(counted.meter, wanted, limit=1, where=group)
    row = await (await now.execute(query)).fetchone()
    return None if row is None else row[2:]


async def _row(now: Moment, query: str) -> Sequence[Any]:
    row = await _found(now, query)
    assert row is not None, "an aggregate has its one row"
    return row


async def _found(now: Moment, query: str) -> Sequence[Any] | None:
    return await (await now.execute(query.encode())).fetchone()


def _explanation(
    counted: Counted,
    asked: Asked,
    summary: Sequence[Any],
    pending: int,
    *,
    stored: Sequence[Any] | None,
    items: Sequence[ExplainedEvent],
) -> Explanation:
    meter, start = counted.meter, counted.since
    assert start is not None
    width = len(OF_PART)
    value, adjustment, total = summary[:3]
    watermark = summary[3 + OF_PART.index("watermark")]
    folded, adjusted = _part(summary[3 : 3 + width]), _part(summary[3 + width : 3 + 2 * width])
    filtered, deleted, *codes = summary[3 + 2 * width :]
    errors = Errors(sum(codes), {code: count for code, count in zip(CODES, codes, strict=True) if count})
    why = [
        reason_of(value, total, folded, adjusted, counted.closed_sequence),
        *asides_of(errors, filtered, deleted, pending),
    ]
    own = (value, adjustment, total, watermark) if folded.count + adjusted.count else None
    return Explanation(
        metric=meter.name,
        tenant_id=asked.tenant_id,
        customer_ref=asked.customer_ref,
        stream=meter.stream,
        aggregation=meter.aggregation,
        period=meter.period,
        lateness=format_duration(meter.lateness_ns),
        definition=definition_of(meter),
        why=" ".join(why),
        period_start=format_instant(start),
        period_end=format_instant(period_end(meter.period, start)),
        group=asked.group,
        value=value,
        adjustment=adjustment,
        total=total,
        watermark=None if watermark is None else format_instant(watermark),
        closed_sequence=counted.closed_sequence,
        through_sequence=counted.through,
        first_sequence=min(_known(folded.first_sequence, adjusted.first_sequence), default=None),
        last_sequence=max(_known(folded.last_sequence, adjusted.last_sequence), default=None),
        folded=folded,
        adjusted=adjusted,
        errors=errors,
        filtered=filtered,
        deleted=deleted,
        pending=pending,
        agrees=None if asked.as_of is not None else (None if stored is None else tuple(stored)) == own,
        items=list(items),
        next=None,
    )


def _part(figures: Sequence[Any]) -> Part:
    of = dict(zip(OF_PART, figures, strict=True))
    return Part(
        count=of["count"],
        sum=of["sum"],
        max=of["max"],
        min=of["min"],
        last=of["last"],
        first_sequence=of["first"],
        last_sequence=of["final"],
    )


def _known(*sequences: int | None) -> list[int]:
    return [sequence for sequence in sequences if sequence is not None]


def definition_of(meter: Meter) -> str:
    what = _AGGREGATED[meter.aggregation].format(meter.value)
    where = "" if meter.where is None else f" where {meter.where.text}"
    groups = "" if not meter.group_by else f", also by {' and '.join(meter.group_by)}"
    late = format_duration(meter.lateness_ns)
    return (
        f"{what} of stream {meter.stream}{where}, per customer and {meter.period} in UTC{groups}; an event that "
        f"occurred more than {late} before the counter's latest event is an adjustment"
    )


def reason_of(
    value: str | None, total: str | None, folded: Part, adjusted: Part, closed_sequence: int | None = None
) -> str:
    """What a counter consists of."""
    closed = "" if closed_sequence is None else f" Its period was closed at sequence {closed_sequence:,}."
    if folded.count + adjusted.count == 0:
        return f"Nothing is counted here.{closed}"
    if adjusted.count == 0:
        return f"{total} comes from {events(folded.count)}, none of them late.{closed}"
    alone = "nothing" if value is None else value
    amount = "amounts" if folded.count == 1 else "amount"
    too_late = "too late" if closed_sequence is None else "too late or after the close"
    return (
        f"{total} comes from {events(folded.count)} on time, which alone {amount} to {alone}, and from "
        f"{events(adjusted.count)} that arrived {too_late}.{closed}"
    )


def asides_of(errors: Errors, filtered: int, deleted: int, pending: int) -> Iterator[str]:
    """What is not counted."""
    if errors.count:
        codes = ", ".join(f"{count:,} {code}" for code, count in errors.codes.items())
        yield f"{_were(errors.count)} not counted because something is missing or does not fit: {codes}."
    if filtered:
        yield f"{_were(filtered)} left out by the meter's filter."
    if deleted:
        yield f"{_were(deleted)} not counted because they remove a row."
    if pending:
        yield f"{_were(pending)} recorded later."


def _were(count: int) -> str:
    return f"{events(count)} {'was' if count == 1 else 'were'}"


def events(count: int) -> str:
    return "1 event" if count == 1 else f"{count:,} events"
