"""The dispatch: the rows in flight. It starts as many as endpoints, leases and limits allow.

Everything here runs on the event loop and waits for nothing but receivers: an endpoint that hangs delays only its own
rows.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from tidelock.errors import TidelockError
from tidelock.instants import SECOND
from tidelock.triggers.attempts import OUTCOMES, Result, Schedule, WebhookSender
from tidelock.triggers.lanes import Care, Endpoint, Lane, OutboxRow, Target
from tidelock.triggers.payloads import payload
from tidelock.triggers.pending import Leases, Settlement

logger = logging.getLogger(__name__)

# While this many wait to be settled, expiring others can wait: it would take time from them.
_EXPIRED_MAX = 100


@dataclass(frozen=True, slots=True)
class Terms:
    """How webhooks are delivered."""

    schedule: Schedule
    care: Care
    #: maximum number of requests in flight
    requests_max: int
    #: maximum number of rows of one trigger in memory
    rows_max: int


class Dispatch:
    """Lanes by trigger, endpoints by URL, and the attempts in flight."""

    def __init__(
        self,
        sender: WebhookSender,
        leases: Leases,
        terms: Terms,
        *,
        read: Callable[[OutboxRow], Awaitable[bytes | None]],
        wake: Callable[[], None],
        chance: random.Random | None = None,
    ) -> None:
        self.lanes: dict[int, Lane] = {}
        #: attempts that ended but are not settled
        self.done: list[Settlement] = []
        #: triggers whose receivers are gone
        self.gone: set[int] = set()
        #: number of attempts by outcome
        self.attempts: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self.stopping = False
        self._sender = sender
        self._leases = leases
        self._terms = terms
        self._read = read
        self._wake = wake
        self._chance = chance or random.Random()
        self._endpoints: dict[str, Endpoint] = {}
        self._lanes_of: dict[str, set[Lane]] = {}
        self._under_way: dict[asyncio.Task[None], OutboxRow] = {}
        #: lanes that wait for any request to end
        self._crowded: dict[Lane, None] = {}
        #: endpoints that are checked again when their pause ends
        self._timers: dict[Endpoint, asyncio.TimerHandle] = {}

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def busy_shards(self) -> set[int]:
        """Shards with something in flight or not settled."""
        return {row.shard for row in self._under_way.values()} | {settled.row.shard for settled in self.done}

    def retarget(self, targets: Iterable[Target]) -> None:
        """Deliver these triggers, and no others."""
        wanted = {target.trigger_id: target for target in targets}
        for trigger_id in self.lanes.keys() - wanted.keys():
            self.remove(trigger_id)
        for trigger_id, target in wanted.items():
            lane = self.lanes.get(trigger_id)
            if lane is None:
                lane = self.lanes[trigger_id] = Lane(target, self._endpoint(target.webhook))
            elif lane.target != target:
                self._unlink(lane)
                lane.change(target, self._endpoint(target.webhook))
            self._lanes_of.setdefault(target.webhook, set()).add(lane)

    def remove(self, trigger_id: int) -> None:
        lane = self.lanes.pop(trigger_id, None)
        if lane is not None:
            lane.drop()
            self._crowded.pop(lane, None)
            self._unlink(lane)

    def start(self, lanes: Iterable[Lane]) -> None:
        """Send what may be sent now."""
        for lane in lanes:
            self._start(lane)

    def give_up_expired(self) -> None:
        """If an endpoint has not responded for longer than the retry period, events that have waited that long are
        dead.
        """
        before_s = time.monotonic() - self._terms.schedule.horizon_s
        for lane in self.lanes.values():
            if lane.endpoint.open and len(self.done) < _EXPIRED_MAX:
                for row in lane.expired(before_s):
                    self._ended(row, expiry(), time.time_ns())

    async def finish(self, seconds: float) -> None:
        """Start nothing more, and wait for requests in flight; those that take too long are left for others
        to repeat.
        """
        self.stopping = True
        for timer in self._timers.values():
            timer.cancel()
        if self._under_way:
            _, late = await asyncio.wait(self._under_way, timeout=seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _start(self, lane: Lane) -> None:
        endpoint = lane.endpoint
        while lane.ready and self._leases.valid and not self.stopping:
            if len(self._under_way) >= self._terms.requests_max:
                self._crowded[lane] = None
                return
            if not endpoint.free(now_s := time.monotonic()):
                if now_s < endpoint.paused_until_s:
                    self._look_again(endpoint, now_s)
                return
            row = lane.ready.popleft()
            if row.shard not in self._leases.shards:
                lane.release(row)
                continue
            endpoint.started()
            task = asyncio.create_task(self._attempt(lane, endpoint, row))
            self._under_way[task] = row

    async def _attempt(self, lane: Lane, endpoint: Endpoint, row: OutboxRow) -> None:
        """One attempt, from the row to its result."""
        learned = False
        try:
            data = row.data if row.data is not None else await self._read(row)
            if data is None:
                lane.release(row)
                return
            sent_at_ns = time.time_ns()
            body = payload(
                event_id=row.event_id, event_type=row.event_type, trigger=lane.target.name,
                source_timestamp=row.source_timestamp, data=data, sent_at_ns=sent_at_ns,
            )  # fmt: skip
            headers = lane.signer.headers(row.event_id, sent_at_ns // SECOND, body)
            result = await self._sender.post(endpoint.url, headers, body)
            learned = True
            self._learn(endpoint, result)
            self._ended(row, result, sent_at_ns)
        except Exception as error:
            # The database is probably unavailable; the row is read again.
            known = isinstance(error, TidelockError)
            logger.warning("event %s could not be sent: %s", row.event_id, error, exc_info=not known)
            lane.release(row)
            lane.rewind()
        finally:
            if not learned:
                endpoint.left()
            task = asyncio.current_task()
            assert task is not None
            del self._under_way[task]
            self._freed(endpoint)

    def _learn(self, endpoint: Endpoint, result: Result) -> None:
        if result.healthy:
            endpoint.succeeded()
            return
        asked_s = min(result.retry_after_s or 0.0, self._terms.schedule.retry_after_max_s)
        endpoint.failed(time.monotonic(), asked_s)

    def _ended(self, row: OutboxRow, result: Result, sent_at_ns: int) -> None:
        self.attempts[result.outcome] += 1
        if result.outcome == "gone":
            self.gone.add(row.trigger_id)
            self.remove(row.trigger_id)
        self.done.append(settlement_of(row, result, sent_at_ns, self._terms.schedule, self._chance))
        self._wake()

    def _freed(self, endpoint: Endpoint) -> None:
        lanes = list(self._lanes_of.get(endpoint.url, ()))
        if not self._crowded:
            self.start(lanes)
            return
        # First come, first served: after a turn, go to the end.
        self._crowded.update(dict.fromkeys(lanes))
        while self._crowded and len(self._under_way) < self._terms.requests_max:
            lane = next(iter(self._crowded))
            del self._crowded[lane]
            self._start(lane)

    def _look_again(self, endpoint: Endpoint, now_s: float) -> None:
        def look() -> None:
            del self._timers[endpoint]
            self.start(list(self._lanes_of.get(endpoint.url, ())))

        if endpoint not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[endpoint] = loop.call_later(endpoint.paused_until_s - now_s + 0.001, look)

    def _endpoint(self, url: str) -> Endpoint:
        if url not in self._endpoints:
            self._endpoints[url] = Endpoint(url, self._terms.care, self._chance)
        return self._endpoints[url]

    def _unlink(self, lane: Lane) -> None:
        url = lane.target.webhook
        lanes = self._lanes_of.get(url, set())
        lanes.discard(lane)
        if not lanes:
            self._lanes_of.pop(url, None)
            self._endpoints.pop(url, None)


def settlement_of(
    row: OutboxRow, result: Result, sent_at_ns: int, schedule: Schedule, chance: random.Random
) -> Settlement:
    """Delivered, to be tried again, or dead."""
    if result.outcome == "delivered":
        return Settlement(row, result, sent_at_ns, "delivered", row.failures)
    if result.outcome == "gone":
        # The trigger is disabled, and this row is sent first when it is enabled again.
        return Settlement(row, result, sent_at_ns, "pending", row.failures)
    failures = row.failures + 1
    delay_s = None if result.outcome == "expired" else schedule.delay_s(failures, result.retry_after_s, chance)
    return Settlement(
        row, result, sent_at_ns, status="dead" if delay_s is None else "pending", failures=failures, delay_s=delay_s
    )


def expiry() -> Result:
    """The result of a row that expired."""
    return Result("expired", None, "its endpoint has not responded for the whole retry period; it was not sent", 0.0)
