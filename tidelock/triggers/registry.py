"""The registry of triggers: creating, changing and deleting them, each by a control event of the ledger.

The registry is written in the event's own transaction, under the head's lock: so names are unique in the installation
even with concurrent requests, and there is no trigger without its event, nor an event without its trigger.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
import psycopg

from tidelock.errors import Exists, NotFound, RequestError
from tidelock.ledger.writer import Beside
from tidelock.model import Accepted, Head
from tidelock.postgres.queries import load
from tidelock.triggers.definition import Deletion, Trigger, control_event, read_event, stored

QUERIES = load("tidelock.triggers", "sql/registry.sql")

_ATTEMPTS_MAX = 10


class ControlRecorder(Protocol):
    """Records control events: the sequencer."""

    async def control(self, data: Mapping[str, Any], beside: Beside | None = None) -> Accepted: ...


@dataclass(frozen=True, slots=True)
class Registered:
    """A trigger according to its last control event."""

    trigger: Trigger
    created_sequence: int
    changed_sequence: int

    def form(self) -> dict[str, Any]:
        """Its outside form: without the columns, which are internal, and with filters as given."""
        trigger = self.trigger
        return {
            "name": trigger.name,
            "tenantId": trigger.tenant_id,
            "table": trigger.table,
            "match": _json(trigger.match),
            "unmatch": None if trigger.unmatch is None else _json(trigger.unmatch),
            "webhook": trigger.webhook,
            "enabled": trigger.enabled,
            "snapshot": trigger.snapshot,
            "createdSequence": self.created_sequence,
        }


class _Overtaken(RequestError):
    """The trigger was changed concurrently."""


async def create(recorder: ControlRecorder, trigger: Trigger, secrets: Sequence[str]) -> Registered:
    """Raises Exists."""

    async def beside(connection: psycopg.AsyncConnection[Any], head: Head) -> None:
        if await _read(connection, trigger.name) is not None:
            raise Exists(f"trigger {trigger.name} already exists; names are unique in the installation")
        sequence = head.ingress_sequence
        inserted = {"name": trigger.name, "tenant": trigger.tenant_id, "definition": stored(trigger)}
        await connection.execute(QUERIES["insert"], inserted | {"sequence": sequence})
        await connection.execute(QUERIES["put_secrets"], {"name": trigger.name, "secrets": list(secrets)})
        await connection.execute(QUERIES["begin"], {"sequence": sequence - 1})

    accepted = await recorder.control(control_event(trigger), beside)
    return Registered(trigger, accepted.ingress_sequence, accepted.ingress_sequence)


async def change(recorder: ControlRecorder, known: Registered, trigger: Trigger) -> Registered | None:
    """The changed trigger; None: it was changed concurrently since it was read. Read it again and retry."""
    sequence = await _record(recorder, known, control_event(trigger), "update", stored(trigger))
    return None if sequence is None else Registered(trigger, known.created_sequence, sequence)


async def delete(recorder: ControlRecorder, known: Registered) -> bool:
    """Whether it was deleted; not if it was changed concurrently since it was read."""
    return await _record(recorder, known, control_event(Deletion(known.trigger.name)), "delete") is not None


async def disable(connection: psycopg.AsyncConnection[Any], recorder: ControlRecorder, name: str) -> int:
    """Disable a trigger whose receiver is gone; returns the sequence of the control event.

    One that was changed since the delivery is left alone: the receiver may be a different one by now.
    """
    for _ in range(_ATTEMPTS_MAX):
        known = await _read(connection, name)
        if known is None or not known.trigger.enabled:
            return 0 if known is None else known.changed_sequence
        row = await (await connection.execute(QUERIES["evaluated"])).fetchone()
        if row is not None and known.changed_sequence > row[0]:
            return known.changed_sequence
        disabled = await change(recorder, known, replace(known.trigger, enabled=False))
        if disabled is not None:
            return disabled.changed_sequence
    return 0


async def read(connection: psycopg.AsyncConnection[Any], name: str, tenant_id: str | None) -> Registered:
    """A trigger of a tenant, or of any (None). Raises NotFound, also for other tenants' triggers, whose names are
    private.
    """
    found = await _read(connection, name)
    if found is None or (tenant_id is not None and found.trigger.tenant_id != tenant_id):
        raise NotFound(f"there is no trigger {name}; `tidelock triggers list` and GET /v1/triggers list all")
    return found


async def read_all(
    connection: psycopg.AsyncConnection[Any], tenant_id: str | None, *, limit: int, after: str = ""
) -> list[Registered]:
    """Triggers by name, after one."""
    wanted = {"tenant": tenant_id, "after": after, "limit": limit}
    return [_registered(row) for row in await (await connection.execute(QUERIES["list"], wanted)).fetchall()]


async def replace_secrets(connection: psycopg.AsyncConnection[Any], known: Registered, secrets: Sequence[str]) -> None:
    """They sign from now on; no control event contains them. Raises NotFound if the trigger is gone."""
    name = known.trigger.name
    given = {"name": name, "created": known.created_sequence, "secrets": list(secrets)}
    if (await connection.execute(QUERIES["replace_secrets"], given)).rowcount == 0:
        raise NotFound(f"trigger {name} no longer exists")


async def read_secrets(connection: psycopg.AsyncConnection[Any], name: str) -> tuple[str, ...]:
    row = await (await connection.execute(QUERIES["read_secrets"], {"name": name})).fetchone()
    return () if row is None else tuple(row[0])


async def _record(
    recorder: ControlRecorder, known: Registered, data: Mapping[str, Any], query: str, definition: str | None = None
) -> int | None:
    async def beside(connection: psycopg.AsyncConnection[Any], head: Head) -> None:
        given = {"name": known.trigger.name, "known": known.changed_sequence}
        if definition is not None:
            given |= {"definition": definition, "sequence": head.ingress_sequence}
        if (await connection.execute(QUERIES[query], given)).rowcount == 0:
            raise _Overtaken(f"the trigger {known.trigger.name} was changed concurrently")
        await connection.execute(QUERIES["tell"])

    try:
        return (await recorder.control(data, beside)).ingress_sequence
    except _Overtaken:
        return None


async def _read(connection: psycopg.AsyncConnection[Any], name: str) -> Registered | None:
    row = await (await connection.execute(QUERIES["read"], {"name": name})).fetchone()
    return None if row is None else _registered(row)


def _registered(row: tuple[Any, ...]) -> Registered:
    trigger = read_event(json.loads(row[0]))
    assert isinstance(trigger, Trigger)
    return Registered(trigger, row[1], row[2])


def _json(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())
