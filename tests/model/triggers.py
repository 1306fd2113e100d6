"""Triggers: what receivers are told, one collection after another.

    transitions(events, definitions)       definitions in the shape of tidelock.toml; triggers are among the events

A trigger is made, changed and ended by control events. A receiver is told of a key that enters when `match` is true of
its row, and of one that leaves when `unmatch` is, or when it is deleted; without `unmatch`, when `match` is not true.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import sha256
from itertools import groupby
from typing import Any

from tests.model.events import Event
from tests.model.filters import truth
from tests.model.fold import Calculated, Definitions, apply
from tests.model.progress import CONTROL
from tests.model.tables import Change, Row, State
from tests.model.values import decimal_text, instant_text


@dataclass(frozen=True)
class Transition:
    """What a receiver is told."""

    trigger: str
    tenant_id: str
    key: str
    event_type: str
    source_timestamp: int
    #: JSON, in the forms that there are outside
    data: Mapping[str, Any]

    @property
    def event_id(self) -> str:
        return sha256(f"{self.trigger}:{self.key}:{self.source_timestamp}".encode()).hexdigest()[:32]


@dataclass
class _Trigger:
    said: Mapping[str, Any]
    members: set[str] = field(default_factory=set)

    def matches(self, row: Row) -> bool:
        return self._true("match", row)

    def leaves(self, row: Row) -> bool:
        if self.said["unmatch"] is None:
            return not self.matches(row)
        # When both are true, match wins.
        return self._true("unmatch", row) and not self.matches(row)

    def _true(self, which: str, row: Row) -> bool:
        types = {"tenant_id": "string", **self.said["columns"]}
        values = {"tenant_id": self.said["tenantId"], **row}
        where = json.loads(self.said[which], parse_float=Decimal)
        return truth(where, lambda name: (types[name], values.get(name))) is True


@dataclass
class Triggers:
    """The triggers of an installation, and all that they have told."""

    told: list[Transition] = field(default_factory=list)
    _enabled: dict[str, _Trigger] = field(default_factory=dict)

    def pass_by(self, at: int, changes: Sequence[Change], said: Mapping[str, Any] | None, state: State) -> None:
        """One collection: what it changed, what it said of a trigger if it was a control event, what there is now.

        Choice: the changes that a control event itself brings, as when a window closes, are after the end of what the
        trigger was and before the beginning of what it is.
        """
        found: list[Transition] = []
        if said is not None:
            self._enabled.pop(said["name"], None)
        for change in changes:
            for trigger in self._enabled.values():
                if (trigger.said["table"], trigger.said["tenantId"]) == (change.table, change.tenant_id):
                    found += _crossing(trigger, change)
        if said is not None and said["action"] == "set" and said["enabled"]:
            found += self._begin(_Trigger(said), at, state)
        # Choice: of one collection by key, then tenant, then trigger.
        self.told += sorted(found, key=lambda each: (each.key, each.tenant_id, each.trigger))

    def _begin(self, trigger: _Trigger, at: int, state: State) -> Iterable[Transition]:
        self._enabled[trigger.said["name"]] = trigger
        for (tenant, key), row in state.table(trigger.said["table"]).items():
            if tenant == trigger.said["tenantId"] and trigger.matches(row):
                trigger.members.add(key)
                if trigger.said["snapshot"]:
                    # Choice: in the shape that the trigger was made for, which the ledger knows.
                    shaped = {name: row.get(name) for name in trigger.said["columns"]}
                    yield _transition(trigger, key, "MATCH", at, shaped)


def transitions(
    events: Iterable[Event], definitions: Definitions, calculated: Calculated | None = None
) -> list[Transition]:
    """What receivers are told, for events in ledger order."""
    state, triggers = State(), Triggers()
    for at, group in groupby(events, key=lambda event: event.source_timestamp):
        collection, known = list(group), len(state.changes)
        apply(state, collection, definitions, calculated)
        triggers.pass_by(at, state.changes[known:], said_by(collection), state)
    return triggers.told


def said_by(collection: Sequence[Event]) -> Mapping[str, Any] | None:
    """What a collection says of a trigger, if it is such a control event."""
    (event, *others) = collection
    if event.stream != CONTROL or others:
        return None
    said: Mapping[str, Any] = json.loads(event.data or "null")
    return said if said.get("type") == "trigger" else None


def _crossing(trigger: _Trigger, change: Change) -> Iterable[Transition]:
    at, key, new = change.source_timestamp, change.key, change.new
    if key in trigger.members:
        if new is None or trigger.leaves(new):
            trigger.members.discard(key)
            row = new if new is not None else change.old
            assert row is not None
            yield _transition(trigger, key, "UNMATCH", at, row)
    elif new is not None and trigger.matches(new):
        trigger.members.add(key)
        yield _transition(trigger, key, "MATCH", at, new)


def _transition(trigger: _Trigger, key: str, event_type: str, at: int, row: Row) -> Transition:
    types = trigger.said["columns"]
    data = {name: _form(types.get(name), value) for name, value in row.items()}
    return Transition(trigger.said["name"], trigger.said["tenantId"], key, event_type, source_timestamp=at, data=data)


def _form(type_: str | None, value: Any) -> Any:
    if isinstance(value, Decimal):
        return decimal_text(value)
    if value is not None and type_ == "timestamp":
        return instant_text(value)
    if value is not None and type_ == "json":
        return json.loads(value)
    if value is not None and type_ == "date":
        return value.isoformat()
    return value
