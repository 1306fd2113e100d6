"""Proving explanations: what is read of a counter, held against the model, event by event and by buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from random import Random
from typing import Any

import psycopg

from tests.model import Event, State
from tests.model.meters import Aggregate, Counter, Entry, period_start
from tests.model.values import decimal_text, instant_text, nanoseconds
from tidelock.definitions import Meter, parse_definitions
from tidelock.periods import period_end
from tidelock.usage.explain import Asked, ExplainedEvent, Explaining, ExplainLimits, Explanation
from tidelock.usage.usage import UsageItem, Wanted, read_usage
from tidelock.views.catalog import CatalogReader

_MINUTE = 60 * 10**9
_WINDOWS = ("hour", "day", "week", "month")

#: tenant, metric, customer, start, and of a group the group
Place = tuple[Any, ...]


class Proof:
    """What is explained of a ledger, held against the model."""

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        toml: Mapping[str, Any],
        events: Sequence[Event],
        chance: Random,
        model: Callable[[Sequence[Event]], State],
    ) -> None:
        self._connection = connection
        self._toml = toml
        self._events = events
        self._chance = chance
        self._model = model
        self._meters = parse_definitions(toml).meters
        self._shapes = CatalogReader(parse_definitions(toml))
        self._explaining = Explaining(connection, self._shapes, ExplainLimits(_MINUTE, 1 << 20))

    async def run(self, *, looks: int, each: int, folded: bool) -> int:
        """At so many sequences, at so many counters and customers each time; `folded`: the fold has come to the end."""
        last = self._events[-1].ingress_sequence
        explained = 0
        for as_of in (*([None] if folded else []), *(self._chance.randint(1, last) for _ in range(looks))):
            through = last if as_of is None else as_of
            state = self._model([e for e in self._events if e.ingress_sequence <= through])
            for place in self._some([*state.counters, *state.groups], each):
                await self._check_explained(state, place, as_of, through)
                explained += 1
            for whose in self._some(self._customers(), each):
                if as_of is not None:
                    await self._check_usage(state, whose, through)
                await self._check_buckets(state, whose, as_of)
        return explained

    def _some(self, places: Sequence[Place], each: int) -> Sequence[Place]:
        return self._chance.sample(places, min(len(places), each))

    def _customers(self) -> list[Place]:
        """Every customer and meter, those that nothing is counted of too."""
        whose = {(e.tenant_id, e.customer_ref) for e in self._events if e.customer_ref is not None}
        return [(tenant, customer, meter) for tenant, customer in sorted(whose) for meter in self._meters.values()]

    async def _check_usage(self, state: State, whose: Place, as_of: int) -> None:
        """Every period at once, and every group."""
        tenant, customer, meter = whose
        for grouped in (False, True) if meter.group_by else (False,):
            wanted = Wanted(tenant, meter.name, customer, grouped=grouped, as_of=as_of)
            found = await read_usage(self._connection, self._shapes, wanted, items_max=1000, timeout_ns=_MINUTE)
            counters: dict[Place, Counter] = {**(state.groups if grouped else state.counters)}
            expected = [
                usage_item(meter, counter, *place[3:])
                for place, counter in counters.items()
                if place[:3] == (tenant, meter.name, customer)
            ]
            assert found.through_sequence == as_of
            assert found.items == sorted(expected, key=in_order), (wanted, self._toml)

    async def _check_buckets(self, state: State, whose: Place, as_of: int | None) -> None:
        """Any length, with and without groups, all of the time or some of it."""
        tenant, customer, meter = whose
        window = self._chance.choice([each for each in _WINDOWS if each != meter.period])
        grouped = bool(meter.group_by) and self._chance.random() < 0.5
        counters: dict[Place, Counter] = {**(state.groups if grouped else state.counters)}
        own = {place: counter for place, counter in counters.items() if place[:3] == (tenant, meter.name, customer)}
        expected = buckets(own, window)
        since, until = sorted(self._chance.sample(sorted({start for start, _ in expected} | {0, 1}), 2))
        if self._chance.random() < 0.5:
            asked = {"since": since, "until": until}
            expected = {
                (start, group): parts
                for (start, group), parts in expected.items()
                if start < until and period_end(window, start) > since
            }
        else:
            asked = {}
        wanted = Wanted(tenant, meter.name, customer, window=window, grouped=grouped, as_of=as_of, **asked)
        found = await read_usage(self._connection, self._shapes, wanted, items_max=1000, timeout_ns=_MINUTE)
        said = (wanted, self._toml)
        assert found.window == window, said
        rest = dict(expected)
        empty = text(Aggregate().value(meter.aggregation))
        for item in found.items:
            folded, together = rest.pop((started(item.period_start), item.group), (Aggregate(), Aggregate()))
            values = text(folded.value(meter.aggregation)), text(together.value(meter.aggregation))
            # What everything has left keeps its place.
            assert (item.value, item.total) == values, said
            assert item.period_end == instant_text(period_end(window, started(item.period_start))), said
            assert together.entries or folded.entries or (item.value, item.total) == (empty, empty), said
        assert not rest, said

    async def _check_explained(self, state: State, place: Place, as_of: int | None, through: int) -> None:
        tenant, metric, customer, start, *group = place
        counters: dict[Place, Counter] = {**state.counters, **state.groups}
        counter = counters[place]
        group_key = group[0] if group else None
        asked = Asked(tenant, metric, customer, started(start), group_key, of_group=bool(group), as_of=as_of)
        found, events = await self._paged(asked)
        said = (asked, self._toml)
        meter = self._meters[metric]
        assert figures(found) == expected_figures(meter, counter, start, through), said
        assert found.agrees is (True if as_of is None else None), said
        sequences = [event.ingress_sequence for event in events]
        assert sequences == sorted(set(sequences)), said
        check_events(found, events, counter, said)
        if not group:
            assert adjusted(events) == adjustments(state, metric, tenant, customer, start), said
        for event in events:
            if event.part == "error" or (event.code is not None and not group):
                assert event.code in error_codes(state, meter, tenant, event.ingress_sequence), said

    async def _paged(self, asked: Asked) -> tuple[Explanation, list[ExplainedEvent]]:
        """All of it, in pages of a few."""
        events: list[ExplainedEvent] = []
        position = 0
        while True:
            found, more = await self._explaining.explain(
                asked, limit=self._chance.choice([1, 2, 5, 100]), after=position
            )
            events += found.items
            if not more:
                return found, events
            position = events[-1].ingress_sequence


def usage_item(meter: Meter, counter: Counter, start: str, group: str | None = None) -> UsageItem:
    value, total = counter.folded.value(meter.aggregation), counter.together.value(meter.aggregation)
    adjustment = None if value is None or total is None else total - value
    end = instant_text(period_end(meter.period, started(start)))
    return UsageItem(
        start,
        end,
        group,
        value=text(value),
        adjustment=text(adjustment),
        total=text(total),
        watermark=time(counter.watermark),
    )


def in_order(item: UsageItem) -> tuple[int, bool, str]:
    return started(item.period_start), item.group is not None, item.group or ""


def buckets(counters: Mapping[Place, Counter], window: str) -> dict[Any, tuple[Aggregate, Aggregate]]:
    """By start and group: what the value and what the total of some counters has of that time."""
    found: dict[Any, tuple[Aggregate, Aggregate]] = {}
    for place, counter in counters.items():
        group = place[4] if len(place) > 4 else None
        for part, aggregate in enumerate((counter.folded, counter.together)):
            for entry in aggregate.entries:
                key = (period_start(window, entry.occurred_at), group)
                both = list(found.get(key, (Aggregate(), Aggregate())))
                both[part] = both[part].plus(entry)
                found[key] = (both[0], both[1])
    return found


def figures(found: Explanation) -> list[object]:
    folded, adjusted, withdrawn = found.folded, found.adjusted, found.withdrawn
    return [
        *(found.value, found.total, found.watermark, found.period_end, found.through_sequence),
        *(folded.count, folded.sum, folded.max, folded.min, folded.last),
        *(adjusted.count, adjusted.sum, withdrawn.count, withdrawn.sum),
    ]


def expected_figures(meter: Meter, counter: Counter, start: str, through: int) -> list[object]:
    item, folded, together = usage_item(meter, counter, start), counter.folded, counter.together
    only = [Aggregate(beyond(one, other)) for one, other in ((together, folded), (folded, together))]
    return [
        *(item.value, item.total, item.watermark, item.period_end, through),
        *(folded.count, *map(text, (folded.sum, folded.max, folded.min, folded.last))),
        *(figure for part in only for figure in (part.count, text(part.sum))),
    ]


def beyond(one: Aggregate, other: Aggregate) -> tuple[Entry, ...]:
    """What one has and the other has not."""
    sequences = {entry.sequence for entry in other.entries}
    return tuple(entry for entry in one.entries if entry.sequence not in sequences)


def check_events(found: Explanation, events: Sequence[ExplainedEvent], counter: Counter, said: object) -> None:
    """Event by event it is the same: who is in, what each changed, and how many there are of each part."""
    by_sequence = {event.ingress_sequence: event for event in events}
    corrected = {event.ingress_sequence: event.corrected_by for event in events if event.corrected_by is not None}
    for sequence, by in corrected.items():
        # An amendment that took its event out of this group and entered another one is corrected there.
        if by in by_sequence or by_sequence[sequence].part != "amend":
            assert by_sequence[by].corrects == sequence, said
    entries = {event.ingress_sequence for event in events if event.part in ("folded", "adjusted")}
    amendments = {event.ingress_sequence for event in events if event.part == "amend"}
    late = {event.ingress_sequence for event in events if event.adjusted_reason is not None}
    total = {entry.sequence for entry in counter.together.entries}
    value = {entry.sequence for entry in counter.folded.entries}
    assert entries - corrected.keys() == total - amendments, said
    assert total & amendments <= amendments - corrected.keys(), said
    out = {sequence for sequence, by in corrected.items() if by not in late}
    assert entries - late - out == value - amendments, said
    assert value & amendments <= amendments - late - out, said
    counted = sum((Decimal(by_sequence[sequence].counted or 0) for sequence in total), Decimal(0))
    assert text(counted) == text(counter.together.sum), said
    before: Decimal | None = None
    for event in changing(events):
        after = None if event.total is None else Decimal(event.total)
        if event.change is not None:
            assert Decimal(event.change) == (after or 0) - (before or 0), (event, said)
        before = after
    assert found.total == text(before), said
    assert dict(numbers(events)) == parts(found), said


def changing(events: Sequence[ExplainedEvent]) -> Iterator[ExplainedEvent]:
    """The events after which there is a total, which may be nothing when an event was taken out."""
    for event in events:
        if event.total is not None or event.change is not None:
            yield event


def numbers(events: Sequence[ExplainedEvent]) -> Iterator[tuple[str, int]]:
    """How many events there are of each part that is not counted, and of corrections."""
    for part in ("filtered", "deleted"):
        yield part, sum(event.part == part for event in events)
    corrections = [event for event in events if event.corrects is not None]
    changed = [event for event in corrections if event.total is not None or event.change is not None]
    yield "void", sum(event.part == "void" for event in changed)
    yield "amend", sum(event.part == "amend" for event in changed)
    yield "overdue", sum(event.adjusted_reason is not None for event in changed)
    yield "uncounted", len(corrections) - len(changed)


def parts(found: Explanation) -> dict[str, int]:
    corrections = found.corrections
    return {
        "filtered": found.filtered,
        "deleted": found.deleted,
        "void": corrections.voids,
        "amend": corrections.amendments,
        "overdue": corrections.adjusted,
        "uncounted": corrections.uncounted,
    }


def adjusted(events: Sequence[ExplainedEvent]) -> dict[int, str | None]:
    return {event.ingress_sequence: event.change for event in events if event.adjusted_reason is not None}


def adjustments(state: State, metric: str, tenant: str, customer: str, start: str) -> dict[int, str | None]:
    """What the model's table says of this counter."""
    key = {"metric": metric, "customer_ref": customer, "period_start": started(start)}
    rows = [row for (of, _), row in state.table("adjustments").items() if of == tenant and key.items() <= row.items()]
    return {row["ingress_sequence"]: text(row["amount"]) for row in rows}


def error_codes(state: State, meter: Meter, tenant: str, sequence: int) -> set[str]:
    """Why the model took no count of an event."""
    rows = [row for (of, _), row in state.table("error_rows").items() if of == tenant]
    own = [row for row in rows if row["ingress_sequence"] == sequence]
    return {row["code"] for row in own if row["source"] in (meter.name, meter.stream)}


def started(start: str) -> int:
    """A period may begin before the first instant that an event can have."""
    return nanoseconds(datetime.fromisoformat(start))


def text(number: Decimal | None) -> str | None:
    return None if number is None else decimal_text(number)


def time(nanoseconds: int | None) -> str | None:
    return None if nanoseconds is None else instant_text(nanoseconds)
