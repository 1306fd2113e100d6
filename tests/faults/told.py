"""Triggers of a server that is killed, and a receiver that fails in every way: what must have been told in the end."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.model.triggers import Transition
from tests.triggers import receiver as replies
from tests.triggers.outboxes import until
from tests.triggers.receiver import Receiver, Reply, Request, receiving
from tidelock.postgres.database import Database

#: for a server whose receivers fail often and come back soon; whoever waits is not given up
SETTINGS = f"""
webhook_allow_private = true
webhook_timeout_s = 0.5
webhook_pause_max = "1s"
webhook_retries = {["100ms"] * 20 + ["1m"] * 80}
"""
#: one on each kind of table, with and without a condition to leave by
TRIGGERS: dict[str, dict[str, Any]] = {
    "devices.high": {"table": "devices", "match": {"level": {"_gte": 2}}, "unmatch": {"level": {"_lt": 1.5}}},
    "devices-all": {"table": "devices", "match": {}, "tenantId": "b"},
    "used_much": {"table": "counters", "match": {"metric": {"_eq": "calls"}, "agg_count": {"_gte": 5}}},
    "late": {"table": "late_rows", "match": {}},
    "closed": {"table": "calls_by_region", "match": {"calls": {"_gte": 2}}},
    "adjusted": {"table": "adjustments", "match": {"metric": {"_eq": "calls_last"}}},
}


class Moods:
    """Fails a quarter of the time, each time in another way."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def __call__(self, request: Request) -> Reply | str:
        if self._chance.random() < 0.75:
            return Reply()
        failures: list[Reply | str] = [
            Reply(500), Reply(429, headers={"Retry-After": "0"}), replies.HANG, replies.CLOSE, replies.CUT,
            Reply(302, headers={"Location": "http://127.0.0.1:1"}), replies.SHORT, replies.GARBAGE,
        ]  # fmt: skip
        return self._chance.choice(failures)


class Told:
    """What a server's triggers tell a receiver of ours."""

    def __init__(self, url: str, receiver: Receiver) -> None:
        self._url = url
        self._receiver = receiver

    async def begin(self) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=60) as client:
            for name, said in TRIGGERS.items():
                given = {"tenantId": "a", **said, "name": name, "webhook": self._receiver.url}
                made = await client.post("/v1/triggers", json=given)
                assert made.status_code == 201, made.text

    async def check(self, database: Database, transitions: Iterable[Transition]) -> str:
        """Wait until everything was told, then: nothing lost, in order for every key, repeats only by the same id."""
        wanted: dict[tuple[str, str], list[str]] = {}
        data: dict[str, Any] = {}
        for each in transitions:
            wanted.setdefault((each.trigger, each.key), []).append(each.event_id)
            data[each.event_id] = each.data
        # All that is ever told is in the outbox once the triggers have read the whole ledger.
        behind = "SELECT ingress_sequence - sequence FROM ledger_head, cursors WHERE name = 'triggers'"
        await until(database, behind, lambda found: found == [0], 600)
        await until(database, "SELECT count(*) FROM outbox WHERE status = 'pending'", lambda found: found == [0], 600)
        found: dict[tuple[str, str], list[str]] = {}
        keys = {event_id: place for place, ids in wanted.items() for event_id in ids}
        for request in self._receiver.accepted:
            assert request.payload["data"] == data.get(request.id), request.payload
            ids = found.setdefault(keys[request.id], [])
            if request.id not in ids:
                ids.append(request.id)
        assert found == wanted, "lost, or out of order"
        telling = {trigger for trigger, _ in found}
        assert len(telling) > 3, f"only {telling} had something to tell"
        requests, repeats = len(self._receiver.requests), len(self._receiver.accepted) - len(data)
        return f"{len(data)} webhooks of {len(telling)} triggers in {requests} requests, {repeats} repeats"


@asynccontextmanager
async def telling(url: str, seed: int) -> AsyncIterator[Told]:
    """Triggers on a server, and their receiver."""
    async with receiving(Moods(seed)) as receiver:
        told = Told(url, receiver)
        await told.begin()
        yield told
