"""The definition of a trigger: what it watches, when a row enters and leaves, and who is told.

Everything that decides transitions is in the control event that makes or changes a trigger, the columns of its table
too: so what its filters mean, and how rows look in webhooks, is told by the ledger alone. Secrets never are in it.
The id of a trigger's event is a function of what happened: a replay makes the same one.
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
    """A trigger, as a control event has it."""

    name: str
    tenant_id: str
    table: str
    #: JSON text of the filter under which a row enters, as it was given
    match: str
    #: that under which it leaves; None: when `match` is not true
    unmatch: str | None
    webhook: str
    enabled: bool = True
    #: rows that match when it is made are told of
    snapshot: bool = False
    #: those of the table when it was made, in their order
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
    """The control event that makes or changes a trigger, or ends it. Filters are texts, so their numbers are exact."""
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
    """What a control event of this type says."""
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
    """The text that a trigger is kept as."""
    return json.dumps(control_event(trigger), ensure_ascii=False)


def check_name(name: str) -> str:
    """The name, if it may be a trigger's. Without colons, the text of an id is read in one way only."""
    if NAME.fullmatch(name) is None:
        raise RequestError("a trigger's name has 1 to 128 letters, digits, dots, dashes and underscores", field="name")
    return name


def event_id(trigger: str, key: str, source_timestamp: int) -> str:
    """The id of a trigger's event: the first 32 hex digits of SHA-256 over `{trigger}:{key}:{source_timestamp}`.

    `key` is the text of the row's key as changes have it: one column is its text, several are a compact JSON array.
    """
    return sha256(f"{trigger}:{key}:{source_timestamp}".encode()).hexdigest()[:_DIGITS]
