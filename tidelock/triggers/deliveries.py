"""Deliveries for people: what became of a trigger's events, every attempt, and sending again what is dead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

import psycopg

from tidelock.postgres.queries import load
from tidelock.triggers.outbox import ORDER
from tidelock.triggers.outbox import QUERIES as OUTBOX

QUERIES = load("tidelock.triggers", "sql/deliveries.sql")

Status = Literal["pending", "delivered", "dead"]
STATUSES: tuple[Status, ...] = ("pending", "delivered", "dead")

_POSITION_MAX = 2**63 - 1
_ATTEMPTS_MAX = 100


class DeliveryRow(NamedTuple):
    """What became of one event, so far."""

    #: its place in the list
    position: int
    event_id: str
    event_type: str
    key: str
    source_timestamp: int
    status: Status
    attempts: int
    next_attempt_at: datetime | None
    queued_at: datetime
    settled_at: datetime | None
    #: of the last attempt, if there was one
    outcome: str | None
    http_status: int | None
    response: str | None


class Attempt(NamedTuple):
    number: int
    sent_at: datetime
    seconds: float
    outcome: str
    http_status: int | None
    response: str


@dataclass(frozen=True, slots=True)
class Depth:
    """How much of the outbox is not delivered."""

    pending: int
    dead: int
    oldest_pending_s: float


async def list_deliveries(
    connection: psycopg.AsyncConnection[Any],
    trigger: str,
    *,
    status: Status | None,
    limit: int,
    before: int | None = None,
) -> list[DeliveryRow]:
    """Events of a trigger, the newest first, before a position."""
    wanted = {
        "trigger": trigger,
        "statuses": list(STATUSES if status is None else (status,)),
        "before": _POSITION_MAX if before is None else before,
        "limit": limit,
    }
    return [DeliveryRow(*row) for row in await (await connection.execute(QUERIES["list"], wanted)).fetchall()]


async def read_delivery(connection: psycopg.AsyncConnection[Any], trigger: str, event_id: str) -> DeliveryRow | None:
    """What became of one event; None: the trigger has no such event, or none any more."""
    found = await connection.execute(QUERIES["one"], {"trigger": trigger, "event_id": event_id})
    row = await found.fetchone()
    return None if row is None else DeliveryRow(*row)


async def read_attempts(
    connection: psycopg.AsyncConnection[Any], trigger: str, event_id: str, limit: int = _ATTEMPTS_MAX
) -> tuple[str, list[Attempt]] | None:
    """The data of an event as JSON, and its latest attempts; None: the trigger has no such event, or none any more."""
    event = await (
        await connection.execute(QUERIES["event"], {"trigger": trigger, "event_id": event_id})
    ).fetchone()  # fmt: skip
    if event is None:
        return None
    found = await connection.execute(QUERIES["attempts"], {"outbox_id": event[0], "limit": limit})
    return event[1], [Attempt(*row) for row in await found.fetchall()]


async def redeliver(
    connection: psycopg.AsyncConnection[Any], trigger: str, event_ids: Sequence[str] | None = None
) -> int:
    """Queue events for delivery once more: those named, or all that are dead. Gives how many.

    Each comes after what is pending of its key, with the id it always had. It begins with no failures.
    """
    named = None if event_ids is None else list(event_ids)
    async with connection.transaction():
        await connection.execute(OUTBOX["lock_order"], {"lock": ORDER})
        found = await connection.execute(QUERIES["redeliver"], {"trigger": trigger, "event_ids": named})
        row = await found.fetchone()
        assert row is not None, "a count always has a row"
        queued, trigger_id = row
        if queued:
            await connection.execute(OUTBOX["tell"], {"trigger_ids": [trigger_id]})
    return int(queued)


async def read_depth(connection: psycopg.AsyncConnection[Any]) -> Depth:
    row = await (await connection.execute(QUERIES["depth"])).fetchone()
    assert row is not None, "a count always has a row"
    return Depth(*row)
