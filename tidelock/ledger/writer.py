"""The writer: the one connection of a process that commits to the ledger, and the partitions it commits into.

A commit is `lock`, `known`, then `write` or `abandon`. Vendor errors leave here translated, except data errors, which
make the sequencer find the guilty request. Partitions are created ahead of the head, so that a commit never waits for
one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg import sql

from tidelock.errors import RequestError, TidelockError, Unreachable
from tidelock.ingest.identity import Salts, same_content
from tidelock.ledger import rows
from tidelock.ledger.commit import CHAIN_FORM, Collection, Commit, Known
from tidelock.ledger.corrections import Correctable, named_targets, too_much_carried
from tidelock.ledger.rows import KEY_SOURCES, original
from tidelock.ledger.salts import read_salts
from tidelock.model import Event, Head
from tidelock.postgres.database import Database
from tidelock.postgres.queries import load
from tidelock.postgres.reconnect import reason
from tidelock.quantities import normal_quantity

log = logging.getLogger(__name__)

QUERIES = load("tidelock.ledger", "sql/ledger.sql")

_Answer = TypeVar("_Answer")

#: writes in the transaction of a commit, given its head
Beside = Callable[[psycopg.AsyncConnection[Any], Head], Awaitable[None]]

# SQLSTATE classes that mean this data cannot be stored: data exception, constraint, program limit.
_DATA_ERRORS = ("22", "23", "54")
_ORIGINALS_AT_ONCE = 16
# After a failure to connect, requests are answered at once for this long instead of waiting for the next try.
_RECONNECT_PAUSE_S = 0.5

# How often the partitions ahead of the head are checked.
_PARTITIONS_TURN_S = 30.0
# Creating a partition locks the default one and blocks its readers: give up early and try again later. Until then, the
# default partition takes the rows.
_LOCK_TIMEOUT = "200ms"
# Expected failures: another process created it, or the lock was not available.
_NOT_NOW = (psycopg.errors.LockNotAvailable, psycopg.errors.DuplicateTable, psycopg.errors.InvalidObjectDefinition)


class DataRefused(RequestError):
    """The database cannot store this data; a retry would fail again."""


class IdentityTaken(DataRefused):
    """An identity of the commit is already recorded."""


class LedgerWriter:
    """Commits under the head lock. Used by one task at a time."""

    def __init__(self, database: Database, lock_timeout_s: float) -> None:
        self._database = database
        self._lock_timeout_s = lock_timeout_s
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._unreachable: Unreachable | None = None
        self._retry_at = 0.0

    def check_reachable(self) -> None:
        """Raises immediately, without trying, shortly after the database was unreachable."""
        if self._unreachable is not None and time.monotonic() < self._retry_at:
            raise Unreachable(self._unreachable.message)

    async def lock(self) -> tuple[Head, int]:
        """Open a transaction that locks the head; returns it with the database's clock, read once the lock is held."""
        reused = self._connection is not None
        connection = await self._connected()
        try:
            return await _locked(connection)
        except psycopg.OperationalError as error:
            if not (reused and connection.closed):
                raise _translated(error) from error
        # The connection was lost while idle, for example by a restart of the database: take a new one.
        await self._drop()
        try:
            return await _locked(await self._connected())
        except psycopg.Error as error:
            raise _translated(error) from error

    async def salts(self) -> Salts:
        assert self._connection is not None, "asked under the lock only"
        try:
            return await read_salts(self._connection)
        except psycopg.Error as error:
            raise _translated(error) from error

    async def ask(self, question: Callable[[psycopg.AsyncConnection[Any]], Awaitable[_Answer]]) -> _Answer:
        """What a question is answered in the transaction of the commit."""
        assert self._connection is not None, "asked under the lock only"
        try:
            return await question(self._connection)
        except psycopg.Error as error:
            raise _translated(error) from error

    async def known(self, collections: Sequence[Collection]) -> dict[bytes, Known]:
        """Which identities of the collections are recorded, by digest."""
        assert self._connection is not None, "asked under the lock only"
        try:
            return await known_identities(self._connection, collections)
        except psycopg.Error as error:
            raise _translated(error) from error

    async def targets(self, collections: Sequence[Collection], carried_bytes_max: int) -> dict[bytes, Correctable]:
        """The recorded events that corrections name, by digest. Raises PayloadTooLarge."""
        assert self._connection is not None, "asked under the lock only"
        try:
            return await known_targets(self._connection, collections, carried_bytes_max)
        except psycopg.Error as error:
            raise _translated(error) from error

    async def write(self, commit: Commit, *, control: bool, beside: Beside | None = None) -> None:
        """Make the commit durable, with what is written alongside it."""
        assert self._connection is not None, "asked under the lock only"
        head = commit.head
        values = {
            "commit_id": head.commit_id,
            "first": commit.first,
            "last": head.ingress_sequence,
            "skipped": head.skipped,
            "source": commit.source,
            "source_timestamp": head.source_timestamp,
            "control": control,
            "digest": head.digest,
            "form": CHAIN_FORM,
        }
        try:
            if commit.identity_rows:
                await _copy(self._connection, f"COPY identities ({rows.IDENTITY_COLUMNS})", commit.identity_rows)
            await _copy(self._connection, f"COPY events ({rows.EVENT_COLUMNS})", commit.event_rows)
            if commit.correction_rows:
                await _copy(self._connection, f"COPY corrections ({rows.CORRECTION_COLUMNS})", commit.correction_rows)
            if beside is not None:
                await beside(self._connection, head)
            await psycopg.AsyncClientCursor(self._connection).execute(QUERIES["finish_commit"], values)
        except psycopg.Error as error:
            raise _translated(error) from error

    async def abandon(self) -> None:
        """Leave the transaction; a connection that cannot even do that is dropped."""
        if self._connection is not None:
            try:
                await self._connection.execute("ROLLBACK")
            except psycopg.Error:
                await self._drop()

    async def close(self) -> None:
        await self._drop()

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        if self._connection is not None:
            return self._connection
        self.check_reachable()
        try:
            connection = await self._database.connect(name="tidelock sequencer")
        except Unreachable as error:
            raise self._mark_unreachable(error) from error
        try:
            for statement in self._session():
                await connection.execute(statement)
        except BaseException as error:
            await connection.close()
            if isinstance(error, psycopg.Error):
                raise self._mark_unreachable(Unreachable(reason(error))) from error
            raise
        self._connection, self._unreachable = connection, None
        return connection

    def _session(self) -> list[Any]:
        milliseconds = int(self._lock_timeout_s * 1000)
        return [
            # An acknowledged event must be durable, whatever the server's default; a stricter default is kept.
            QUERIES["keep_synchronous"],
            sql.SQL("SET lock_timeout = {}").format(milliseconds),
            # A frozen process must not keep the head locked for the others.
            sql.SQL("SET idle_in_transaction_session_timeout = {}").format(milliseconds),
            # It only looks up rows by key: a plan made while the table was small must not scan it later.
            "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off",
        ]

    def _mark_unreachable(self, error: Unreachable) -> Unreachable:
        self._unreachable, self._retry_at = error, time.monotonic() + _RECONNECT_PAUSE_S
        return error

    async def _drop(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                await self._connection.close()
        self._connection = None


async def known_identities(
    connection: psycopg.AsyncConnection[Any], collections: Sequence[Collection]
) -> dict[bytes, Known]:
    """Which identities of the collections are recorded, by digest."""
    digests = b"".join([digest for collection in collections for digest in collection.digests])
    if not digests:
        return {}
    cursor = connection.cursor(binary=True)
    await cursor.execute(QUERIES["known_identities"], {"digests": digests})
    found = {
        digest: Known(sequence, content, KEY_SOURCES[key_source])
        for digest, sequence, content, key_source in await cursor.fetchall()
    }
    if found:
        await _compare(connection, found, collections)
    return found


async def _compare(
    connection: psycopg.AsyncConnection[Any], found: dict[bytes, Known], collections: Sequence[Collection]
) -> None:
    """If the content hashes differ, only the recorded event shows whether the content does."""
    differing: dict[bytes, list[Event]] = {}
    for collection in collections:
        for event in collection.events:
            if type(event) is Event:
                for digest in event.digests:
                    if digest in found and not found[digest].says(event):
                        differing.setdefault(digest, []).append(event)
    digests = list(differing)
    # A few at a time, because each may have a megabyte, and in a thread, because comparing means parsing.
    for start in range(0, len(digests), _ORIGINALS_AT_ONCE):
        part = {found[digest].sequence: digest for digest in digests[start : start + _ORIGINALS_AT_ONCE]}
        cursor = await connection.execute(QUERIES["read_originals"], [list(part)])
        for row in await cursor.fetchall():
            digest = part[row[0]]
            same = await asyncio.to_thread(_saying_the_same, original(row), differing[digest])
            found[digest] = found[digest]._replace(same=same)


def _saying_the_same(first: Event, others: Sequence[Event]) -> frozenset[bytes]:
    """The content hashes of events with the same content as the original."""
    by_hash = {event.content_hash: event for event in others}
    return frozenset(hashed for hashed, event in by_hash.items() if same_content(first, event))


async def known_targets(
    connection: psycopg.AsyncConnection[Any], collections: Sequence[Collection], carried_bytes_max: int
) -> dict[bytes, Correctable]:
    """The recorded events that corrections name, by digest, with the data that amendments leave as it is."""
    corrections = [event for collection in collections for event in collection.corrections]
    named = named_targets(corrections)
    if not named:
        return {}
    cursor = connection.cursor(binary=True)
    await cursor.execute(QUERIES["read_targets"], {"digests": b"".join(named)})
    found = {row[0]: correctable(row) for row in await cursor.fetchall()}
    carried = named_targets(event for event in corrections if event.op == "amend" and event.data is None)
    digests = {found[digest].sequence: digest for digest in carried if digest in found}
    sequences, room = sorted(digests), carried_bytes_max
    # A few at a time, because each may have a megabyte.
    for start in range(0, len(sequences), _ORIGINALS_AT_ONCE):
        part = sequences[start : start + _ORIGINALS_AT_ONCE]
        for sequence, data in await (await connection.execute(QUERIES["read_target_data"], [part])).fetchall():
            encoded = data.encode()
            room -= len(encoded)
            if room < 0:
                raise too_much_carried()
            found[digests[sequence]] = found[digests[sequence]]._replace(data=encoded)
    return found


def correctable(row: Sequence[Any]) -> Correctable:
    """From a row of `read_targets`."""
    quantity, corrected_by = row[8:]
    found = Correctable._make((*row[1:8], None, None, corrected_by))
    return found if quantity is None else found._replace(quantity=normal_quantity(quantity))


async def _locked(connection: psycopg.AsyncConnection[Any]) -> tuple[Head, int]:
    cursor = await connection.execute(QUERIES["lock_head"])
    cursor.nextset()
    head = await cursor.fetchone()
    cursor.nextset()
    now = await cursor.fetchone()
    assert head is not None, "ledger_head always has its one row"
    assert now is not None, "a clock has a reading"
    return Head(*head), now[0]


async def _copy(connection: psycopg.AsyncConnection[Any], statement: str, encoded: list[bytes]) -> None:
    async with connection.cursor() as cursor, cursor.copy(f"{statement} FROM STDIN (FORMAT BINARY)".encode()) as copy:
        await copy.write(b"".join((rows.COPY_START, *encoded, rows.COPY_END)))


def _translated(error: psycopg.Error) -> Unreachable | DataRefused:
    if isinstance(error, psycopg.errors.UniqueViolation) and error.diag.table_name == "identities":
        return IdentityTaken("an event of this request was recorded meanwhile; retry the request")
    if (error.sqlstate or "")[:2] in _DATA_ERRORS:
        return DataRefused(f"the ledger cannot store this request: {error.diag.message_primary}")
    return Unreachable(f"the ledger could not record the request: {reason(error)}; retry it")


async def ensure_partitions(connection: psycopg.AsyncConnection[Any], partition_events: int) -> None:
    """Create the partition that the head is in, and the next one."""
    row = await (await connection.execute(QUERIES["read_head"])).fetchone()
    assert row is not None, "ledger_head always has its one row"
    for sequence in (row[0] + 1, row[0] + 1 + partition_events):
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
                await connection.execute(QUERIES["ensure_partition"], [sequence, partition_events])
        except _NOT_NOW:
            return


async def keep_partitions(database: Database, partition_events: int) -> None:
    """Create partitions ahead of the head for as long as it runs; the next turn makes up for a failure."""
    while True:
        await asyncio.sleep(_PARTITIONS_TURN_S)
        try:
            async with await database.connect(name="tidelock partitions") as connection:
                await ensure_partitions(connection, partition_events)
        except (psycopg.Error, TidelockError) as error:
            log.warning("cannot create the ledger's next partition: %s", error)
