"""The Python client against a real server: nothing twice, nothing lost, whatever happens to the line."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import aclosing
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import httpx
import pytest

from bench.fanout import METER, ChangeLog, counter_row
from tests.client.dropping import dropping
from tests.conftest import Databases
from tests.serving import Threaded
from tidelock.client import AsyncClient, Client, NoAnswer, Refused, Update
from tidelock.definitions import parse_definitions
from tidelock.postgres.database import Database
from tidelock.postgres.ports import free_port
from tidelock.tables import COUNTERS

DEFINITIONS = parse_definitions(tomllib.loads(METER))


class Restarted:
    """A server in a thread that can be stopped, and started again on its port and ledger."""

    def __init__(self, threaded: Threaded, database: Database) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._opened = partial(threaded, port=self.port, database_url=database.url, definitions=DEFINITIONS)
        self.start()

    def start(self) -> None:
        self._running = self._opened()
        assert self._running.__enter__() == self.url

    def stop(self) -> None:
        self._running.__exit__(None, None, None)


@pytest.fixture(scope="module")
def ledger(databases: Databases) -> Iterator[Database]:
    with databases() as database:
        yield database


@pytest.fixture(scope="module")
def server(threaded: Threaded, ledger: Database) -> Iterator[Restarted]:
    """A server whose changes the tests write."""
    started = Restarted(threaded, ledger)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def log(server: Restarted, ledger: Database) -> ChangeLog:
    return ChangeLog(ledger, COUNTERS, "default")


def test_the_client_loads_neither_spark_nor_a_server() -> None:
    program = (
        "import sys, tidelock.client\n"
        "heavy = {'pyspark', 'fastapi', 'psycopg', 'pyarrow', 'uvicorn', 'msgspec'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_events_are_sent_in_order_with_a_verdict_each(server: Restarted) -> None:
    when = datetime.fromisoformat("2026-01-31T23:59:59Z")
    events: list[dict[str, Any]] = [
        {
            "stream": "client_calls",
            "customerRef": "a",
            "ts": when,
            "quantity": Decimal("1.50"),
            "idempotencyKey": "one",
        },
        {
            "stream": "client_calls",
            "customerRef": "a",
            "ts": when,
            "quantity": Decimal("1.50"),
            "idempotencyKey": "one",
        },
        {"stream": "client_calls", "quantity": "much"},
        *({"stream": "client_calls", "data": {"number": number}} for number in range(5)),
    ]
    with Client(server.url) as client:
        found = client.send(events, batch=3)
    assert [verdict.status for verdict in found] == ["accepted", "duplicate", "rejected", *["accepted"] * 5]
    assert found[0].ingress_sequence == found[1].ingress_sequence
    assert found[2].error is not None
    assert found[2].error["code"] == "invalid_quantity"
    assert [verdict.recorded for verdict in found[:3]] == [True, True, False]
    recorded = httpx.get(f"{server.url}/admin/events?stream=client_calls").json()["items"]
    assert recorded[0]["quantity"] == "1.5"
    assert recorded[0]["occurredAt"] == "2026-01-31T23:59:59Z"


async def test_an_event_is_voided_or_amended_by_its_key_and_only_once(server: Restarted) -> None:
    sent = {"stream": "client_fixes", "customerRef": "a", "quantity": 1, "data": {"x": 1}}
    with Client(server.url) as client:
        first, second = client.send([sent, sent])
        assert first.idempotency_key is not None
        assert second.idempotency_key is not None
        void = client.void("client_fixes", first.idempotency_key, reason="sent twice")
        amended = client.amend("client_fixes", second.idempotency_key, quantity=Decimal("2.5"), batch_id="fix")
        again = client.void("client_fixes", first.idempotency_key)
        refused = client.amend("client_fixes", first.idempotency_key, data={"x": 2})
    async with AsyncClient(server.url) as client:
        assert amended.idempotency_key is not None
        other = await client.amend("client_fixes", amended.idempotency_key, data={"x": 2})
        assert other.idempotency_key is not None
        gone = await client.void("client_fixes", other.idempotency_key)
    assert [verdict.status for verdict in (void, amended, again, refused, other, gone)] == [
        "accepted", "accepted", "duplicate", "rejected", "accepted", "accepted"
    ]  # fmt: skip
    assert refused.error is not None
    assert refused.error["code"] == "invalid_target"
    async with httpx.AsyncClient() as reader:
        recorded = (await reader.get(f"{server.url}/admin/events?stream=client_fixes")).json()["items"]
        found = (await reader.get(f"{server.url}/admin/events?batchId=fix")).json()["items"]
    assert [(event["op"], event["quantity"], event["data"], event["reason"]) for event in recorded[2:]] == [
        ("void", None, None, "sent twice"),
        ("amend", "2.5", {"x": 1}, None),
        ("amend", "2.5", {"x": 2}, None),
        ("void", None, None, None),
    ]
    assert [event["targetSequence"] for event in found] == [second.ingress_sequence]


def test_a_time_without_a_zone_is_refused_before_it_is_sent(server: Restarted) -> None:
    with Client(server.url) as client, pytest.raises(ValueError, match="no time zone"):
        client.send([{"stream": "s", "ts": datetime(2026, 1, 1)}])


def test_decimals_and_times_inside_data_are_sent_as_they_are_written(server: Restarted) -> None:
    price, when = Decimal("0.10000000000000000001"), datetime(2026, 1, 1, tzinfo=UTC)
    with Client(server.url) as client:
        client.send([{"stream": "client_data", "data": {"price": price, "at": [when]}}])
    recorded = httpx.get(f"{server.url}/admin/events?stream=client_data").json()["items"]
    assert recorded[0]["data"] == {"price": "0.10000000000000000001", "at": ["2026-01-01T00:00:00Z"]}


@pytest.mark.parametrize("value", [float("nan"), Decimal("Infinity"), {1}], ids=["nan", "infinity", "set"])
def test_what_no_event_can_hold_is_refused_before_it_is_sent(server: Restarted, value: object) -> None:
    with Client(server.url) as client, pytest.raises((TypeError, ValueError)):
        client.send([{"stream": "never", "data": {"a": value}}])


async def test_lost_answers_make_no_double(server: Restarted) -> None:
    events = [{"stream": "lossy", "data": {"number": number}} for number in range(60)]
    async with dropping(server.port) as (url, lost), AsyncClient(url, tries=30, pause_max_s=0.01) as client:
        found = await client.send(events, batch=10)
    assert lost[0] > 1, "answers were lost"
    assert {verdict.status for verdict in found} == {"accepted", "duplicate"}
    async with httpx.AsyncClient(base_url=server.url) as plain:
        recorded = (await plain.get("/admin/events?stream=lossy&limit=1000")).json()["items"]
    assert [event["data"]["number"] for event in recorded] == list(range(60))


def test_what_the_server_says_no_to_is_refused_with_its_reason(server: Restarted) -> None:
    with Client(server.url) as client, pytest.raises(Refused, match="none") as refused:
        client.usage("none", "cus_1")
    assert refused.value.status in (400, 404)
    with Client("http://127.0.0.1:9", tries=2) as client, pytest.raises(NoAnswer, match="2 tries"):
        client.send([{"stream": "s"}])


async def subscribed(url: str, count: int) -> None:
    """Until so many follow."""
    async with httpx.AsyncClient(base_url=url) as plain, asyncio.timeout(60):
        while f"tidelock_view_subscribers {count}.0" not in (await plain.get("/metrics")).text:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_subscription_survives_a_restart_and_tells_each_change_once(server: Restarted, log: ChangeLog) -> None:
    got: list[Update] = []

    async def follow(client: AsyncClient) -> None:
        updates = client.subscribe("counters", columns=["value"], where={"metric": {"_eq": "bench_live"}})
        async with aclosing(updates):
            async for update in updates:
                got.append(update)
                if len(got) == 5:
                    return

    async with AsyncClient(server.url) as client, asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        following = tasks.create_task(follow(client))
        await subscribed(server.url, 1)
        await asyncio.to_thread(log.write, [counter_row(number) for number in range(3)], range_rows=3)
        while len(got) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        # Its connections end with it; what is written meanwhile must not be missed.
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(log.write, [counter_row(number, 7) for number in (3, 4)], range_rows=2)
        await asyncio.to_thread(server.start)
        await following
    assert [update.operation for update in got] == ["INSERT"] * 5
    assert [update.data["customer_ref"] for update in got] == [f"cus_{number}" for number in range(5)]
    assert got[3].data["value"] == "0.07"
    assert set(got[3].data) == {"tenant_id", "metric", "customer_ref", "period_start", "value"}


async def test_a_table_or_column_that_is_not_there_is_refused(server: Restarted) -> None:
    async with AsyncClient(server.url) as client:
        for table, where in (("nothing", None), ("counters", {"nothing": {"_eq": 1}})):
            with pytest.raises(Refused, match="nothing"):
                async with aclosing(client.subscribe(table, where=where)) as updates:
                    await anext(updates)
