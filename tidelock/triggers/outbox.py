"""The outbox: transitions to be delivered, appended in the transaction that found them.

It shows the outcome of each and every attempt, and dead ones can be sent again. Delivered and dead events are kept for
a while; pending ones stay until they are one of these.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec
import psycopg

from tidelock.postgres.queries import load

QUERIES = load("tidelock.triggers", "sql/outbox.sql")
DELIVERIES = load("tidelock.triggers", "sql/deliveries.sql")
RETENTION = load("tidelock.triggers", "sql/retention.sql")

#: number of shards, and of rows in the table of leases
SHARDS = 16
#: number of the advisory lock under which positions are assigned
ORDER = int.from_bytes(b"tideoutb")

# Limit of one statement. Postgres accepts no text of more than a GiB, and a row may have megabytes.
_ROWS, _BYTES = 5_000, 8 << 20

EventType = Literal["MATCH", "UNMATCH"]

Status = Literal["pending", "delivered", "dead"]
STATUSES: tuple[Status, ...] = ("pending", "delivered", "dead")

_POSITION_MAX = 2**63 - 1
_ATTEMPTS_MAX = 100

# Rows processed per statement, so that none holds its locks for long.
_PRUNE_ROWS = 5_000


class Transition(NamedTuple):
    """A row that entered or left a trigger's condition."""

    trigger_id: int
    tenant_id: str
    #: text of the row's key
    key: str
    event_id: str
    event_type: EventType
    source_timestamp: int
    #: the full row as JSON, see `payloads.data_forms`
    data: bytes

    @property
    def shard(self) -> int:
        """The same for all of a chain, in every version: the delivering process may change in between."""
        return zlib.crc32(f"{self.trigger_id}:{self.key}".encode()) % SHARDS


class DeliveryRow(NamedTuple):
    """The delivery of one event, so far."""

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
    """The undelivered part of the outbox."""

    pending: int
    dead: int
    oldest_pending_s: float


def append(connection: psycopg.Connection[Any], transitions: Iterable[Transition]) -> int:
    """Append transitions in the caller's transaction, in order; returns how many are new.

    With the first one the transaction takes a lock that it keeps to its end, so append late. The lock makes the order
    of positions the order of commits: a reader of one has missed none before it.
    """
    appended = 0
    for batch in _batches(transitions):
        connection.execute(QUERIES["lock_order"], {"lock": ORDER})
        appended += connection.execute(QUERIES["append"], {"transitions": _encoded(batch)}).rowcount
        connection.execute(QUERIES["tell"], {"trigger_ids": list({transition.trigger_id for transition in batch})})
    return appended


async def list_deliveries(
    connection: psycopg.AsyncConnection[Any],
    trigger: str,
    *,
    status: Status | None,
    limit: int,
    before: int | None = None,
) -> list[DeliveryRow]:
    """Events of a trigger, newest first, before a position."""
    wanted = {
        "trigger": trigger,
        "statuses": list(STATUSES if status is None else (status,)),
        "before": _POSITION_MAX if before is None else before,
        "limit": limit,
    }
    return [DeliveryRow(*row) for row in await (await connection.execute(DELIVERIES["list"], wanted)).fetchall()]


async def read_delivery(connection: psycopg.AsyncConnection[Any], trigger: str, event_id: str) -> DeliveryRow | None:
    """The delivery of one event; None: the trigger has no such event, or no longer has it."""
    found = await connection.execute(DELIVERIES["one"], {"trigger": trigger, "event_id": event_id})
    row = await found.fetchone()
    return None if row is None else DeliveryRow(*row)


async def read_attempts(
    connection: psycopg.AsyncConnection[Any], trigger: str, event_id: str, limit: int = _ATTEMPTS_MAX
) -> tuple[str, list[Attempt]] | None:
    """The data of an event as JSON, and its latest attempts; None: the trigger has no such event, or no
    longer has it.
    """
    event = await (
        await connection.execute(DELIVERIES["event"], {"trigger": trigger, "event_id": event_id})
    ).fetchone()  # fmt: skip
    if event is None:
        return None
    found = await connection.execute(DELIVERIES["attempts"], {"outbox_id": event[0], "limit": limit})
    return event[1], [Attempt(*row) for row in await found.fetchall()]


async def redeliver(
    connection: psycopg.AsyncConnection[Any], trigger: str, event_ids: Sequence[str] | None = None
) -> int:
    """Queue events for delivery again: those named, or all dead ones. Returns how many.

    Each comes after pending ones of its key, with the same ID, and without failures.
    """
    named = None if event_ids is None else list(event_ids)
    async with connection.transaction():
        await connection.execute(QUERIES["lock_order"], {"lock": ORDER})
        found = await connection.execute(DELIVERIES["redeliver"], {"trigger": trigger, "event_ids": named})
        row = await found.fetchone()
        assert row is not None, "a count always has a row"
        queued, trigger_id = row
        if queued:
            await connection.execute(QUERIES["tell"], {"trigger_ids": [trigger_id]})
    return int(queued)


async def read_depth(connection: psycopg.AsyncConnection[Any]) -> Depth:
    row = await (await connection.execute(DELIVERIES["depth"])).fetchone()
    assert row is not None, "a count always has a row"
    return Depth(*row)


async def prune(connection: psycopg.AsyncConnection[Any], retention_ns: int, batch: int = _PRUNE_ROWS) -> int:
    """Remove events that are old or belong to deleted triggers; returns how many."""
    removed, after, more = 0, 0, True
    wanted = {"retention_us": retention_ns // 1_000, "limit": batch}
    while more:
        row = await (await connection.execute(RETENTION["prune"], wanted | {"after": after})).fetchone()
        if row is None:
            break
        after, gone, more = row
        removed += gone
    while orphans := await _prune_orphans(connection, batch):
        removed += orphans
    return removed


def _batches(transitions: Iterable[Transition]) -> Iterator[list[Transition]]:
    batch: list[Transition] = []
    size = 0
    for transition in transitions:
        batch.append(transition)
        size += len(transition.data)
        if len(batch) >= _ROWS or size >= _BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _encoded(batch: Iterable[Transition]) -> str:
    """One JSON text that contains the rows unchanged."""
    return msgspec.json.encode(
        [
            {**transition._asdict(), "shard": transition.shard, "data": msgspec.Raw(transition.data)}
            for transition in batch
        ]
    ).decode()


async def _prune_orphans(connection: psycopg.AsyncConnection[Any], batch: int) -> int:
    row = await (await connection.execute(RETENTION["prune_orphans"], {"limit": batch})).fetchone()
    assert row is not None, "a count always has a row"
    return int(row[0])
