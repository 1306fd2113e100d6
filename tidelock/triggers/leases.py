"""Leases: which shards of the outbox this process delivers. Processes share them alike, and no two have the same.

A process that ends without a word keeps its leases until they expire; so does one that hangs, which therefore looks
at its own clock before it sends. All of a key's events are in one shard: order needs no more than that.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

import psycopg

from tidelock.postgres.queries import load
from tidelock.triggers.outbox import SHARDS

QUERIES = load("tidelock.triggers", "sql/leases.sql")

# What is kept of a lease's time for an answer of the database that is under way.
_MARGIN = 0.25


class Leases:
    """The shards this process has."""

    def __init__(self, owner: str, lease_s: float) -> None:
        #: to be sent from
        self.shards: frozenset[int] = frozenset()
        self.lease_s = lease_s
        self._owner = owner
        #: to be given to others, once nothing of them is under way
        self._leaving: frozenset[int] = frozenset()
        self._valid_until = 0.0

    @property
    def valid(self) -> bool:
        """Whether nobody else can have taken them over."""
        return time.monotonic() < self._valid_until

    async def renew(self, connection: psycopg.AsyncConnection[Any], busy: Collection[int]) -> frozenset[int]:
        """Keep the leases, take and give up some so that all have alike; gives the shards that are new.

        `busy` are shards of which something is under way: they are not given up yet.
        """
        asked_at = time.monotonic()
        parameters = {"owner": self._owner, "lease_s": self.lease_s}
        async with connection.transaction():
            await connection.execute(QUERIES["announce"], parameters)
            row = await (await connection.execute(QUERIES["others"], parameters)).fetchone()
            assert row is not None, "a count always has a row"
            share = -(-SHARDS // (1 + row[0]))
            if given := self._leaving - frozenset(busy):
                await connection.execute(QUERIES["release"], parameters | {"shards": list(given)})
            renewed = held = await self._shards(connection, "renew", parameters)
            if len(held) < share:
                held |= await self._shards(connection, "take", parameters | {"limit": share - len(held)})
        self._valid_until = asked_at + self.lease_s * (1 - _MARGIN)
        self._leaving = frozenset(sorted(held)[share:])
        # One that was lost and taken again is new: others may have delivered from it meanwhile.
        kept, self.shards = self.shards & renewed, held - self._leaving
        return self.shards - kept

    async def leave(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Give everything up, for others to go on at once."""
        self.shards, self._valid_until = frozenset(), 0.0
        await connection.execute(QUERIES["leave"], {"owner": self._owner})

    async def _shards(
        self, connection: psycopg.AsyncConnection[Any], query: str, parameters: dict[str, Any]
    ) -> frozenset[int]:
        return frozenset(row[0] for row in await (await connection.execute(QUERIES[query], parameters)).fetchall())
