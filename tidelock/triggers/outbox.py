"""The outbox: transitions that receivers are still to be told of, appended in the transaction that found them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import msgspec
import psycopg

from tidelock.postgres.queries import load

QUERIES = load("tidelock.triggers", "sql/outbox.sql")

#: number of shards; as many rows does the table of leases have
SHARDS = 16
#: number of the advisory lock under which positions are given
ORDER = int.from_bytes(b"tideoutb")

# Most that one statement has. Postgres takes no text of more than a GiB, and a row may have megabytes.
_ROWS, _BYTES = 5_000, 8 << 20

EventType = Literal["MATCH", "UNMATCH"]


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
        """The same for all of a chain, in every version: who delivers may change between two of them."""
        return zlib.crc32(f"{self.trigger_id}:{self.key}".encode()) % SHARDS


def append(connection: psycopg.Connection[Any], transitions: Iterable[Transition]) -> int:
    """Append transitions in the caller's transaction, in their order; gives how many were not there before.

    With the first of them the transaction takes a lock that it keeps to its end, so append late. That is what makes
    the order of positions the order of commits: who has read one has missed none before it.
    """
    appended = 0
    for batch in _batches(transitions):
        connection.execute(QUERIES["lock_order"], {"lock": ORDER})
        appended += connection.execute(QUERIES["append"], {"transitions": _encoded(batch)}).rowcount
        connection.execute(QUERIES["tell"], {"trigger_ids": list({transition.trigger_id for transition in batch})})
    return appended


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
    """One JSON text, in which rows stand as they are."""
    return msgspec.json.encode(
        [
            {**transition._asdict(), "shard": transition.shard, "data": msgspec.Raw(transition.data)}
            for transition in batch
        ]
    ).decode()
