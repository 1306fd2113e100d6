"""The sequencer: the one task of a process that writes the ledger.

Requests that arrive while a commit is under way are committed together by the next one. Several processes may write
one ledger: the row lock on the head makes their commits one after another, so that sequence order is commit order and a
reader that sees sequence n sees every m < n.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import msgspec
import psycopg

from tidelock.clock import Clock, database_clock
from tidelock.errors import Overloaded, PayloadTooLarge, RequestError, Unreachable
from tidelock.ingest.identity import Salts, content_hash
from tidelock.ingest.intake import SaltsChanged
from tidelock.ledger.commit import Collection, Commit, Floor, Known, decide
from tidelock.ledger.corrections import Correctable
from tidelock.ledger.sequencedatabase import SequenceDatabase
from tidelock.ledger.ticks import read_due
from tidelock.ledger.writer import Beside, DataRefused, IdentityTaken, LedgerWriter
from tidelock.model import CONTROL, Accepted, Event, Head, Rejected, Verdict
from tidelock.postgres.database import Database

log = logging.getLogger(__name__)

#: for this many commits after a repeat was seen, identities are looked up before they are written
CAUTIOUS_COMMITS = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the sequencer takes at once, and how far ahead a producer's clock may be."""

    commit_events_max: int
    commit_bytes_max: int
    queue_events_max: int
    queue_bytes_max: int
    queue_requests_max: int
    future_tolerance_ns: int
    lock_timeout_s: float
    commit_timeout_s: float


class Committed(NamedTuple):
    """A commit of this process, for followers and metrics."""

    head: Head
    events: int
    #: from taking the head's lock to being durable
    seconds: float


#: says under the head's lock what a control event says; None: nothing is recorded. It gets the writer's connection,
#: the head, and the clock's reading
Decide = Callable[[psycopg.AsyncConnection[Any], Head, int], Awaitable[Mapping[str, Any] | None]]


class _Resumption(NamedTuple):
    """A commit that continues above a loss."""

    floor: Floor
    #: where the ledger must still end
    head: Head


class _Pending:
    """A queued collection and its pending answer."""

    def __init__(
        self,
        collection: Collection,
        salts_version: int | None,
        *,
        control: bool,
        decide: Decide | None = None,
        beside: Beside | None = None,
        resumption: _Resumption | None = None,
    ) -> None:
        self.collection = collection
        #: None: it has no derived keys, so rotation does not affect it
        self.salts_version = salts_version
        self.control = control
        #: decides what is recorded, under the head's lock
        self.decide = decide
        #: written in the same transaction
        self.beside = beside
        self.resumption = resumption
        self.answer: asyncio.Future[list[Verdict]] = asyncio.get_running_loop().create_future()


class Sequencer:
    """Records collections in one order. `salts` are those keys must be derived with."""

    def __init__(
        self,
        database: Database,
        salts: Salts,
        limits: Limits,
        clock: Clock = database_clock,
        *,
        numbers: SequenceDatabase | None = None,
    ) -> None:
        self.salts = salts
        #: where sequences come from, if not from the head
        self.numbers = numbers
        #: the last head this process committed
        self.head: Head | None = None
        #: called with every commit of this process, once it is durable
        self.on_commit: list[Callable[[Committed], None]] = []
        self._writer = LedgerWriter(database, limits.lock_timeout_s)
        self._limits = limits
        self._clock = clock
        self._queue: deque[_Pending] = deque()
        self._queued_events = 0
        self._queued_bytes = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        #: commits that still look before they write
        self._cautious = CAUTIOUS_COMMITS
        #: the last commit that this process has seen, its own or another's
        self._last_commit = 0
        #: the shortened ledger has been reported
        self._shorter = False

    async def start(self) -> None:
        if self.numbers is not None:
            await self.numbers.start()
        self._task = asyncio.create_task(self._run(), name="sequencer")

    async def close(self) -> None:
        """Commit what was accepted, then stop."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await self._task
        await self._writer.close()
        if self.numbers is not None:
            await self.numbers.close()

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

    async def control(self, data: Mapping[str, Any], beside: Beside | None = None) -> Accepted:
        """Record a control event (`{"type": ...}`): a commit and a collection of its own.

        `beside` writes related rows in the same transaction, under the head's lock; a RequestError that it raises is
        raised here, and nothing is recorded.
        """
        pending = _Pending(Collection([_control_event(data)]), None, control=True, beside=beside)
        (verdict,) = await self._submit(pending)
        assert isinstance(verdict, Accepted), "a control event has no identity and no timestamp to be refused for"
        return verdict

    async def tick(self) -> Accepted | None:
        """Record a tick if one is due, else nothing."""
        return await self.decided(_due_tick)

    async def decided(self, decide: Decide) -> Accepted | None:
        """Record the control event that is decided on, if any, under the head's lock: of many who ask one records it.

        A RequestError that is raised there is raised here."""
        verdicts = await self._submit(_Pending(Collection([]), None, control=True, decide=decide))
        for verdict in verdicts:
            assert isinstance(verdict, Accepted), "as any control event"
            return verdict
        return None

    async def resume_above(self, floor: Floor, data: Mapping[str, Any], head: Head) -> Accepted:
        """Record a control event above everything that may have been issued, if the ledger ends at `head`.

        Raises Unreachable otherwise: another process has written meanwhile.
        """
        collection = Collection([_control_event(data)])
        (verdict,) = await self._submit(_Pending(collection, None, control=True, resumption=_Resumption(floor, head)))
        assert isinstance(verdict, Accepted), "as any control event"
        return verdict

    async def _submit(self, pending: _Pending) -> list[Verdict]:
        size = pending.collection.size
        if self._closing:
            raise Unreachable("the server is stopping; retry the request")
        self._writer.check_reachable()
        # An empty queue accepts any request; otherwise one larger than a small limit would be refused for ever.
        if self._queue and (
            self._queued_events + size > self._limits.queue_events_max
            or self._queued_bytes + pending.collection.bytes > self._limits.queue_bytes_max
            or len(self._queue) >= self._limits.queue_requests_max
        ):
            raise Overloaded(f"{self._queued_events} events are waiting to be recorded; retry the request later")
        self._queued_events += size
        self._queued_bytes += pending.collection.bytes
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
        limits, group = self._limits, [self._queue.popleft()]
        events, size = group[0].collection.size, group[0].collection.bytes
        while self._queue and not group[0].control and not self._queue[0].control:
            following = self._queue[0].collection
            if events + following.size > limits.commit_events_max or size + following.bytes > limits.commit_bytes_max:
                break
            group.append(self._queue.popleft())
            events, size = events + following.size, size + following.bytes
        self._queued_events -= events
        self._queued_bytes -= size
        return group

    async def _commit_or_answer(self, group: list[_Pending]) -> None:
        """Whatever happens, everybody in the group gets an answer and the sequencer continues."""
        try:
            async with asyncio.timeout(self._limits.commit_timeout_s):
                await self._commit(group)
        except TimeoutError:
            # A hanging database would also hang on a rollback. It may still commit: a retry then gives a duplicate.
            await self._writer.close()
            self._fail(group, Unreachable("the ledger did not respond in time; retry the request"))
        except (DataRefused, PayloadTooLarge) as error:
            await self._writer.abandon()
            await self._one_by_one(group, error)
        except (Unreachable, RequestError) as error:
            await self._writer.abandon()
            self._fail(group, error)
        except Exception:
            # A bug of ours, perhaps triggered by one request: the others must not suffer.
            await self._writer.abandon()
            log.exception("the commit of %d requests failed", len(group))
            await self._one_by_one(group, Unreachable("the ledger failed on this request; see the server's log"))

    async def _one_by_one(self, group: list[_Pending], error: Exception) -> None:
        """Only the request that cannot be committed may fail; if it is alone, it is the one."""
        if len(group) == 1:
            self._fail(group, error)
            return
        for pending in group:
            await self._commit_or_answer([pending])

    async def _commit(self, group: list[_Pending], *, look: bool = False) -> None:
        started = time.monotonic()
        head, reading = await self._writer.lock()
        now = self._clock(reading)
        self._check_end(head, group[0].resumption)
        if (decide := group[0].decide) is not None:
            said = await self._writer.ask(lambda connection: decide(connection, head, now))
            if said is None:
                await self._writer.abandon()
                self._answer(group, [[]])
                return
            group[0].collection = Collection([_control_event(said)])
        if not (group := await self._current(group, head)):
            await self._writer.abandon()
            return
        collections = [pending.collection for pending in group]
        known = await self._known(collections, look)
        targets: dict[bytes, Correctable] = {}
        if any(collection.corrections for collection in collections):
            targets = await self._writer.targets(collections, self._limits.commit_bytes_max)
        commit = await self._numbered(
            collections, head, now, known or {}, targets=targets, resumption=group[0].resumption
        )
        if commit.head is head:
            await self._writer.abandon()
        else:
            try:
                await self._writer.write(commit, control=group[0].control, beside=group[0].beside)
            except IdentityTaken:
                if known is not None:
                    raise
                await self._writer.abandon()
                await self._commit(group, look=True)
                return
        self._answer(group, commit.verdicts)
        if commit.head is not head:
            self.head = commit.head
            self._last_commit = commit.head.commit_id
            committed = Committed(commit.head, len(commit.event_rows), time.monotonic() - started)
            for listener in self.on_commit:
                listener(committed)

    @property
    def last_commit(self) -> int:
        """The last commit this process has seen, its own or another's; 0: nothing recorded yet."""
        return self._last_commit

    def _check_end(self, head: Head, resumption: _Resumption | None) -> None:
        """Raises Unreachable if the ledger has become shorter: the next sequences would be issued twice."""
        if head.commit_id < self._last_commit:
            ends = f"the ledger ends at commit {head.commit_id}, but had commit {self._last_commit}: its tail is gone"
            if not self._shorter:
                log.error("%s. Recording has stopped; restart to see what can be done", ends)
                self._shorter = True
            raise Unreachable(f"{ends}; no events are recorded")
        self._last_commit = head.commit_id
        if resumption is not None and resumption.head.commit_id != head.commit_id:
            raise Unreachable("the ledger was written while its loss was being recorded; start again")

    async def _numbered(
        self,
        collections: list[Collection],
        head: Head,
        now: int,
        known: Mapping[bytes, Known],
        *,
        targets: Mapping[bytes, Correctable],
        resumption: _Resumption | None,
    ) -> Commit:
        """The decided commit, with the sequences of its events.

        How many it needs is known once it is decided: only then are they requested, so that none is wasted, and if they
        do not follow the head it is decided once more.
        """
        decided = partial(
            decide,
            collections,
            head,
            now,
            known,
            future_tolerance=self._limits.future_tolerance_ns,
            targets=targets,
            carried_bytes_max=self._limits.commit_bytes_max,
            floor=resumption.floor if resumption is not None else Floor(0, 0, 0),
        )
        commit = decided()
        if self.numbers is None or commit.head is head:
            return commit
        first = await self.numbers.reserve(commit.first - 1, len(commit.event_rows))
        if first is not None:
            if first != commit.first:
                commit = decided(first=first)
            commit.source = "remote"
        return commit

    async def _known(self, collections: list[Collection], look: bool) -> dict[bytes, Known] | None:
        """The recorded identities among those of the collections; None: not looked up.

        Repeats come in bursts: after a restart, after a timeout. Between bursts a lookup finds nothing and costs an
        eighth of the commit; the table itself then detects a repeat by refusing the identity, and only then the commit
        is started again. Of an event with several keys the table would recognise only the first, and a correction
        that is repeated would find its target corrected.
        """
        needed = any(collection.several_keys or collection.corrections for collection in collections)
        if not look and not needed and self._cautious <= 0:
            return None
        known = await self._writer.known(collections)
        self._cautious = CAUTIOUS_COMMITS if known else self._cautious - 1
        return known

    async def _current(self, group: list[_Pending], head: Head) -> list[_Pending]:
        """The group without those whose keys were derived before the salts changed; they get an error."""
        stale = [pending for pending in group if pending.salts_version not in (None, head.salts_version)]
        if not stale:
            return group
        self.salts = await self._writer.salts()
        self._fail(stale, SaltsChanged())
        return [pending for pending in group if pending not in stale]

    @staticmethod
    def _answer(group: list[_Pending], verdicts: Sequence[list[Verdict]]) -> None:
        for pending, answer in zip(group, verdicts, strict=True):
            if not pending.answer.done():
                pending.answer.set_result(answer)

    @staticmethod
    def _fail(group: list[_Pending], error: Exception) -> None:
        for pending in group:
            if not pending.answer.done():
                pending.answer.set_exception(error)


async def _due_tick(connection: psycopg.AsyncConnection[Any], head: Head, now: int) -> Mapping[str, Any] | None:
    return {"type": "tick"} if (await read_due(connection)).wants_tick(head.source_timestamp, now) else None


def _control_event(data: Mapping[str, Any]) -> Event:
    body = msgspec.json.encode(data)
    return Event(
        tenant_id=CONTROL,
        stream=CONTROL,
        customer_ref=None,
        resource_id=None,
        row_key=None,
        op="upsert",
        occurred_at=None,
        quantity=None,
        data=body,
        causality_key=None,
        correlation_id=None,
        causation_id=None,
        source=None,
        keys=(),
        digests=(),
        key_source="none",
        content_hash=content_hash(
            CONTROL, CONTROL, None, None, occurred_at=None, quantity=None, op="upsert", data=body
        ),
    )
