"""Delivery: from the outbox to receivers, at least once, and in order for every key of a trigger.

One row of a chain is in flight at a time, and the next is sent once its outcome is durable: whatever ends this process,
only the last event of a key can be repeated, with the same ID. A receiver that answers 410 is gone, and its trigger is
disabled by a control event, like any other change; until that event has been evaluated, the halt itself prevents
sending. In a server the evaluator runs alongside, on a thread; several servers share the work.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import psycopg

from tidelock.errors import TidelockError
from tidelock.instants import SECOND
from tidelock.postgres.course import IDLE, Turn
from tidelock.postgres.database import Database
from tidelock.postgres.listener import OUTBOX_CHANNEL, TRIGGERS_CHANNEL
from tidelock.postgres.loop import AsyncReaderLoop
from tidelock.postgres.pool import Connections
from tidelock.postgres.queries import load
from tidelock.settings import Settings
from tidelock.triggers.attempts import Schedule, WebhookSender
from tidelock.triggers.dispatch import Dispatch, Terms
from tidelock.triggers.evaluate import Evaluator
from tidelock.triggers.lanes import Care, Lane, OutboxRow
from tidelock.triggers.outbox import EventType, prune
from tidelock.triggers.pending import Leases, Pending, read_data
from tidelock.triggers.registry import ControlRecorder, disable

QUERIES = load("tidelock.triggers", "sql/delivery.sql")

LEASE_S = 10.0
POLL_S = 1.0
# In case notifications were lost, triggers are checked and lanes read again this often.
_REFRESH_S, _REWIND_S = 15.0, 300.0
_TIDY_S = 60.0
# Attempts that end close to each other are settled together.
_GATHER_S = 0.004
_SETTLED_MAX = 500
_FINISH_S = 5.0

#: records that a trigger of this name is disabled; returns the control event's sequence
Disable = Callable[[str], Awaitable[int]]


class TriggerWorkers:
    """What a server does for triggers, from `start` to `close`: the evaluator on a thread, and delivery."""

    def __init__(self, settings: Settings, database: Database, recorder: ControlRecorder) -> None:
        self._database = database
        self._recorder = recorder
        self._evaluator = Evaluator(database)
        self._delivery = open_delivery(settings, database, self._disable)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._evaluator.run, args=(self._stop,), name="triggers", daemon=True)

    async def start(self) -> None:
        self._thread.start()
        await self._delivery.start()

    async def close(self) -> None:
        self._stop.set()
        await self._delivery.close()
        await asyncio.to_thread(self._thread.join)

    @property
    def transitions(self) -> Mapping[EventType, int]:
        """How many this process has found, by type."""
        return self._evaluator.transitions

    @property
    def attempts(self) -> Mapping[str, int]:
        """How many deliveries this process has attempted, by outcome."""
        return self._delivery.dispatch.attempts

    async def _disable(self, name: str) -> int:
        async with await self._database.connect(name="tidelock triggers") as connection:
            return await disable(connection, self._recorder, name)


def open_delivery(settings: Settings, database: Database, disable: Disable) -> Delivery:
    """A delivery configured by the settings; not started yet. `disable` as below."""
    sender = WebhookSender(
        timeout_s=settings.webhook_timeout_s,
        response_bytes_max=settings.webhook_response_bytes_max,
        allow_private=settings.webhook_allow_private,
    )
    terms = Terms(
        schedule=Schedule(
            [delay / SECOND for delay in settings.webhook_retries], settings.webhook_retry_after_max / SECOND
        ),
        care=Care(settings.webhook_concurrency, settings.webhook_failures_max, settings.webhook_pause_max / SECOND),
        requests_max=settings.webhook_requests_max,
        rows_max=settings.webhook_queue_rows_max,
    )
    return Delivery(database, sender, terms, retention_ns=settings.webhook_retention, disable=disable)


async def record_halts(connection: psycopg.AsyncConnection[Any], disable: Disable) -> None:
    """Record halts that the ledger does not know; each once, because a repeat could undo later changes."""
    halted = await (await connection.execute(QUERIES["halted"])).fetchall()
    for (name,) in halted:
        sequence = await disable(name)
        await connection.execute(QUERIES["record_halt"], {"name": name, "sequence": sequence})


class Delivery:
    """Delivers the shards leased by this process, from `start` to `close`.

    `disable` records that a trigger is disabled because its receiver is gone, and returns the control event's sequence.
    Leases are renewed every `renew_s`, by default four times in the time they last.
    """

    def __init__(
        self,
        database: Database,
        sender: WebhookSender,
        terms: Terms,
        *,
        retention_ns: int,
        disable: Disable,
        lease_s: float = LEASE_S,
        renew_s: float | None = None,
        poll_s: float = POLL_S,
    ) -> None:
        self._database = database
        self._sender = sender
        self._terms = terms
        self._retention_ns = retention_ns
        self._disable = disable
        self._renew_s = lease_s / 4 if renew_s is None else renew_s
        self._poll_s = poll_s
        self.owner = secrets.token_hex(8)
        self._leases = Leases(self.owner, lease_s)
        self._large = Connections(database, size_max=2, name="tidelock webhooks data")
        self._settled = asyncio.Event()
        #: the connection that holds the leases, and what is read and settled over the other one
        self._listening: psycopg.AsyncConnection[Any] | None = None
        self._pending: Pending | None = None
        self._holding = AsyncReaderLoop(
            self._hold, what="webhook leases", database=database, name="tidelock webhooks leases",
            channels=[OUTBOX_CHANNEL, TRIGGERS_CHANNEL], opened=self._listen, heard=self._heard, poll_s=self._renew_s,
        )  # fmt: skip
        self._working = AsyncReaderLoop(
            self._turn, what="webhook deliveries", database=database, name="tidelock webhooks deliveries",
            opened=self._prepare, poll_s=poll_s, gather_s=_GATHER_S,
        )  # fmt: skip
        self._tidying = AsyncReaderLoop(self._tidy, what="old webhooks", poll_s=_TIDY_S, pause_max_s=_TIDY_S)
        self.dispatch = Dispatch(sender, self._leases, terms, read=self._read_large, wake=self._working.wake)
        #: triggers may have changed
        self._stale = True
        self._refreshed_at = self._polled_at = self._rewound_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._holding.run(), name="webhook leases"),
            asyncio.create_task(self._working.run(), name="webhook deliveries"),
            asyncio.create_task(self._tidying.run(), name="webhook retention"),
        ]

    async def close(self, finish_s: float = _FINISH_S) -> None:
        """Finish requests in flight within the time limit, settle them, and release the leases at once."""
        await self.dispatch.finish(finish_s)
        self._settled.clear()
        if self.dispatch.done:
            with suppress(TimeoutError):
                async with asyncio.timeout(_FINISH_S):
                    await self._settled.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._large.close()
        await self._sender.close()
        with suppress(psycopg.Error, TidelockError):
            async with await self._database.connect(name="tidelock webhooks") as connection:
                await self._leases.leave(connection)

    async def _listen(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._listening, self._stale = connection, True

    async def _hold(self) -> Turn:
        """Keep the leases."""
        assert self._listening is not None
        had = self._leases.shards
        gained = await self._leases.renew(self._listening, self.dispatch.busy_shards())
        if changed := gained | (had - self._leases.shards):
            self._shards_changed(changed)
        return IDLE

    def _shards_changed(self, shards: frozenset[int]) -> None:
        for lane in self.dispatch.lanes.values():
            lane.drop(shards)
            lane.rewind()
        self._working.wake()

    def _heard(self, notification: psycopg.Notify) -> bool:
        if notification.channel == TRIGGERS_CHANNEL:
            self._stale = True
        elif (lane := self.dispatch.lanes.get(int(notification.payload))) is not None:
            lane.more = True
        self._working.wake()
        # Leases are renewed by time alone.
        return False

    async def _prepare(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._pending = Pending(connection)
        await self._pending.prepare()
        # Whether rows being settled when the last connection was lost were settled is unknown.
        for lane in self.dispatch.lanes.values():
            lane.rewind()

    async def _turn(self) -> Turn:
        """Settle, read and send."""
        pending = self._pending
        assert pending is not None
        now = time.monotonic()
        # First, so that a receiver that is gone is not used.
        await self._settle(pending)
        if self._stale or now - self._refreshed_at >= _REFRESH_S:
            self._stale, self._refreshed_at = False, now
            self.dispatch.retarget(await pending.targets())
        if self.dispatch.stopping or not self._leases.shards:
            return IDLE
        polled = now - self._polled_at >= self._poll_s
        if polled:
            self._polled_at = now
            self._look_around(now)
        await self._read(pending)
        return IDLE

    def _look_around(self, now: float) -> None:
        """Time-driven work."""
        # Those blocked by a lapsed lease can continue now.
        self.dispatch.start(self.dispatch.lanes.values())
        rewind = now - self._rewound_at >= _REWIND_S
        if rewind:
            self._rewound_at = now
        for lane in self.dispatch.lanes.values():
            lane.more = lane.more_due = True
            if rewind:
                lane.rewind()

    async def _settle(self, pending: Pending) -> None:
        if gone := set(self.dispatch.gone):
            await pending.halt(gone)
            self.dispatch.gone -= gone
            self._tidying.wake()
        if batch := self.dispatch.done[:_SETTLED_MAX]:
            following = await pending.settle(batch)
            del self.dispatch.done[: len(batch)]
            for settlement in batch:
                if lane := self.dispatch.lanes.get(settlement.row.trigger_id):
                    lane.release(settlement.row)
            self._take(following)
        if self.dispatch.done:
            # In the next turn: new events must not wait for all of them.
            self._working.wake()
        else:
            self._settled.set()

    def _take(self, rows: list[OutboxRow]) -> None:
        touched: dict[Lane, None] = {}
        for row in rows:
            if lane := self.dispatch.lanes.get(row.trigger_id):
                lane.take([row])
                touched[lane] = None
        self.dispatch.start(touched)

    async def _read(self, pending: Pending) -> None:
        """Fill the lanes whose endpoints accept something; the others would only hold it."""
        now, rows_max, shards = time.monotonic(), self._terms.rows_max, self._leases.shards
        lanes = [lane for lane in self.dispatch.lanes.values() if self._wants(lane, now)]
        if new := [lane for lane in lanes if lane.more]:
            await pending.read(new, shards, rows_max)
            self.dispatch.start(new)
        if due := [lane for lane in lanes if lane.more_due and lane.room(rows_max)]:
            await pending.read_due(due, shards, rows_max)
            self.dispatch.start(due)
        self.dispatch.give_up_expired()
        if any((lane.more or lane.more_due) and self._wants(lane, now) for lane in lanes):
            self._working.wake()

    def _wants(self, lane: Lane, now: float) -> bool:
        """Whether to read for a lane: not while it holds much, nor for a paused endpoint."""
        paused = now < lane.endpoint.paused_until_s and lane.ready
        return not paused and lane.wanting(self._terms.rows_max)

    async def _read_large(self, row: OutboxRow) -> bytes | None:
        async with self._large.lend() as connection:
            return await read_data(connection, row)

    async def _tidy(self) -> Turn:
        """Remove old events, and make sure the ledger knows the triggers whose receivers are gone."""
        async with await self._database.connect(name="tidelock webhooks tidy") as connection:
            await record_halts(connection, self._disable)
            await prune(connection, self._retention_ns)
        return IDLE
