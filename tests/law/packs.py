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

from tests.law.corrections import Corrections, without_orphans
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
        """Some of the events, where they are, and all control events, which are for all.

        A correction goes with what it corrects.
        """
        events = without_orphans(event for event in self.events if event.stream == CONTROL or kept(event))
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
    corrections: Corrections | None = None,
) -> Pack:
    """The n-th commits of all ledgers are the n-th commit; their collections take turns, and some are one request's.

    Between commits there are control events now and then, and sequences that nobody has. About `scattered` more
    control events come amid the commits, which end there; `first` are before everything. Corrections are of a
    tenant's own events, and stand amid those of a collection or are one.
    """
    recording = _Recording(chance, corrections or Corrections({}, chance, often=0))
    tenants = []
    for number, ledger in enumerate(ledgers):
        for draft in (draft for commit in ledger for collection in commit for draft in collection):
            tenants.append(tenant_of(number, draft))
            recording.corrections.learn(tenants[-1], draft)
    for said in first:
        recording.control(said)
    often = scattered / sum(len(commit) for ledger in ledgers for commit in ledger)
    for number in range(max(map(len, ledgers))):
        recording.begin_commit()
        for collection in _turns([ledger[number] if number < len(ledger) else [] for ledger in ledgers], chance):
            recording.collection(collection)
            if scattered and chance.random() < often:
                recording.control(chance.choice(controls))
        recording.correct(chance.sample(tenants, min(len(tenants), 5)))
        recording.end_commit()
        if chance.random() < 0.3:
            recording.control(chance.choice(controls))
    return Pack(recording.events, [end for end in dict.fromkeys(recording.ends) if end])


class _Recording:
    """A ledger while it grows."""

    def __init__(self, chance: Random, corrections: Corrections) -> None:
        self.corrections = corrections
        self.events: list[Event] = []
        self.ends: list[int] = []
        self._chance = chance
        self._sequence, self._time = 0, 10**18

    def begin_commit(self) -> None:
        self._sequence += self._chance.choice([0, 0, 5])
        self.corrections.begin_commit()

    def end_commit(self) -> None:
        self.ends.append(self._sequence)

    def collection(self, drafts: Sequence[tuple[str, Draft]]) -> None:
        """Events, and corrections of theirs and of earlier ones of their tenants."""
        self._time += self._chance.choice([1, 1000, 10**9])
        for tenant, draft in drafts:
            event = Event(self._sequence + 1, self._time, **{**draft, "tenant_id": tenant})
            self._add(event)
            self.corrections.recorded(event)
            self._correct(tenant)

    def correct(self, tenants: Sequence[str]) -> None:
        """A request of corrections only, as one that takes back a batch."""
        self._time += 1000
        for tenant in tenants:
            self._correct(tenant)

    def control(self, said: Mapping[str, Any]) -> None:
        self.end_commit()
        # Ticks come after quiet times.
        self._time += self._chance.choice([0, 5, 60]) * 10**9 + self._chance.choice([1, 1000, 10**9])
        self._add(Event(self._sequence + 1, self._time, CONTROL, self._time, CONTROL, data=json.dumps(said)))
        self.end_commit()

    def _correct(self, tenant: str) -> None:
        for event in self.corrections.some(tenant, self._sequence + 1, self._time):
            self._add(event)

    def _add(self, event: Event) -> None:
        self.events.append(event)
        self._sequence = event.ingress_sequence


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
