"""Clients of others over a real fold: npm's graphql-ws and graphql-sse, Python's gql, and plain server-sent events.

They follow every kind of table while events arrive and while the server restarts; each ends with the rows there are.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from tests.faults.servers import Producer, Server, running
from tests.graphql.foreign import WAYS, Followed, Mirrors
from tests.javascript import has_javascript
from tests.stack import Stack
from tidelock.instants import MILLISECOND, SECOND, format_instant, parse_rfc3339

pytestmark = pytest.mark.stack
TENANT = "foreign"
TABLES = {
    table.name: table
    for table in (
        Followed("counters", ("metric", "customer_ref", "period_start"), ("agg_count", "value", "total"), TENANT),
        Followed("calls_10s", ("customer_ref", "window_start"), ("window_end", "calls", "units"), TENANT),
        Followed("orders", ("order_id",), ("customer", "amount", "state"), TENANT),
        Followed("adjustments", ("metric", "ingress_sequence"), ("customer_ref", "amount", "reason"), TENANT),
        Followed("late_rows", ("window", "ingress_sequence"), ("event_time", "reason"), TENANT),
    )
}
#: tables whose rows never change: every one comes exactly once
ONCE = ("calls_10s", "adjustments", "late_rows")
START = parse_rfc3339("2026-02-02T08:00:00Z")


class Mixed(Producer):
    """Calls of some customers, now and then late by a minute or by two hours, and orders that change and go."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "mixed")
        self._number = 0
        self.pause_s = 0.1

    def events(self, keys: list[str]) -> list[dict[str, Any]]:
        return [{**self._event(key), "tenantId": TENANT} for key in keys]

    def _event(self, key: str) -> dict[str, Any]:
        chance = random.Random(key)
        self._number += 1
        if chance.random() < 0.6:
            late_s = 0 if (kind := chance.random()) < 0.85 else 60 if kind < 0.97 else 7_200
            happened = START + self._number * 200 * MILLISECOND - late_s * SECOND
            customer, quantity = f"cus_{chance.randrange(5)}", f"{chance.randrange(1, 400)}.5"
            return {
                "stream": "calls", "idempotencyKey": key, "ts": format_instant(happened), "customerRef": customer,
                "quantity": quantity,
            }  # fmt: skip
        data = {"order_id": chance.randrange(20), "customer": "ada", "amount": f"{self._number}.25", "state": "new"}
        op = "delete" if chance.random() < 0.2 else "upsert"
        return {"stream": "orders", "idempotencyKey": key, "data": data, "op": op}


@pytest.fixture(scope="module")
def server(stack: Stack) -> Iterator[Server]:
    """A second server on the ledger: it can restart while the fold goes on."""
    with running(stack.data, stack.config, "serve") as started:
        yield started


async def rows_of(url: str) -> dict[str, list[Any]]:
    """What a query says of each table, once everything is folded."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        async with asyncio.timeout(120):
            while True:
                health = (await client.get("/admin/event-health")).json()
                (fold,) = (reader for reader in health["readers"] if reader["name"] == "fold")
                if fold["ingressSequence"] == health["head"]["ingressSequence"]:
                    break
                await asyncio.sleep(0.02)
        fields = " ".join(
            f"{name}(limit: 10000, {table.where}) {{ {table.selection} }}" for name, table in TABLES.items()
        )
        data: dict[str, list[Any]] = (await client.post("/graphql", json={"query": f"{{ {fields} }}"})).json()["data"]
        return data


def differences(known: Mirrors, rows: dict[str, list[Any]]) -> list[str]:
    return [name for name in TABLES if sorted(map(str, known[name].rows.values())) != sorted(map(str, rows[name]))]


def _seen_all(mirrors: Mirrors) -> bool:
    """Something of each table, and everything that can happen to a row."""
    told = {event["operation"] for event in mirrors["orders"].events}
    return told == {"INSERT", "UPDATE", "DELETE"} and all(mirror.events for mirror in mirrors.values())


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(180):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.timeout(900)
async def test_foreign_clients_have_the_rows_there_are_after_events_and_a_restart(server: Server) -> None:
    ways = dict(WAYS) if has_javascript() else {name: way for name, way in WAYS.items() if not name.startswith("npm")}
    producer = Mixed(server.url)
    async with AsyncExitStack() as stack:
        known = {name: await stack.enter_async_context(way(server.url, TABLES)) for name, way in ways.items()}
        producing = asyncio.create_task(producer.run())
        await until(lambda: all(_seen_all(mirrors) for mirrors in known.values()))
        # With requests under way: the clients find their way back by themselves.
        await asyncio.to_thread(server.stop)
        before = {name: len(mirrors["counters"].events) for name, mirrors in known.items()}
        await asyncio.to_thread(server.start)
        await asyncio.to_thread(server.wait_until_ready, 180)
        await until(lambda: all(len(mirrors["counters"].events) > before[name] for name, mirrors in known.items()))
        producer.stopping.set()
        await producing
        rows = await rows_of(server.url)
        assert all(rows.values()), {name: len(each) for name, each in rows.items()}
        await until(lambda: not any(differences(mirrors, rows) for mirrors in known.values()))
    assert producer.retries, "the server was away meanwhile"
    for way, mirrors in known.items():
        for name in ONCE:
            told = [event["operation"] for event in mirrors[name].events]
            assert told == ["INSERT"] * len(rows[name]), f"{way}, {name}"
        operations = {event["operation"] for event in mirrors["orders"].events}
        assert operations == {"INSERT", "UPDATE", "DELETE"}, way
    if len(ways) < len(WAYS):
        pytest.skip("npm's clients are missing, so only Python's were tried; `make setup` installs them")
