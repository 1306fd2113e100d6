"""Attention: what is wrong, and what to do about it, from the API's responses. Pure: tested without a browser."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tidelock.console.parts.times import ago
from tidelock.sections import number_of

# Warn about readers that lag by more than this.
_LAG_S = 30.0
# A higher share of rejected events is more than one faulty producer.
_REFUSED_SHARE = 0.02

_READERS = {
    "fold": ("Tables, windows and subscriptions lag by that much.", "tidelock status"),
    "triggers": ("Webhooks are delayed by that much.", "tidelock status"),
    "kafka": ("Consumers of the mirror see nothing newer. Is the broker reachable?", "tidelock mirror"),
    "clickhouse": ("Queries there miss the newest events.", "tidelock load clickhouse"),
    "lake": ("The files miss the newest events.", "tidelock load lake"),
}


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing that needs attention."""

    tone: Literal["warn", "bad"]
    title: str
    text: str
    command: str | None = None
    href: str | None = None


def of_readers(readers: Sequence[dict[str, Any]]) -> Iterable[Notice]:
    if not any(reader["name"] == "fold" for reader in readers):
        text = "Events are recorded, but counters, windows and subscriptions show nothing new."
        yield Notice("warn", "No fold has run yet", text, "tidelock fold")
    for reader in readers:
        if reader["lagSeconds"] > _LAG_S:
            text, command = _READERS.get(reader["name"], ("It has not caught up yet.", "tidelock status"))
            behind = f"{number_of(reader['lagSequences'], 'event')}, {ago(reader['lagSeconds'])}"
            yield Notice("bad", f"{reader['name']} is behind: {behind}", text, command)


def of_activity(steps: Sequence[dict[str, Any]]) -> Iterable[Notice]:
    sums = {name: sum(step[name] for step in steps) for name in ("accepted", "duplicates", "conflicts", "rejected")}
    answered = sum(sums.values())
    if sums["rejected"] > _REFUSED_SHARE * answered:
        text = "Their senders got the reason for each event: see `error.field` in the responses."
        yield Notice(
            "warn", f"{sums['rejected']:,} of {number_of(answered, 'event')} rejected in the last ten minutes", text
        )
    if sums["conflicts"]:
        text = "A producer sent different content under a key already used. The ledger keeps the first event."
        yield Notice("warn", f"{number_of(sums['conflicts'], 'conflict')} in the last ten minutes", text)


def of_definitions(definitions: dict[str, Any]) -> Iterable[Notice]:
    changed = definitions["changed"]
    if changed and definitions["version"] is not None:
        names = ", ".join(changed[:5]) + (" ..." if len(changed) > 5 else "")
        text = "The tables still reflect the old definitions. A replay rebuilds them and swaps them in."
        yield Notice("warn", f"The settings differ: {names}", text, "tidelock replay", "/streams")


def of_errors(rows: Sequence[dict[str, Any]]) -> Iterable[Notice]:
    if rows:
        first = rows[0]
        text = f"{first['source']}, event {first['ingress_sequence']:,}: {first['message']}"
        yield Notice("warn", "Some events do not fit their definitions", text, href="/events/errors")


def of_dead_letters(triggers: Sequence[str]) -> Iterable[Notice]:
    for name in triggers:
        text = "Every attempt failed. Fix the receiver, then send them again."
        yield Notice("bad", f"{name} has dead webhooks", text, href=f"/triggers/{name}")
