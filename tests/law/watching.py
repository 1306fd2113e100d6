"""Random triggers on whatever tables there are, about values that their rows do have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from random import Random
from typing import Any

from tests.model import State
from tests.model.values import decimal_text, instant_text
from tidelock.columns import ColumnType
from tidelock.tables import Table
from tidelock.triggers.definition import Deletion, Trigger, control_event

#: few, so that triggers are changed and come back after they ended
NAMES = ("big", "small.er", "a-b", "again", "x_9")
_DELETED = 0.15
_ORDERS = ("_eq", "_neq", "_gt", "_lt", "_gte", "_lte")


class Watching:
    """Control events that make, change and end triggers on tables that change."""

    def __init__(self, state: State, tables: Mapping[str, Table], chance: Random) -> None:
        self._state = state
        self._tables = tables
        self._chance = chance
        self._changed = sorted({(change.table, change.tenant_id) for change in state.changes})
        assert self._changed, "the ledger is about something"

    def one_each(self) -> list[Mapping[str, Any]]:
        """A trigger of every name."""
        return [control_event(self._trigger(name)) for name in NAMES]

    def some(self, count: int) -> list[Mapping[str, Any]]:
        return [control_event(self._said(self._chance.choice(NAMES))) for _ in range(count)]

    def _said(self, name: str) -> Trigger | Deletion:
        return Deletion(name) if self._chance.random() < _DELETED else self._trigger(name)

    def _trigger(self, name: str) -> Trigger:
        # Every kind of table as often, however often its rows change.
        table = self._chance.choice(sorted({table for table, _ in self._changed}))
        tenant = self._chance.choice([tenant for found, tenant in self._changed if found == table])
        conditions = _Conditions(self._state, self._tables[table], tenant, self._chance)
        return Trigger(
            name,
            tenant,
            table,
            conditions.text(),
            unmatch=conditions.text() if self._chance.random() < 0.5 else None,
            webhook="https://example.com/hook",
            enabled=self._chance.random() < 0.9,
            snapshot=self._chance.random() < 0.4,
            columns=self._tables[table].columns,
        )


class _Conditions:
    """Filters over one table, whose operands its rows have."""

    def __init__(self, state: State, table: Table, tenant: str, chance: Random) -> None:
        rows = [
            row
            for change in state.changes
            if (change.table, change.tenant_id) == (table.name, tenant)
            for row in (change.old, change.new)
            if row is not None
        ]
        self._chance = chance
        self._columns = table.columns
        self._values: dict[str, Sequence[Any]] = {
            name: [value for row in rows if (value := row.get(name)) is not None] for name in table.columns
        }

    def text(self) -> str:
        return json.dumps(self._where(2), ensure_ascii=False)

    def _where(self, depth: int) -> dict[str, Any]:
        what = self._chance.random()
        if depth and what < 0.15:
            return {"_not": self._where(depth - 1)}
        if depth and what < 0.4:
            return {self._chance.choice(["_and", "_or"]): [self._where(depth - 1) for _ in range(2)]}
        name = self._chance.choice(list(self._columns))
        type_, values = self._columns[name], self._values[name]
        if not values or type_.name == "json" or self._chance.random() < 0.1:
            return {name: {"_is_null": self._chance.random() < 0.5}}
        if self._chance.random() < 0.2:
            operands = [_operand(type_, value) for value in self._chance.sample(values, min(2, len(values)))]
            return {name: {self._chance.choice(["_in", "_nin"]): operands}}
        # A truth value has no order.
        operators = _ORDERS[:2] if type_.name == "boolean" else _ORDERS
        return {name: {self._chance.choice(operators): _operand(type_, self._chance.choice(values))}}


def _operand(type_: ColumnType, value: Any) -> Any:
    if isinstance(value, Decimal):
        return decimal_text(value)
    if isinstance(value, date):
        return value.isoformat()
    return instant_text(value) if type_.name == "timestamp" else value
