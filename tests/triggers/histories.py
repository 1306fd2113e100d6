"""Random ledgers with rows of keyed streams and with triggers that come, change and go."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.model import Event
from tidelock.model import CONTROL
from tidelock.triggers.definition import Deletion, Trigger, control_event

#: two tables, the second with a key of two columns
STREAMS: dict[str, Any] = {
    "things": {
        "key": "k",
        "columns": {
            "k": "string", "i": "int", "p": "decimal(18,4)", "s": "string", "o": "boolean", "t": "timestamp",
            "j": "json", "y": "date",
        },
    },
    "pairs": {"key": ["a", "b"], "columns": {"a": "bigint", "b": "string", "n": "bigint"}},
}  # fmt: skip
DEFINITIONS = {"streams": STREAMS}
TENANTS = ("t", "u")
NAMES = ("big", "small.er", "a-b")

_VALUES: dict[str, list[Any]] = {
    "i": [None, 1, 2, 3, 4, 5],
    "p": [None, "0.5", "1.5", "2.25", 3],
    "s": [None, "a", "A", "é", "", "b"],
    "o": [None, True, False],
    "t": [None, "2026-01-01T00:00:00.5Z", "2026-01-01T00:00:00Z"],
    "y": [None, "2026-01-31", "1969-12-31"],
    "j": [None, {"x": [1.5]}, 7],
    "n": [None, 1, 2, 3, 2**62],
}
_ORDERS = ("_eq", "_neq", "_gt", "_lt", "_gte", "_lte")


@dataclass
class History:
    """A ledger in the making."""

    chance: Random

    def __post_init__(self) -> None:
        self.events: list[Event] = []
        self._time = 10**18
        self._known: dict[str, Trigger] = {}

    def record(self, *drafts: dict[str, Any]) -> None:
        """One collection."""
        self._time += self.chance.choice([1, 7, 10**9])
        for draft in drafts:
            self.events.append(Event(len(self.events) + 1, self._time, occurred_at=self._time, **draft))

    def step(self) -> None:
        what = self.chance.random()
        if what < 0.12 or not self._known:
            self._control(self._trigger())
        elif what < 0.18:
            self._control(self._changed(self.chance.choice(list(self._known.values()))))
        elif what < 0.22:
            name = self.chance.choice(list(self._known))
            del self._known[name]
            self._control(Deletion(name))
        elif what < 0.25:
            self.record({"stream": CONTROL, "tenant_id": CONTROL, "data": '{"type":"tick"}'})
        else:
            self.record(*(self._row() for _ in range(self.chance.choice([1, 1, 2, 5]))))

    def _control(self, said: Trigger | Deletion) -> None:
        data = json.dumps(control_event(said), ensure_ascii=False)
        self.record({"stream": CONTROL, "tenant_id": CONTROL, "data": data})

    def _trigger(self) -> Trigger:
        """A new one, or one that replaces what there was of that name."""
        from tests.triggers.folded import TABLES

        table = self.chance.choice(["things", "things", "pairs"])
        trigger = Trigger(
            self.chance.choice(NAMES),
            self.chance.choice(TENANTS),
            table,
            self._filter(table),
            unmatch=self._filter(table) if self.chance.random() < 0.5 else None,
            webhook="https://example.com/hook",
            enabled=self.chance.random() < 0.9,
            snapshot=self.chance.random() < 0.4,
            columns=TABLES[table].columns,
        )
        self._known[trigger.name] = trigger
        return trigger

    def _changed(self, trigger: Trigger) -> Trigger:
        changes: list[dict[str, Any]] = [
            {"enabled": not trigger.enabled},
            {"match": self._filter(trigger.table)},
            {"unmatch": None if trigger.unmatch else self._filter(trigger.table)},
            {"snapshot": not trigger.snapshot},
        ]
        self._known[trigger.name] = changed = replace(trigger, **self.chance.choice(changes))
        return changed

    def _row(self) -> dict[str, Any]:
        stream = self.chance.choice(["things", "things", "things", "pairs"])
        data: dict[str, Any] = {}
        if stream == "things":
            data["k"] = self.chance.choice(["x", "y", "é", "k:1"])
        else:
            data |= {"a": self.chance.choice([1, 10, 2]), "b": self.chance.choice(["b", '"'])}
        for name in STREAMS[stream]["columns"]:
            if name in _VALUES and self.chance.random() < 0.9:
                data[name] = self.chance.choice(_VALUES[name])
        return {
            "stream": stream,
            "tenant_id": self.chance.choice(TENANTS),
            "op": "delete" if self.chance.random() < 0.15 else "upsert",
            "data": json.dumps(data, ensure_ascii=False),
        }

    def _filter(self, table: str) -> str:
        """JSON text."""
        columns = [name for name in STREAMS[table]["columns"] if name in _VALUES and name != "j"]
        return json.dumps(self._where(columns, 2), ensure_ascii=False)

    def _where(self, columns: list[str], depth: int) -> dict[str, Any]:
        what = self.chance.random()
        if depth and what < 0.15:
            return {"_not": self._where(columns, depth - 1)}
        if depth and what < 0.4:
            return {self.chance.choice(["_and", "_or"]): [self._where(columns, depth - 1) for _ in range(2)]}
        if what < 0.45:
            return {}
        name = self.chance.choice(columns)
        values = [value for value in _VALUES[name] if value is not None]
        if self.chance.random() < 0.1:
            return {name: {"_is_null": self.chance.random() < 0.5}}
        if self.chance.random() < 0.2:
            return {name: {self.chance.choice(["_in", "_nin"]): self.chance.sample(values, 2)}}
        # A truth value has no order.
        return {name: {self.chance.choice(_ORDERS[:2] if name == "o" else _ORDERS): self.chance.choice(values)}}


def history(chance: Random, steps: int) -> list[Event]:
    made = History(chance)
    for _ in range(steps):
        made.step()
    return made.events
