"""Explaining is exact: for random ledgers every counter is the sum of what is explained, as of any sequence.

What is explained is read from the ledger by Postgres, the counters were folded by Spark, and the model says what both
must be. `LAW_SEED` repeats a run.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal, localcontext
from random import Random
from typing import Any

import psycopg
import pytest

from tests.conftest import Databases
from tests.fold.folding import Folding
from tests.law.closings import closes
from tests.law.ledgers import COMPUTED, Ledger, Toml
from tests.law.packs import Pack, drawn, pack, tenant_of
from tests.law.timelines import timed_definitions, timed_ledgers
from tests.ledgers import write_ledger
from tests.model import State, fold
from tests.model.meters import Counter
from tests.model.values import EXACT, decimal_text, instant_text, nanoseconds
from tidelock.definitions import Meter, parse_definitions
from tidelock.periods import period_end
from tidelock.spark.runtime import Spark
from tidelock.usage.explain import Asked, ExplainedEvent, Explaining, ExplainLimits, Explanation
from tidelock.usage.usage import UsageItem, Wanted, read_usage
from tidelock.views.catalog import CatalogReader

_MINUTE = 60 * 10**9
#: sequences at which a pack is looked at, and at most so many counters and customers each time
_LOOKS, _EACH = 2, 80

#: tenant, metric, customer, start, and of a group the group
Place = tuple[Any, ...]


@pytest.mark.timeout(300)
def test_every_counter_is_the_sum_of_what_is_explained_as_of_any_sequence(
    spark: Spark, databases: Databases, number: int
) -> None:
    prove(spark, databases, number, packs=1, size=25)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_very_many_counters_are_the_sum_of_what_is_explained(spark: Spark, databases: Databases, number: int) -> None:
    prove(spark, databases, number, packs=int(os.environ.get("SOAK_PACKS", "10")), size=100)


def prove(spark: Spark, databases: Databases, number: int, *, packs: int, size: int) -> None:
    chance = Random(number)
    # The first examples are small, and some have hardly any meter.
    tomls = [toml for toml in drawn(timed_definitions(), 12 * packs, number)[5:] if len(toml["meters"]) > 4]
    many = drawn(timed_ledgers(), packs * size, number)
    for place, toml in enumerate(chance.sample(tomls, packs)):
        # Counters know nothing of windows, which would only take time.
        found = prove_pack(spark, databases, {**toml, "windows": {}}, many[place * size : (place + 1) * size], chance)
        print(f"pack {place + 1}: {found} counters explained", flush=True)
        assert found


def prove_pack(spark: Spark, databases: Databases, toml: Toml, some: Sequence[Ledger], chance: Random) -> int:
    tenants = [tenant_of(place, {"tenant_id": own}) for place in range(len(some)) for own in (0, 1)]
    controls = [{"type": "tick"}, *closes(toml, tenants, chance, 30)]
    packed = pack(some, chance, controls=controls, scattered=5)
    with databases() as database:
        write_ledger(database, packed.events, packed.ends)
        with Folding(spark, database, toml) as folding:
            folding.advance(packed.cut(lambda: True))

        async def looked() -> int:
            async with await database.connect() as connection:
                with localcontext(EXACT):
                    return await Proof(connection, toml, packed, chance).run()

        return asyncio.run(looked())


class Proof:
    """What is explained of a folded ledger, held against the model."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], toml: Toml, packed: Pack, chance: Random) -> None:
        self._connection = connection
        self._toml = toml
        self._events = packed.events
        self._chance = chance
        self._meters = parse_definitions(toml).meters
        self._shapes = CatalogReader(parse_definitions(toml))
        self._explaining = Explaining(connection, self._shapes, ExplainLimits(_MINUTE, 1 << 20))

    async def run(self) -> int:
        last = self._events[-1].ingress_sequence
        explained = 0
        for as_of in (None, *(self._chance.randint(1, last) for _ in range(_LOOKS))):
            through = last if as_of is None else as_of
            state = fold([e for e in self._events if e.ingress_sequence <= through], self._toml, COMPUTED)
            for place in self._some([*state.counters, *state.groups]):
                await self._check_explained(state, place, as_of, through)
                explained += 1
            for whose in self._some(self._customers()) if as_of is not None else ():
                await self._check_usage(state, whose, through)
        return explained

    def _some(self, places: Sequence[Place]) -> Sequence[Place]:
        return self._chance.sample(places, min(len(places), _EACH))

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
        assert summed(events) == (parts(found), found.total), said
        sequences = [event.ingress_sequence for event in events]
        assert sequences == sorted(set(sequences)), said
        if not group:
            assert adjusted(events) == adjustments(state, metric, tenant, customer, start), said
        for event in events:
            if event.part == "error":
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
        watermark=time(counter.folded.watermark),
    )


def in_order(item: UsageItem) -> tuple[int, bool, str]:
    return started(item.period_start), item.group is not None, item.group or ""


def figures(found: Explanation) -> list[object]:
    folded = found.folded
    return [
        *(found.value, found.total, found.watermark, found.period_end, found.through_sequence),
        *(folded.count, folded.sum, folded.max, folded.min, folded.last, found.adjusted.count, found.adjusted.sum),
    ]


def expected_figures(meter: Meter, counter: Counter, start: str, through: int) -> list[object]:
    item, folded, together = usage_item(meter, counter, start), counter.folded, counter.together
    return [
        *(item.value, item.total, item.watermark, item.period_end, through),
        *(folded.count, *map(text, (folded.sum, folded.max, folded.min, folded.last))),
        *(together.count - folded.count, text(together.sum - folded.sum)),
    ]


def parts(found: Explanation) -> dict[str, tuple[int, Decimal]]:
    """What is said of the events as a whole."""
    said = {
        "folded": (found.folded.count, Decimal(found.folded.sum)),
        "adjusted": (found.adjusted.count, Decimal(found.adjusted.sum)),
        "error": (found.errors.count, Decimal(0)),
        "filtered": (found.filtered, Decimal(0)),
        "deleted": (found.deleted, Decimal(0)),
    }
    return {part: figures for part, figures in said.items() if figures[0]}


def summed(events: Sequence[ExplainedEvent]) -> tuple[dict[str, tuple[int, Decimal]], str | None]:
    """The same, added up event by event, and the total after the last."""
    found: dict[str, tuple[int, Decimal]] = {}
    for event in events:
        count, total = found.get(event.part, (0, Decimal(0)))
        found[event.part] = (count + 1, total + Decimal(event.counted or 0))
    totals = [event.total for event in events if event.part in ("folded", "adjusted")]
    return found, totals[-1]


def adjusted(events: Sequence[ExplainedEvent]) -> dict[int, str | None]:
    return {event.ingress_sequence: event.change for event in events if event.part == "adjusted"}


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
