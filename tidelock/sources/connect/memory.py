"""A connector's state in the ledger's database: its position, and timestamps too large for one part.

It uses one session, which also locks the stream for this connector: when it ends, another connector may start.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar

import msgspec
import psycopg

from tidelock.definitions import Stream
from tidelock.errors import SettingsError
from tidelock.instants import MILLISECOND
from tidelock.postgres.database import Database
from tidelock.postgres.queries import load
from tidelock.postgres.reconnect import Away, lost
from tidelock.sections import number_of
from tidelock.sources.connect.connector import Connector, KeyViolation
from tidelock.sources.connect.rows import KeyedChange, key_members

QUERIES = load("tidelock.sources", "sql/connections.sql")

T = TypeVar("T")

#: of a collection
EVENTS_MAX = 1_000
_HOLD_S = 2.0
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class ViewFeed:
    """The view that feeds a stream."""

    stream: Stream
    tenant_id: str
    view: str
    source: str
    place: str

    @classmethod
    def of(cls, connector: Connector, stream: Stream, tenant_id: str) -> ViewFeed:
        return cls(stream, tenant_id, connector.view, connector.source, connector.place)

    @property
    def key(self) -> str:
        """The same view with another mapping or at another place has its own position."""
        columns = sorted((name, str(column)) for name, column in self.stream.columns.items())
        meant = [self.place, self.source, self.tenant_id, self.stream.name, list(self.stream.key), columns]
        return sha256(msgspec.json.encode(meant)).hexdigest()


class Memory:
    """The state of one feed."""

    def __init__(self, database: Database, feed: ViewFeed, *, hold_s: float = _HOLD_S) -> None:
        """`hold_s`: how long it waits for a stream that is locked."""
        self._database = database
        self._hold_s = hold_s
        self._feed = feed
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._held = False

    async def insist(self, step: Callable[[], Awaitable[T]]) -> T:
        """The result of the step, over this session or, if it is lost, over another one."""

        async def opened() -> T:
            try:
                if self._connection is None:
                    await self.open()
                return await step()
            except Exception as error:
                if lost(error):
                    await self.close()
                raise

        return await self._database.patience.insist(opened)

    async def open(self) -> None:
        """Lock the stream. Raises SettingsError if another connector holds it."""
        await self.close()
        self._connection = await self._database.connect(name="tidelock connect")
        feed = self._feed
        if not await self._hold():
            await self.close()
            if self._held:
                raise Away("the session that held the stream has not ended yet")
            raise SettingsError(
                f'another connector feeds stream "{feed.stream.name}" of tenant "{feed.tenant_id}"; '
                "only one may, because rows missing from its view are deleted"
            )
        self._held = True
        await self._run("make_spool")
        await self._run("make_differences")

    async def _hold(self) -> bool:
        """Whether the stream is ours. A session that has just ended may hold it a moment longer."""
        name = msgspec.json.encode([self._feed.tenant_id, self._feed.stream.name]).decode()
        deadline = time.monotonic() + self._hold_s
        while not (await self._one("take_stream", [name]))[0]:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                await connection.close()

    async def position(self) -> str | None:
        found = await (await self._run("read_connection", [self._feed.key])).fetchone()
        return None if found is None else found[0]

    async def move(self, position: str | None) -> None:
        feed = self._feed
        name = f"{feed.source} at {feed.place} -> {feed.stream.name} of {feed.tenant_id}"
        await self._run("move_connection", {"connection": feed.key, "name": name, "position": position})

    async def not_before_ms(self) -> int | None:
        """A snapshot must be later than everything recorded, or it would undo later changes."""
        (last,) = await self._one("last_told", self._slice | {"source": self._feed.source})
        return None if last is None else last // MILLISECOND + 1

    async def clear(self) -> None:
        await self._run("clear_spool")

    async def add(self, rows: Sequence[KeyedChange]) -> None:
        """Store rows of an incomplete timestamp. Raises KeyViolation for a repeated key."""
        assert self._connection is not None
        try:
            async with self._connection.cursor() as cursor, cursor.copy(QUERIES["fill_spool"]) as copy:
                for row in rows:
                    await copy.write_row((row.key, row.op, row.data.decode()))
        except psycopg.errors.UniqueViolation as error:
            told = error.diag.message_detail
            raise KeyViolation(f"view {self._feed.view} has several rows of a key at one timestamp: {told}") from None

    async def compare(self, *, adopt: bool) -> None:
        """Find where the ledger differs from a whole snapshot. Raises SettingsError for rows that are not ours to
        delete.
        """
        await self._run("compare", self._slice)
        strangers, first = await self._one("count_strangers", [self._feed.source])
        if strangers and not adopt:
            feed = self._feed
            raise SettingsError(
                f'stream "{feed.stream.name}" of tenant "{feed.tenant_id}" has {number_of(strangers, "row")} that did '
                f"not come from {feed.view} and that it does not have; the first is {first!r}. --adopt records them as "
                "deleted, so that the stream matches the view. To keep them, choose another stream or tenant."
            )

    async def pages(self, *, differences: bool) -> AsyncIterator[list[KeyedChange]]:
        """The rows of the moment, or where the ledger differs from it, by key, as many as a collection has."""
        after: str | None = None
        while True:
            values = {"after": after, "limit": EVENTS_MAX}
            found = await (await self._run("differences_page" if differences else "spooled_page", values)).fetchall()
            if not found:
                return
            yield [self._row(*row) for row in found]
            after = found[-1][0]

    def _row(self, key: str, op: str, data: str) -> KeyedChange:
        raw = data.encode()
        if op == "delete":
            return KeyedChange(key, "delete", key_members(raw, self._feed.stream.key))
        return KeyedChange(key, "upsert", raw)

    @property
    def _slice(self) -> dict[str, str]:
        return {"tenant": self._feed.tenant_id, "stream": self._feed.stream.name}

    async def _one(self, query: str, values: Any) -> tuple[Any, ...]:
        row = await (await self._run(query, values)).fetchone()
        assert row is not None, "this query always has a row"
        return tuple(row)

    async def _run(self, query: str, values: Any = None) -> psycopg.AsyncCursor[Any]:
        assert self._connection is not None, "it is opened first"
        return await self._connection.execute(QUERIES[query], values)
