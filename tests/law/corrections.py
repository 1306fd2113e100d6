"""Random corrections for the law, as ingest records them: of events and amendments of streams without a key.

What there is to correct, and its sequence, is known only once a ledger has its numbers; so a pack asks for corrections
while it is recorded. None is left without its target when a pack is made smaller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

from tests.law.ledgers import Draft
from tests.model import Event

#: whether the law has any
CORRECTIONS = True


class Corrections:
    """What may be corrected so far, by tenant, and what amendments may say."""

    def __init__(self, toml: Mapping[str, Mapping[str, Any]], chance: Random, *, often: float = 0.3) -> None:
        """`often`: for each event, in commits that have corrections."""
        self._keyed = frozenset(name for name, stream in toml.get("streams", {}).items() if "key" in stream)
        self._chance = chance
        self._often = often if CORRECTIONS else 0.0
        self._now = 0.0
        self._open: dict[str, list[Event]] = {}
        self._drafts: dict[tuple[str, str], list[Draft]] = {}

    def learn(self, tenant: str, draft: Draft) -> None:
        """What some event of a tenant says, an amendment of another may say."""
        self._drafts.setdefault((tenant, draft["stream"]), []).append(draft)

    def begin_commit(self) -> None:
        """Some have none, so that executors fold as well."""
        self._now = self._often if self._often and self._chance.random() < 0.5 else 0.0

    def recorded(self, event: Event) -> None:
        if event.stream not in self._keyed and event.op != "void":
            self._open.setdefault(event.tenant_id, []).append(event)

    def some(self, tenant: str, sequence: int, source_timestamp: int) -> Iterator[Event]:
        """Corrections, numbered from that sequence, of what a tenant has recorded so far."""
        chance, known = self._chance, self._open.get(tenant, [])
        while self._now and known and chance.random() < self._now:
            # New events are in time, old ones are not; and amendments are amended in their turn.
            nearest = chance.choice([1, 4, len(known)])
            target = known.pop(chance.randrange(max(0, len(known) - nearest), len(known)))
            said: dict[str, Any] = {"op": "void"}
            if chance.random() < 0.6:
                other = chance.choice(self._drafts[tenant, target.stream])
                named = chance.choice([("quantity",), ("data",), ("quantity", "data"), ()])
                said = {"op": "amend"} | {name: other[name] for name in named}
            own = {"occurred_at": 0, "received_at": chance.choice([0, 1_000_000_001]), **said}
            event = Event(sequence, source_timestamp, target.stream, **own).correcting(target)
            self.recorded(event)
            yield event
            sequence += 1


def without_orphans(events: Iterable[Event]) -> Sequence[Event]:
    """Without corrections whose target is not among them, and theirs."""
    kept: list[Event] = []
    there: set[int] = set()
    for event in events:
        if event.target_sequence is None or event.target_sequence in there:
            kept.append(event)
            there.add(event.ingress_sequence)
    return kept
