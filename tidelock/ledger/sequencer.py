"""The sequencer: the one task of a process that writes the ledger.

Requests that arrive while a commit is under way are committed together by the next one. Several processes may write
one ledger: the row lock on the head makes their commits one after another, so that sequence order is commit order
and whoever sees sequence n sees every m < n.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import psycopg

from tidelock.clock import Clock, database_clock
from tidelock.errors import Overloaded, RequestError, TidelockError, Unreachable
from tidelock.ingest.identity import Salts, content_hash
from tidelock.ingest.intake import SaltsChanged
from tidelock.ledger import rows
from tidelock.ledger.commit import Collection, Commit, Known, decide
from tidelock.ledger.database import Database
from tidelock.ledger.originals import KEY_SOURCES, original
from tidelock.ledger.queries import load
from tidelock.model import CONTROL, Accepted, Event, Head, Rejected, Verdict

log = logging.getLogger(__name__)

QUERIES = load("tidelock.ledger", "sql/ledger.sql")

# SQLSTATE classes that mean this data cannot be stored: data exception, constraint, program limit.
_DATA_ERRORS = ("22", "23", "54")
# After a failure to connect, requests are answered at once for this long instead of queueing for the next try.
_RECONNECT_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the sequencer takes at once, and how far ahead a producer's clock may be."""

    commit_events_max: int
    queue_events_max: int
    queue_requests_max: int
    future_tolerance_ns: int
    lock_timeout_s: float


class Committed(NamedTuple):
    """A commit of this process, for those who follow or measure it."""

    head: Head
    events: int
    #: from taking the head's lock to being durable
    seconds: float


class _Pending:
    """A collection in the queue and the answer somebody waits for."""

    def __init__(self, collection: Collection, salts_version: int | None, control: bool) -> None:
        self.collection = collection
        #: None: has no derived keys, so rotation does not concern it
        self.salts_version = salts_version
        self.control = control
        self.answer: asyncio.Future[list[Verdict]] = asyncio.get_running_loop().create_future()


class Sequencer:
    """Records collections in one order. `salts` are those keys must be derived with."""

    def __init__(self, database: Database, salts: Salts, limits: Limits, clock: Clock = database_clock) -> None:
        self.salts = salts
        #: the last head this process committed
        self.head: Head | None = None
        #: called with every commit of this process, once it is durable
        self.on_commit: list[Callable[[Committed], None]] = []
        self._database = database
        self._limits = limits
        self._clock = clock
        self._queue: deque[_Pending] = deque()
        self._queued_events = 0
        self._wake = asyncio.Event()
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._unreachable: Unreachable | None = None
        self._retry_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="sequencer")

    async def close(self) -> None:
        """Commit what was taken, then stop."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await self._task
        await self._drop_connection()

    @property
    def queued_events(self) -> int:
        return self._queued_events

    async def record(self, events: Sequence[Event | Rejected], salts_version: int) -> list[Verdict]:
        """One verdict per event, once what was accepted is durable.

        Raises Overloaded, Unreachable (nothing was recorded, or a retry says duplicate), RequestError, SaltsChanged.
        """
        if not any(type(event) is Event for event in events):
            return list(events)  # type: ignore[arg-type]  # all are rejections
        return await self._submit(_Pending(Collection(events), salts_version, control=False))

    async def control(self, data: Mapping[str, Any]) -> Accepted:
        """Record a control event (`{"type": ...}`): a commit and a collection of its own."""
        body = msgspec.json.encode(data)
        event = Event(
            CONTROL, CONTROL, None, None, None, "upsert", None, None, body, None, None, None, None, (), (), "none",
            content_hash(CONTROL, CONTROL, None, None, None, None, "upsert", body),
        )  # fmt: skip
        verdicts = await self._submit(_Pending(Collection([event]), None, control=True))
        assert isinstance(verdicts[0], Accepted), "a control event has no identity and no timestamp to be refused for"
        return verdicts[0]

    async def _submit(self, pending: _Pending) -> list[Verdict]:
        size = pending.collection.size
        if self._closing:
            raise Unreachable("the server is stopping; send the request again")
        if self._unreachable is not None and time.monotonic() < self._retry_at:
            raise self._unreachable
        if (
            self._queued_events + size > self._limits.queue_events_max
            or len(self._queue) >= self._limits.queue_requests_max
        ):
            raise Overloaded(f"{self._queued_events} events wait to be recorded; send the request again later")
        self._queued_events += size
        self._queue.append(pending)
        self._wake.set()
        return await pending.answer

    async def _run(self) -> None:
        while True:
            if not self._queue:
                if self._closing:
                    return
                self._wake.clear()
                await self._wake.wait()
                continue
            await self._commit_or_answer(self._take())

    def _take(self) -> list[_Pending]:
        """The next group: whole requests, as many as fit into a commit. A control event goes alone."""
        group: list[_Pending] = []
        size = 0
        while self._queue:
            pending = self._queue[0]
            if group and (
                pending.control or group[0].control or size + pending.collection.size > self._limits.commit_events_max
            ):
                break
            group.append(self._queue.popleft())
            size += pending.collection.size
        self._queued_events -= size
        return group

    async def _commit_or_answer(self, group: list[_Pending]) -> None:
        """Whatever happens, everybody in the group gets an answer and the sequencer goes on."""
        try:
            await self._commit(group)
        except psycopg.Error as error:
            await self._abandon()
            if (error.sqlstate or "")[:2] not in _DATA_ERRORS:
                self._fail(group, _translated(error))
            elif len(group) == 1:
                self._fail(group, RequestError(f"the ledger cannot store this request: {error.diag.message_primary}"))
            else:
                # One request's data cannot be stored: only that one may fail.
                for pending in group:
                    await self._commit_or_answer([pending])
        except TidelockError as error:
            self._fail(group, error)
        except BaseException as error:
            await self._abandon()
            log.exception("the sequencer failed on a commit")
            self._fail(group, Unreachable(f"the ledger failed: {type(error).__name__}: {error}"))
            if not isinstance(error, Exception):
                raise

    async def _commit(self, group: list[_Pending]) -> None:
        connection = await self._connected()
        started = time.monotonic()
        cursor = await connection.execute(QUERIES["lock_head"])
        cursor.nextset()
        head = Head(*await _one(cursor))
        cursor.nextset()
        now = self._clock((await _one(cursor))[0])
        group = await self._current(connection, group, head)
        collections = [pending.collection for pending in group]
        known = await self._known(connection, collections)
        commit = decide(collections, head, now, known, self._limits.future_tolerance_ns)
        if commit.head is head:
            await connection.execute("ROLLBACK")
        else:
            await self._write(connection, head, commit, control=group[0].control)
        for pending, verdicts in zip(group, commit.verdicts, strict=True):
            if not pending.answer.done():
                pending.answer.set_result(verdicts)
        if commit.head is not head:
            self.head = commit.head
            committed = Committed(commit.head, len(commit.event_rows), time.monotonic() - started)
            for listener in self.on_commit:
                listener(committed)

    async def _current(
        self, connection: psycopg.AsyncConnection[Any], group: list[_Pending], head: Head
    ) -> list[_Pending]:
        """The group without those whose keys were derived before the salts changed; they are told."""
        if all(pending.salts_version in (None, head.salts_version) for pending in group):
            return group
        cursor = await connection.execute(QUERIES["read_salts"])
        found = await cursor.fetchall()
        self.salts = Salts(tuple(salt for salt, _ in found), head.salts_version)
        stale = [pending for pending in group if pending.salts_version not in (None, head.salts_version)]
        self._fail(stale, SaltsChanged())
        return [pending for pending in group if pending not in stale]

    async def _known(
        self, connection: psycopg.AsyncConnection[Any], collections: list[Collection]
    ) -> dict[bytes, Known]:
        digests = b"".join([digest for collection in collections for digest in collection.digests])
        if not digests:
            return {}
        cursor = await connection.cursor(binary=True).execute(QUERIES["known_identities"], {"digests": digests})
        found = {
            digest: Known(sequence, content, KEY_SOURCES[key_source], None)
            for digest, sequence, content, key_source in await cursor.fetchall()
        }
        if found:
            await self._add_originals(connection, found, collections)
        return found

    async def _add_originals(
        self, connection: psycopg.AsyncConnection[Any], found: dict[bytes, Known], collections: list[Collection]
    ) -> None:
        """Where the content's hash differs, only the recorded event tells whether the content does."""
        differing = {
            digest
            for collection in collections
            for event in collection.events
            if type(event) is Event
            for digest in event.digests
            if digest in found and found[digest].content_hash != event.content_hash
        }
        if not differing:
            return
        sequences = [found[digest].sequence for digest in differing]
        cursor = await connection.execute(QUERIES["read_originals"], [sequences])
        events = {row[0]: original(row) for row in await cursor.fetchall()}
        for digest in differing:
            found[digest] = found[digest]._replace(event=events[found[digest].sequence])

    async def _write(
        self, connection: psycopg.AsyncConnection[Any], before: Head, commit: Commit, *, control: bool
    ) -> None:
        if commit.identity_rows:
            await _copy(connection, f"COPY identities ({rows.IDENTITY_COLUMNS})", commit.identity_rows)
        await _copy(connection, f"COPY events ({rows.EVENT_COLUMNS})", commit.event_rows)
        values = {
            "commit_id": commit.head.commit_id,
            "first": before.ingress_sequence + 1,
            "last": commit.head.ingress_sequence,
            "source_timestamp": commit.head.source_timestamp,
            "control": control,
            "digest": commit.head.digest,
        }
        await psycopg.AsyncClientCursor(connection).execute(QUERIES["finish_commit"], values)

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        try:
            connection = await self._database.connect(name="tidelock sequencer")
            for statement in self._session():
                await connection.execute(statement)
        except psycopg.Error as error:
            raise self._mark_unreachable(_translated(error)) from error
        except Unreachable as error:
            raise self._mark_unreachable(error) from error
        self._connection, self._unreachable = connection, None
        return connection

    def _session(self) -> list[Any]:
        milliseconds = int(self._limits.lock_timeout_s * 1000)
        return [
            # An acknowledged event is durable, whatever the server's default; a stricter default is kept.
            QUERIES["keep_synchronous"],
            psycopg.sql.SQL("SET lock_timeout = {}").format(milliseconds),
            # A frozen process must not keep the head locked for the others.
            psycopg.sql.SQL("SET idle_in_transaction_session_timeout = {}").format(milliseconds),
            # All it asks are look-ups by key: a plan made while the table was small must not scan it later.
            "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off",
        ]

    def _mark_unreachable(self, error: Unreachable) -> Unreachable:
        self._unreachable, self._retry_at = error, time.monotonic() + _RECONNECT_PAUSE_S
        return error

    async def _abandon(self) -> None:
        """Leave a failed transaction; a connection that cannot even do that is dropped."""
        if self._connection is not None:
            try:
                await self._connection.execute("ROLLBACK")
            except psycopg.Error:
                await self._drop_connection()

    async def _drop_connection(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                await self._connection.close()
        self._connection = None

    @staticmethod
    def _fail(group: list[_Pending], error: Exception) -> None:
        for pending in group:
            if not pending.answer.done():
                pending.answer.set_exception(error)


async def _one(cursor: psycopg.AsyncCursor[Any]) -> tuple[Any, ...]:
    row = await cursor.fetchone()
    assert row is not None, "ledger_head always has its one row"
    return tuple(row)


async def _copy(connection: psycopg.AsyncConnection[Any], statement: str, encoded: list[bytes]) -> None:
    async with connection.cursor() as cursor, cursor.copy(f"{statement} FROM STDIN (FORMAT BINARY)".encode()) as copy:
        await copy.write(b"".join((rows.COPY_START, *encoded, rows.COPY_END)))


def _translated(error: psycopg.Error) -> Unreachable:
    reason = error.diag.message_primary or str(error).strip() or type(error).__name__
    return Unreachable(f"the ledger did not take the request: {reason}; send it again")
