"""The registry of triggers: making, changing and ending them, each by a control event of the ledger.

The registry is written in the event's own transaction, under the head's lock: so names are unique in the installation
whoever asks at the same time, and there is no trigger without its event nor an event without its trigger.
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
    """Whoever records control events: the sequencer."""

    async def control(self, data: Mapping[str, Any], beside: Beside | None = None) -> Accepted: ...


@dataclass(frozen=True, slots=True)
class Registered:
    """A trigger as its last control event says."""

    trigger: Trigger
    created_sequence: int
    changed_sequence: int

    def form(self) -> dict[str, Any]:
        """What is told of it outside; the columns are inside knowledge, and filters are as they were given."""
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
    """Another has changed the trigger meanwhile."""


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
    """The trigger as it is now; None: another has changed it since it was read. Read it again and decide anew."""
    sequence = await _record(recorder, known, control_event(trigger), "update", stored(trigger))
    return None if sequence is None else Registered(trigger, known.created_sequence, sequence)


async def delete(recorder: ControlRecorder, known: Registered) -> bool:
    """Whether it was ended; not when another has changed it since it was read."""
    return await _record(recorder, known, control_event(Deletion(known.trigger.name)), "delete") is not None


async def disable(connection: psycopg.AsyncConnection[Any], recorder: ControlRecorder, name: str) -> int:
    """Disable a trigger whose receiver is gone; gives the sequence of the control event that says so.

    One that was changed after what was delivered by is left alone: the receiver may be another by now.
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
    """A trigger of a tenant, or of any (None). Raises NotFound: also for another's, whose names are theirs to know."""
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
    """They sign from now on; no control event has them. Raises NotFound when it is gone meanwhile."""
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
