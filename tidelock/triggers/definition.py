"""The definition of a trigger: what it watches, when a row enters and leaves, and where webhooks go.

Everything that determines transitions is in the control event that creates or changes a trigger, including the columns
of its table: so the meaning of its filters, and the form of rows in webhooks, depend on the ledger alone. Secrets are
never in it. The ID of a trigger's event is a function of what happened: a replay gives the same one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from tidelock.columns import STRING, ColumnType, parse_column_type
from tidelock.errors import RequestError
from tidelock.where import Expression, parse_where

#: type of the control event
CONTROL_TYPE = "trigger"
TENANT = "tenant_id"

NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
EVENT_ID = re.compile(r"[0-9a-f]{32}")
_DIGITS = 32


@dataclass(frozen=True, slots=True)
class Trigger:
    """A trigger, as in a control event."""

    name: str
    tenant_id: str
    table: str
    #: JSON text of the filter under which a row enters, as given
    match: str
    #: the filter under which it leaves; None: when `match` is no longer true
    unmatch: str | None
    webhook: str
    enabled: bool = True
    #: rows that match when it is created are sent
    snapshot: bool = False
    #: the table's columns when it was created, in order
    columns: Mapping[str, ColumnType] | None = None

    def entering(self) -> Expression:
        return parse_where(self.match, self.known_columns)

    def leaving(self) -> Expression | None:
        return None if self.unmatch is None else parse_where(self.unmatch, self.known_columns)

    @property
    def known_columns(self) -> dict[str, ColumnType]:
        """What filters may use."""
        return {TENANT: STRING, **(self.columns or {})}


@dataclass(frozen=True, slots=True)
class Deletion:
    """The end of a trigger."""

    name: str


def control_event(said: Trigger | Deletion) -> dict[str, Any]:
    """The control event that creates, changes or deletes a trigger. Filters are strings, so their numbers are exact."""
    if isinstance(said, Deletion):
        return {"type": CONTROL_TYPE, "action": "delete", "name": said.name}
    return {
        "type": CONTROL_TYPE,
        "action": "set",
        "name": said.name,
        "tenantId": said.tenant_id,
        "table": said.table,
        "match": said.match,
        "unmatch": said.unmatch,
        "webhook": said.webhook,
        "enabled": said.enabled,
        "snapshot": said.snapshot,
        "columns": {name: str(type_) for name, type_ in (said.columns or {}).items()},
    }


def read_event(data: Mapping[str, Any]) -> Trigger | Deletion:
    """The content of a control event of this type."""
    if data["action"] == "delete":
        return Deletion(data["name"])
    return Trigger(
        name=data["name"],
        tenant_id=data["tenantId"],
        table=data["table"],
        match=data["match"],
        unmatch=data["unmatch"],
        webhook=data["webhook"],
        enabled=data["enabled"],
        snapshot=data["snapshot"],
        columns={name: parse_column_type(text) for name, text in data["columns"].items()},
    )


def stored(trigger: Trigger) -> str:
    """The stored form of a trigger."""
    return json.dumps(control_event(trigger), ensure_ascii=False)


def check_name(name: str) -> str:
    """The name, if valid for a trigger. Without colons, the text of an ID is unambiguous."""
    if NAME.fullmatch(name) is None:
        raise RequestError(
            "a trigger's name must be 1 to 128 letters, digits, dots, hyphens or underscores", field="name"
        )
    return name


def event_id(trigger: str, key: str, source_timestamp: int) -> str:
    """The id of a trigger's event: the first 32 hex digits of SHA-256 over `{trigger}:{key}:{source_timestamp}`.

    `key` is the row's key as in changes: one column as its text, several as a compact JSON array.
    """
    return sha256(f"{trigger}:{key}:{source_timestamp}".encode()).hexdigest()[:_DIGITS]
