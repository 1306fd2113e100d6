"""What is pending in the outbox: which shards of it this process delivers, and their rows, read and settled.

Processes share the shards evenly, and no two have the same. One that crashes keeps its leases until they expire; so
does one that hangs, which therefore checks its own clock before it sends. All of a key's events are in one shard, which
is enough for order. Rows are read and settled over one connection, one statement after another. That makes chains
complete: a row that was skipped because another of its chain came first is found when that one is settled. If both
happened concurrently, each could miss what the other did.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import psycopg

from tidelock.instants import SECOND
from tidelock.postgres.queries import load
from tidelock.triggers.attempts import Result
from tidelock.triggers.lanes import Lane, OutboxRow, Target
from tidelock.triggers.outbox import SHARDS

LEASES = load("tidelock.triggers", "sql/leases.sql")

# The part of a lease's time reserved for a pending answer of the database.
_MARGIN = 0.25

QUERIES = load("tidelock.triggers", "sql/delivery.sql")

# Larger rows are read when they are sent.
_INLINE_BYTES_MAX = 2_048


class Leases:
    """The shards this process has."""

    def __init__(self, owner: str, lease_s: float) -> None:
        #: to be sent from
        self.shards: frozenset[int] = frozenset()
        self.lease_s = lease_s
        self._owner = owner
        #: to be released, once nothing of them is in flight
        self._leaving: frozenset[int] = frozenset()
        self._valid_until = 0.0

    @property
    def valid(self) -> bool:
        """Whether nobody else can have taken them over."""
        return time.monotonic() < self._valid_until

    async def renew(self, connection: psycopg.AsyncConnection[Any], busy: Collection[int]) -> frozenset[int]:
        """Renew the leases, and take or release some so that the shares are even; returns the new shards.

        `busy` are shards with something in flight: they are not released yet.
        """
        asked_at = time.monotonic()
        parameters = {"owner": self._owner, "lease_s": self.lease_s}
        async with connection.transaction():
            await connection.execute(LEASES["announce"], parameters)
            row = await (await connection.execute(LEASES["others"], parameters)).fetchone()
            assert row is not None, "a count always has a row"
            share = -(-SHARDS // (1 + row[0]))
            if given := self._leaving - frozenset(busy):
                await connection.execute(LEASES["release"], parameters | {"shards": list(given)})
            renewed = held = await self._shards(connection, "renew", parameters)
            if len(held) < share:
                held |= await self._shards(connection, "take", parameters | {"limit": share - len(held)})
        self._valid_until = asked_at + self.lease_s * (1 - _MARGIN)
        self._leaving = frozenset(sorted(held)[share:])
        # A shard lost and taken again is new: others may have delivered from it meanwhile.
        kept, self.shards = self.shards & renewed, held - self._leaving
        return self.shards - kept

    async def leave(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Release everything, so that others can continue at once."""
        self.shards, self._valid_until = frozenset(), 0.0
        await connection.execute(LEASES["leave"], {"owner": self._owner})

    async def _shards(
        self, connection: psycopg.AsyncConnection[Any], query: str, parameters: dict[str, Any]
    ) -> frozenset[int]:
        return frozenset(row[0] for row in await (await connection.execute(LEASES[query], parameters)).fetchall())


@dataclass(frozen=True, slots=True)
class Settlement:
    """The consequence of an attempt for its row."""

    row: OutboxRow
    result: Result
    sent_at_ns: int
    status: Literal["pending", "delivered", "dead"]
    failures: int
    #: time until the next attempt; None: there is none, or as soon as possible
    delay_s: float | None = None


class Pending:
    """The outbox, for one process that delivers some shards of it."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def prepare(self) -> None:
        await self._connection.execute(QUERIES["session"])

    async def targets(self) -> list[Target]:
        rows = await self._rows("triggers", {})
        return [Target(id_, name, webhook, tuple(secrets)) for id_, name, webhook, secrets in rows]

    async def read(self, lanes: Sequence[Lane], shards: Collection[int], rows_max: int) -> None:
        """Fill lanes with what is new to them."""
        rooms = [lane.room(rows_max) for lane in lanes]
        after = {"after": [lane.after for lane in lanes]}
        for lane in lanes:
            # A wake-up that arrives meanwhile must not be lost.
            lane.more = False
        rewinds = [lane.rewinds for lane in lanes]
        by_lane = _by_trigger(await self._rows("read", after | _asked(lanes, rooms, shards)))
        for lane, room, before in zip(lanes, rooms, rewinds, strict=True):
            if lane.rewinds != before:
                continue
            mine = by_lane.get(lane.target.trigger_id, [])
            lane.take(_row(values) for values in mine if values[10])
            lane.after = max((values[2] for values in mine), default=lane.after)
            lane.more |= len(mine) >= room

    async def read_due(self, lanes: Sequence[Lane], shards: Collection[int], rows_max: int) -> None:
        """Fill lanes with retries that are due."""
        rooms = [lane.room(rows_max) for lane in lanes]
        after = {
            "after": [lane.due_after[0] for lane in lanes],
            "after_ids": [lane.due_after[1] for lane in lanes],
        }
        rewinds = [lane.rewinds for lane in lanes]
        by_lane = _by_trigger(await self._rows("read_due", after | _asked(lanes, rooms, shards)))
        for lane, room, before in zip(lanes, rooms, rewinds, strict=True):
            if lane.rewinds != before:
                continue
            mine = by_lane.get(lane.target.trigger_id, [])
            lane.take(map(_row, mine))
            lane.due_after = max(((values[10], values[1]) for values in mine), default=lane.due_after)
            lane.more_due = len(mine) >= room

    async def settle(self, settlements: Sequence[Settlement]) -> list[OutboxRow]:
        """Record the outcomes of attempts; returns the next rows of their chains, once all is durable."""
        await self._connection.execute(QUERIES["settle"], {"settlements": _encoded(settlements)})
        chains = [settlement.row for settlement in settlements if settlement.status != "pending"]
        if not chains:
            return []
        asked = {"trigger_ids": [row.trigger_id for row in chains], "keys": [row.key for row in chains]}
        found = await self._rows("following", asked | {"inline_bytes_max": _INLINE_BYTES_MAX})
        return [_row(values) for values in found if values[10]]

    async def halt(self, trigger_ids: Collection[int]) -> None:
        await self._connection.execute(QUERIES["halt"], {"trigger_ids": list(trigger_ids)})

    async def _rows(self, query: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return await (await self._connection.execute(QUERIES[query], parameters, binary=True)).fetchall()


async def read_data(connection: psycopg.AsyncConnection[Any], row: OutboxRow) -> bytes | None:
    """The data of a row too large to keep in memory; None: the row is gone."""
    found = await (await connection.execute(QUERIES["data"], (row.id,))).fetchone()
    return None if found is None else found[0].encode()


def _asked(lanes: Sequence[Lane], rooms: Sequence[int], shards: Collection[int]) -> dict[str, Any]:
    return {
        "trigger_ids": [lane.target.trigger_id for lane in lanes],
        "room": rooms,
        "shards": list(shards),
        "inline_bytes_max": _INLINE_BYTES_MAX,
    }


def _by_trigger(rows: Iterable[tuple[Any, ...]]) -> dict[int, list[tuple[Any, ...]]]:
    found: dict[int, list[tuple[Any, ...]]] = {}
    for values in rows:
        found.setdefault(values[0], []).append(values)
    return found


def _row(values: tuple[Any, ...]) -> OutboxRow:
    trigger_id, id_, position, key, shard, event_id, event_type, source_timestamp, failures, age_s, _, data = values
    return OutboxRow(
        trigger_id=trigger_id,
        id=id_,
        position=position,
        key=key,
        shard=shard,
        event_id=event_id,
        event_type=event_type,
        source_timestamp=source_timestamp,
        failures=failures,
        queued_at_s=time.monotonic() - age_s,
        data=None if data is None else data.encode(),
    )


def _encoded(settlements: Sequence[Settlement]) -> str:
    """One JSON text: as arrays they would take as long to write as a request."""
    return msgspec.json.encode(
        [
            {
                "id": settlement.row.id,
                "position": settlement.row.position,
                "status": settlement.status,
                "failures": settlement.failures,
                "delay_s": settlement.delay_s,
                "sent_at_s": settlement.sent_at_ns / SECOND,
                "seconds": settlement.result.seconds,
                "outcome": settlement.result.outcome,
                "http_status": settlement.result.status,
                "response": settlement.result.response,
            }
            for settlement in settlements
        ]
    ).decode()
