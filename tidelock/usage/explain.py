"""Explaining a counter: its definition, its figures and a page of its events, all consistent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
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
from tidelock.sections import number_of, shown
from tidelock.settings import Settings
from tidelock.usage.figures import (
    CODES,
    OF_PART,
    OTHERS,
    PARTS,
    Counted,
    Group,
    latest_sql,
    page_sql,
    pending_sql,
    summary_sql,
)
from tidelock.usage.usage import Moment, Wanted, complete, frontier, meter_of, moment, usage_select
from tidelock.views.catalog import CatalogReader
from tidelock.where import TRUE, Expression
from tidelock.where.expressions import IsNull, one_of

#: what `page_sql` says of an event, after its sequence
_EFFECT = (
    "part", "adjusted_reason", "counted", "total", "change", "group", "code", "message", "corrects", "corrected_by",
    "counted_text",
)  # fmt: skip

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

_AGGREGATED = {
    "sum": "the sum of {}",
    "count": "the number of events",
    "max": "the greatest {}",
    "min": "the smallest {}",
    "last": "the latest {}",
    "avg": "the average {}",
    "unique_count": "the number of distinct values of {}",
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
    #: meter's filter (filtered), or because it removes a row (deleted); a correction is a void or an amend. A corrected
    #: event keeps its part
    part: str
    #: why only the total has it: it came too late for its counter (late, and of a correction void or amend), or after
    #: its period was closed (closed); null if it was in time
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
    #: of a correction: the sequence of the event that it takes out of the counter
    corrects: int | None
    #: of a corrected event: the sequence of its correction
    corrected_by: int | None
    #: the text by which unique_count tells it from others
    counted_text: str | None


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


class Corrections(msgspec.Struct, frozen=True):
    """How many corrections there are."""

    #: those that changed the counter
    voids: int
    amendments: int
    #: of these, those that came too late, or after the close, and changed the total only
    adjusted: int
    #: corrections of events that are not counted here, which changed nothing
    uncounted: int


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """Why a counter is what it is: folded, late, corrected and uncounted events."""

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
    #: corrected late: included in `value`, and no longer in `total`
    withdrawn: Part
    corrections: Corrections
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
            counted = await complete(self._connection, now, await _of_period(now, every, asked))
            group = Group(asked.group, chosen=asked.of_group)
            summary = await _row(now, summary_sql(counted, group))
            pending = (await _row(now, pending_sql(counted)))[0]
            stored = None if asked.as_of is not None else await _stored(now, counted, asked)
            page = await self._page(now, counted, group, limit=limit, after=after)
        return _explanation(counted, asked, summary, pending, stored=stored, items=page.events), page.more

    async def _page(
        self, now: Moment, counted: Counted, group: Group, *, limit: int, after: int
    ) -> Page[ExplainedEvent]:
        """First the parts of the events; then the events themselves, up to the page limit."""
        query = page_sql(counted, group, after=after, limit=limit + 1)
        effects = await (await now.execute(query.encode())).fetchall()
        more = len(effects) > limit
        effects = effects[:limit]
        wanted = Slice(sequences=[row[0] for row in effects])
        await now.hurry()
        page = await read_page(self._connection, wanted, rows_max=limit, bytes_max=self._limits.bytes_max)
        events = [
            ExplainedEvent(**msgspec.structs.asdict(event), **dict(zip(_EFFECT, row[1:], strict=True)))
            for event, row in zip(page.events, effects, strict=False)
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
    value, adjustment, total = summary[:3]
    folded, adjusted, withdrawn = parts = _parts(summary[3:])
    rest = summary[3 + len(parts) * len(OF_PART) :]
    others, codes = dict(zip(OTHERS, rest, strict=False)), rest[len(OTHERS) :]
    errors = Errors(sum(codes), {code: count for code, count in zip(CODES, codes, strict=True) if count})
    corrections = Corrections(
        others["voids"], others["amendments"], adjusted=others["overdue"], uncounted=others["uncounted"]
    )
    watermark = others["watermark"]
    why = [
        reason_of(value, total, parts, counted.closed_sequence),
        *corrected_of(corrections, counted.closed_sequence),
        *asides_of(errors, others["filtered"], others["deleted"], pending),
    ]
    own = (value, adjustment, total, watermark) if others["counted"] else None
    counting = [part for part in parts if part.count]
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
        first_sequence=min(_known(part.first_sequence for part in counting), default=None),
        last_sequence=max(_known(part.last_sequence for part in counting), default=None),
        folded=folded,
        adjusted=adjusted,
        withdrawn=withdrawn,
        corrections=corrections,
        errors=errors,
        filtered=others["filtered"],
        deleted=others["deleted"],
        pending=pending,
        agrees=None if asked.as_of is not None else (None if stored is None else tuple(stored)) == own,
        items=list(items),
        next=None,
    )


def _parts(figures: Sequence[Any]) -> list[Part]:
    width = len(OF_PART)
    return [_part(figures[place * width : (place + 1) * width]) for place in range(len(PARTS))]


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


def _known(sequences: Iterable[int | None]) -> list[int]:
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


def reason_of(value: str | None, total: str | None, parts: Sequence[Part], closed_sequence: int | None = None) -> str:
    """What a counter consists of."""
    folded, adjusted, withdrawn = parts
    closed = "" if closed_sequence is None else f" Its period was closed at sequence {closed_sequence:,}."
    if not any(part.count for part in parts):
        # A counter that corrections have emptied still has a row.
        nothing = "Nothing is counted here" if total is None else f"{total}: nothing is counted here any more"
        return f"{nothing}.{closed}"
    if adjusted.count == withdrawn.count == 0:
        return f"{total} comes from {events(folded.count)}, none of them late.{closed}"
    alone = "nothing" if value is None else value
    amount = "amounts" if folded.count == 1 else "amount"
    too_late = "too late" if closed_sequence is None else "too late or after the close"
    more = f", and from {events(adjusted.count)} that arrived {too_late}" if adjusted.count else ""
    less = f", without {events(withdrawn.count)} that {_was(withdrawn.count)} corrected {too_late}"
    if total is None:
        corrected = f"{_was(withdrawn.count)} corrected {too_late}"
        alone = f"which alone {amount} to {alone}"
        return f"Nothing is left of the total: {events(folded.count)} on time, {alone}, {corrected}.{closed}"
    return (
        f"{total} comes from {events(folded.count)} on time, which alone {amount} to {alone}{more}"
        f"{less if withdrawn.count else ''}.{closed}"
    )


def corrected_of(corrections: Corrections, closed_sequence: int | None = None) -> Iterator[str]:
    """What was corrected."""
    counts = {"voided": corrections.voids, "amended": corrections.amendments}
    done = [f"{events(count)} {_was(count)} {verb}" for verb, count in counts.items() if count]
    if done:
        too_late = "too late" if closed_sequence is None else "too late or after the close"
        late = f", {corrections.adjusted:,} of them {too_late}" if corrections.adjusted else ""
        yield f"{' and '.join(done)}{late}."
    if corrections.uncounted:
        yield f"{_were(corrections.uncounted, 'correction')} of events that are not counted here."


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


def _were(count: int, what: str = "event") -> str:
    return f"{events(count, what)} {_was(count)}"


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def events(count: int, what: str = "event") -> str:
    return number_of(count, what)
