"""Events as the ledger has them, and their columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from functools import cached_property
from typing import Any

from tests.model.values import Misfit, decimal_text, exact, fits, json_members, json_text, key_text, read, text

#: columns every event has, with their types
ENVELOPE = {
    "customer_ref": "string",
    "resource_id": "string",
    "row_key": "string",
    "op": "string",
    "occurred_at": "timestamp",
    "received_at": "timestamp",
    "quantity": "decimal(38,9)",
    "causality_key": "string",
    "correlation_id": "string",
    "causation_id": "string",
    "source": "string",
    "idempotency_key": "string",
    "ingress_sequence": "bigint",
}
#: what a table has of events without declared columns. Choice: what the producer said; the ledger's own numbers and
#: times are metadata, and with them every upsert would be a change.
UNDECLARED = ("customer_ref", "resource_id", "occurred_at", "quantity")

_COMPUTED_TYPES = {int: "bigint", str: "string", Decimal: "decimal(38,9)", float: "double", bool: "boolean"}
_COMPUTED_TYPES |= {date: "date", type(None): "string"}


@dataclass(frozen=True)
class Event:
    """A recorded event. Instants are nanoseconds since 1970."""

    ingress_sequence: int
    source_timestamp: int
    stream: str
    occurred_at: int
    tenant_id: str = "default"
    customer_ref: str | None = None
    resource_id: str | None = None
    row_key: str | None = None
    op: str = "upsert"
    quantity: Decimal | None = None
    #: JSON text as sent
    data: str | None = None
    received_at: int = 0
    commit_id: int = 0
    causality_key: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    source: str | None = None
    idempotency_key: str | None = None
    #: of a correction, which is a void or an amendment: the event that it corrects, by key and by sequence
    target: str | None = None
    target_sequence: int | None = None
    reason: str | None = None
    batch_id: str | None = None

    @property
    def is_correction(self) -> bool:
        return self.op in ("void", "amend")

    def correcting(self, target: Event) -> Event:
        """As it is recorded: who and when are the target's, and of an amendment what it does not say."""
        amends = self.op == "amend"
        return replace(
            self,
            target=target.idempotency_key,
            target_sequence=target.ingress_sequence,
            tenant_id=target.tenant_id,
            customer_ref=target.customer_ref,
            resource_id=target.resource_id,
            occurred_at=target.occurred_at,
            quantity=target.quantity if amends and self.quantity is None else self.quantity,
            data=target.data if amends and self.data is None else self.data,
        )


class Columns:
    """The columns of one event: declared ones, which hide envelope columns of the same name, or else paths."""

    def __init__(self, event: Event, declared: Mapping[str, str], computed: Mapping[str, Any] | None = None) -> None:
        self._event = event
        self._declared = declared
        self._computed = computed or {}

    @property
    def data(self) -> str | None:
        return self._event.data

    def without_calculated(self) -> Columns:
        return Columns(self._event, self._declared)

    def is_envelope(self, name: str) -> bool:
        return name not in self._declared and name in ENVELOPE

    def type(self, name: str) -> str | None:
        """None: a path, which has no type. A calculated column's is told by its value."""
        if name in self._computed:
            return _COMPUTED_TYPES[type(self._computed[name])]
        return self._declared.get(name) or ENVELOPE.get(name)

    def value(self, name: str) -> Any:
        """The typed value; of a path its text. Raises Misfit."""
        if name in self._computed:
            return self._computed[name]
        if self.is_envelope(name):
            return getattr(self._event, name)
        raw = self._raw(name)
        if name not in self._declared:
            return json_text(raw)
        if self._declared[name] == "json":
            return None if raw == "null" else raw
        content = json_text(raw)
        return None if content is None else read(self._declared[name], content)

    def text(self, name: str) -> str | None:
        """The text a value has in keys and groups."""
        value = self.value(name)
        return None if value is None else text(self.type(name) or "string", value)

    def distinct_text(self, name: str) -> str | None:
        """What `unique_count` counts a value by: at a path a string's characters, a number in plain notation.

        Choice: a number of more than four hundred digits on a side of its point has the text that was sent.
        """
        if self.type(name) is not None:
            return self.text(name)
        raw = self._raw(name)
        if raw is None or raw[0] not in "-0123456789":
            return json_text(raw)
        number = exact(raw)
        return decimal_text(number) if fits(number, 400, 400) else raw

    def sent(self, name: str) -> str | None:
        """The text of a value as it was sent, whether it fits or not; of the envelope its text in keys."""
        if self.is_envelope(name):
            return self.text(name)
        raw = self._raw(name)
        return json_text(raw) if self._declared.get(name) != "json" or raw == "null" else raw

    def misfit(self) -> str | None:
        """The first declared column whose value does not fit it."""
        for name in self._declared:
            try:
                self.value(name)
            except Misfit:
                return name
        return None

    def _raw(self, name: str) -> str | None:
        """JSON text of a member of data. Paths lead through objects only, never into lists."""
        path = [name] if name in self._declared else name.split(".")[1:]
        members = self._members
        for step in path[:-1]:
            members = json_members(members.get(step))
        return members.get(path[-1])

    @cached_property
    def _members(self) -> dict[str, str]:
        return json_members(self._event.data)


def stream_columns(columns: Columns, stream: Mapping[str, Any]) -> dict[str, Any]:
    """What a table of a stream's rows has of an event, but for calculated columns."""
    if declared := stream.get("columns", {}):
        return {name: columns.value(name) for name in declared}
    keys = {name.replace(".", "_"): columns.value(name) for name in names_of(stream.get("key", []))}
    return keys | {name: columns.value(name) for name in UNDECLARED} | {"data": columns.data}


def names_of(declared: str | list[str]) -> list[str]:
    """One column may be declared without a list."""
    return [declared] if isinstance(declared, str) else list(declared)


def row_key(columns: Columns, key: list[str]) -> str | None:
    """One key column is its text, several are a compact array of texts; None when one is null."""
    texts = [columns.text(name) for name in key]
    return None if None in texts else key_text(texts)


def group_key(columns: Columns, group_by: list[str]) -> str | None:
    """The same for groups, where null is a group of its own: alone a null key, among several a null in the array."""
    texts = [columns.text(name) for name in group_by]
    return texts[0] if len(texts) == 1 else json.dumps(texts, ensure_ascii=False, separators=(",", ":"))
