"""Packs: many small ledgers as the tenants of one large one, so that one fold tries them all."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.law.ledgers import Draft, Ledger
from tests.model import Event
from tidelock.model import CONTROL

if TYPE_CHECKING:
    from tests.fold.folding import Range

T = TypeVar("T")


@dataclass(frozen=True)
class Pack:
    """A ledger of ledgers."""

    events: Sequence[Event]
    #: last sequences of the commits
    ends: Sequence[int]

    def only(self, kept: Callable[[Event], bool]) -> Pack:
        """Some of the events, where they are, and all control events, which are for all."""
        events = [event for event in self.events if event.stream == CONTROL or kept(event)]
        sequences = [event.ingress_sequence for event in events]
        ends = (sequences[place - 1] for end in self.ends if (place := bisect_right(sequences, end)))
        return Pack(events, list(dict.fromkeys(ends)))

    def cut(self, joined: Callable[[], bool]) -> list[Range]:
        """Ranges on commit boundaries, each as long as `joined` says so; a control event is a range of its own."""
        control = {event.ingress_sequence for event in self.events if event.stream == CONTROL}
        ranges: list[Range] = []
        lo = 0
        for hi in self.ends:
            apart = hi in control or lo in control or not ranges or not joined()
            ranges = [*ranges, (lo, hi)] if apart else [*ranges[:-1], (ranges[-1][0], hi)]
            lo = hi
        return ranges


def drawn(strategy: st.SearchStrategy[T], count: int, number: int) -> list[T]:
    """Examples of a strategy, the same for the same number."""
    found: list[T] = []

    @seed(number)
    @settings(
        max_examples=count, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def collect(example: T) -> None:
        found.append(example)

    collect()
    return found


def pack(
    ledgers: Sequence[Ledger],
    chance: Random,
    *,
    controls: Sequence[Mapping[str, Any]] = ({"type": "tick"},),
    scattered: float = 0,
    first: Sequence[Mapping[str, Any]] = (),
) -> Pack:
    """The n-th commits of all ledgers are the n-th commit; their collections take turns, and some are one request's.

    Between commits there are control events now and then, and sequences that nobody has. About `scattered` more
    control events come amid the commits, which end there; `first` are before everything.
    """
    events: list[Event] = []
    ends: list[int] = []
    sequence, time = 0, 10**18

    def record(collection: Sequence[tuple[str, Draft]]) -> None:
        nonlocal sequence, time
        time += chance.choice([1, 1000, 10**9])
        for tenant, draft in collection:
            sequence += 1
            events.append(Event(sequence, time, **{**draft, "tenant_id": tenant}))

    def record_control(said: Mapping[str, Any]) -> None:
        nonlocal time
        ends.append(sequence)
        # Ticks come after quiet times.
        time += chance.choice([0, 5, 60]) * 10**9
        record([(CONTROL, {"stream": CONTROL, "occurred_at": time, "data": json.dumps(said)})])
        ends.append(sequence)

    for said in first:
        record_control(said)
    often = scattered / sum(len(commit) for ledger in ledgers for commit in ledger)
    for number in range(max(map(len, ledgers))):
        sequence += chance.choice([0, 0, 5])
        for collection in _turns([ledger[number] if number < len(ledger) else [] for ledger in ledgers], chance):
            record(collection)
            if scattered and chance.random() < often:
                record_control(chance.choice(controls))
        ends.append(sequence)
        if chance.random() < 0.3:
            record_control(chance.choice(controls))
    return Pack(events, [end for end in dict.fromkeys(ends) if end])


def tenant_of(number: int, draft: Draft) -> str:
    """The name of a ledger's tenant."""
    return f"{number}-{draft['tenant_id']}"


def _turns(commits: list[list[list[Draft]]], chance: Random) -> Iterator[list[tuple[str, Draft]]]:
    """The collections of commits in random turns, some joined with others' into one."""
    turns = [number for number, commit in enumerate(commits) for _ in commit]
    chance.shuffle(turns)
    remaining = [iter(commit) for commit in commits]
    joined: list[tuple[str, Draft]] = []
    members: set[int] = set()
    for number in turns:
        if members and (number in members or chance.random() < 0.6):
            yield joined
            joined, members = [], set()
        members.add(number)
        joined = [*joined, *((tenant_of(number, draft), draft) for draft in next(remaining[number]))]
    if joined:
        yield joined
