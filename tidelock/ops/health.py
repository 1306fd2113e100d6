"""Health: where the ledger stands, and how far behind it each reader is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import psycopg

from tidelock.ledger.connections import Connections
from tidelock.ledger.reader import read_head
from tidelock.model import Head


class HeadHealth(msgspec.Struct, frozen=True, rename="camel"):
    """The last event of the ledger; 0 in an empty one."""

    ingress_sequence: int
    source_timestamp: str


class ReaderHealth(msgspec.Struct, frozen=True, rename="camel"):
    """A reader of the ledger: through which event it is complete."""

    name: str
    ingress_sequence: int
    lag_sequences: int
    lag_seconds: float


class Health(msgspec.Struct, frozen=True):
    """The ledger and its readers; `head` is null while it cannot be read."""

    head: HeadHealth | None
    readers: list[ReaderHealth]


class WindowHealth(msgspec.Struct, frozen=True, rename="camel"):
    """An event-time window of one tenant."""

    window: str
    tenant_id: str
    watermark: str | None
    closed_through: str | None
    buffer_size: int
    late_dropped_count: int
    watermark_emitted_count: int
    max_timestamp_seen: str | None


class EventHealth(Health, frozen=True):
    """The same with the state of every window."""

    windows: list[WindowHealth]


#: how far a reader is, given the head; raises Unreachable while it is not ready
Probe = Callable[[psycopg.AsyncConnection[Any], Head], Awaitable[ReaderHealth]]

UNKNOWN = Health(None, [])


async def read_health(connections: Connections, probes: Sequence[Probe]) -> Health:
    """Raises Unreachable when the ledger or one of its readers does not answer."""

    async def read(connection: psycopg.AsyncConnection[Any]) -> Health:
        head = await read_head(connection)
        readers = [await probe(connection, head) for probe in probes]
        return Health(HeadHealth(head.ingress_sequence, str(head.source_timestamp)), readers)

    return await connections.ask(read)
