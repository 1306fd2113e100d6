"""What a change costs among many filters: the views of a source, and for comparison each filter asked in turn.

Every change concerns one view, however many there are, so what grows is what the others cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from bench.harness import Say
from tidelock.changes.reader import Change
from tidelock.columns import STRING, parse_column_type
from tidelock.errors import Difference
from tidelock.tables import Table
from tidelock.views.views import TableViews, ViewEvent
from tidelock.where import Expression, compile_where, parse_where

COUNTS = (10, 1_000, 10_000)

_TABLE = Table(
    "trades",
    {
        name: parse_column_type(text)
        for name, text in {
            "trade_id": "bigint",
            "symbol": "string",
            "quantity": "int",
            "price": "decimal(18,4)",
            "ts": "timestamp",
        }.items()
    },
    ("trade_id",),
)
_COLUMNS = {"tenant_id": STRING, **_TABLE.columns}
_STEP = 100
_CHANGES = 2_000
# Asking each filter takes long, and varies little.
_ASKED_CHANGES = 20
_ROUNDS = 5

Filter = dict[str, object]


@dataclass(frozen=True, slots=True)
class Kind:
    """Filters of which each is true of its own rows, but for one-sided ranges: there only the first rows are used."""

    #: of figures
    name: str
    title: str
    written: Callable[[int], Filter]
    #: how many of the filters' rows are used
    rows: Callable[[int], int] = lambda filters: filters


KINDS = (
    Kind("eq", "_eq", lambda n: {"symbol": {"_eq": f"s{n}"}}),
    Kind("in", "_in of three", lambda n: {"symbol": {"_in": [f"s{n}", f"t{n}", f"u{n}"]}}),
    Kind("above", "one-sided ranges", lambda n: {"price": {"_gte": n * _STEP}}, lambda filters: 1),
    Kind("between", "two-sided ranges", lambda n: {"price": {"_gte": n * _STEP, "_lt": (n + 1) * _STEP}}),
    Kind(
        "betweenOfTenant",
        "two-sided ranges of one tenant",
        lambda n: {"price": {"_gte": n * _STEP, "_lt": (n + 1) * _STEP}, "tenant_id": {"_eq": "acme"}},
    ),
    Kind(
        "either",
        "_or of _eq and two-sided ranges",
        lambda n: {"_or": [{"symbol": {"_eq": f"s{n}"}}, {"price": {"_gt": n * _STEP, "_lte": (n + 1) * _STEP}}]},
    ),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one change, in microseconds of processor time: waiting for a busy machine is no part of it."""

    kind: Kind
    filters: int
    #: through the views of a source
    us: float
    #: by asking each filter of the old and the new row
    asked_us: float


def measure(say: Say, kinds: Sequence[Kind] = KINDS, counts: Sequence[int] = COUNTS) -> list[Cost]:
    """Costs of every kind at every count. Raises Difference when a view misses a change, or one too many is told."""
    found = []
    for kind in kinds:
        costs = _costs(kind, counts)
        told = ", ".join(f"{cost.us:.1f} µs at {cost.filters:,} (each asked: {cost.asked_us:,.0f})" for cost in costs)
        say(f"  {kind.title}: {told}")
        found += costs
    return found


def figures(costs: Sequence[Cost]) -> dict[str, float]:
    """By name: costs, and how they grow from the smallest count to the largest."""
    found: dict[str, float] = {}
    for kind in dict.fromkeys(cost.kind for cost in costs):
        own = [cost for cost in costs if cost.kind is kind]
        found |= {f"{kind.name}{cost.filters}FiltersMicroseconds": round(cost.us, 2) for cost in own}
        found[f"{kind.name}Growth"] = round(own[-1].us / own[0].us, 2)
    return found


def _costs(kind: Kind, counts: Sequence[int]) -> list[Cost]:
    """Counts take turns, and the best of their times is taken: the machine may have other things to do."""
    subjects = [_Subject(kind, count) for count in counts]
    us, asked_us = ([float("inf")] * len(subjects) for _ in range(2))
    for _ in range(_ROUNDS):
        for i, subject in enumerate(subjects):
            us[i] = min(us[i], subject.applied_us())
    for i, subject in enumerate(subjects):
        asked_us[i] = min(subject.asked_us() for _ in range(2))
    return [Cost(kind, *found) for found in zip(counts, us, asked_us, strict=True)]


class _Subject:
    """So many filters of a kind, and changes for them."""

    def __init__(self, kind: Kind, filters: int) -> None:
        expressions = [parse_where(kind.written(number), _COLUMNS) for number in range(filters)]
        self._source = TableViews(_TABLE)
        self._told = _Told()
        for expression in expressions:
            self._source.subscribe(self._told, expression)
        self._matches = _all_of(expressions)
        rows = kind.rows(filters)
        # Spread over the rows, without the order that a processor's cache would like.
        self._changes = [_change(number, number * 7919 % rows) for number in range(_CHANGES)]
        self._source.apply(self._changes[0])

    def applied_us(self) -> float:
        self._told.events = 0
        started = time.thread_time()
        for change in self._changes:
            self._source.apply(change)
        seconds = time.thread_time() - started
        if self._told.events != _CHANGES:
            raise Difference(f"{_CHANGES} changes of one view each made {self._told.events} events")
        return seconds / _CHANGES * 1e6

    def asked_us(self) -> float:
        started = time.thread_time()
        for change in self._changes[:_ASKED_CHANGES]:
            self._matches(change)
        return (time.thread_time() - started) / _ASKED_CHANGES * 1e6


class _Told:
    """A subscriber that counts."""

    def __init__(self) -> None:
        self.events = 0

    def put(self, event: ViewEvent) -> None:
        self.events += 1


def _all_of(expressions: Sequence[Expression]) -> Callable[[Change], int]:
    compiled = [compile_where(expression) for expression in expressions]

    def asked(change: Change) -> int:
        rows: list[Mapping[str, object]] = [{"tenant_id": change.tenant_id, **(row or {})} for row in change[4:]]
        return sum(matches(rows[0]) or matches(rows[1]) for matches in compiled)

    return asked


def _change(number: int, place: int) -> Change:
    """An update of a row that one filter is true of, before and after."""
    old = {
        "trade_id": number,
        "symbol": f"s{place}",
        "quantity": 1,
        "price": Decimal(place * _STEP + 10),
        "ts": number,
    }
    new = {**old, "quantity": 2, "price": Decimal(place * _STEP + 20), "ts": number + 1}
    return Change(_TABLE.name, number, "acme", str(number), old=old, new=new)


if __name__ == "__main__":
    measure(print)
