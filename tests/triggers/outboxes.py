"""Short ways to fill an outbox, to deliver from it, and to see what became of it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec

from tests.triggers.receiver import Receiver
from tidelock.postgres.database import Database
from tidelock.triggers.attempts import Schedule, WebhookSender
from tidelock.triggers.definition import Trigger, event_id, stored
from tidelock.triggers.delivery import Delivery
from tidelock.triggers.dispatch import Terms
from tidelock.triggers.lanes import Care
from tidelock.triggers.outbox import Transition, append

SECRET = "whsec_" + "c2VjcmV0" * 4
DAY = 86_400 * 10**9
#: quick: a test has no days
SCHEDULE = Schedule([0.05, 0.1, 0.2, 0.4], retry_after_max_s=2)
CARE = Care(concurrency_max=16, failures_max=5, pause_max_s=0.3)
TERMS = Terms(SCHEDULE, CARE, requests_max=200, rows_max=100)
#: under these nothing is given up for a while
PATIENT = replace(TERMS, schedule=Schedule([0.05] * 1000, retry_after_max_s=2))


def create_trigger(database: Database, name: str, webhook: str, secrets: Sequence[str] = (SECRET,)) -> int:
    """A trigger as the evaluator makes it; gives its id."""
    with database.connect_sync() as connection:
        connection.execute("INSERT INTO trigger_secrets VALUES (%s, %s)", (name, list(secrets)))
        definition = stored(Trigger(name, "default", "trades", "{}", unmatch=None, webhook=webhook))
        connection.execute("INSERT INTO trigger_definitions VALUES (%s, 'default', %s, 1, 1)", (name, definition))
        row = connection.execute(
            "INSERT INTO triggers (name, tenant_id, table_name, match, webhook, enabled, snapshot, created_sequence)"
            " VALUES (%s, 'default', 'trades', '{}', %s, true, false, 1) RETURNING id",
            (name, webhook),
        ).fetchone()
        assert row is not None
        return int(row[0])


def transition(trigger: tuple[int, str], key: object, time: int, size: int = 0) -> Transition:
    """The `time`-th transition of a key: it enters, it leaves, and so on."""
    trigger_id, name = trigger
    data = msgspec.json.encode({"id": key, "n": time} | ({"text": "x" * size} if size else {}))
    kind = "MATCH" if time % 2 else "UNMATCH"
    return Transition(
        trigger_id,
        "default",
        str(key),
        event_id(name, str(key), time),
        event_type=kind,  # type: ignore[arg-type]
        source_timestamp=time,
        data=data,
    )


def fill(database: Database, transitions: Iterable[Transition]) -> int:
    with database.connect_sync() as connection, connection.transaction():
        return append(connection, transitions)


def chains(trigger: tuple[int, str], keys: Iterable[object], length: int) -> list[Transition]:
    """Transitions of several keys, one after another as they would come."""
    keys = list(keys)
    return [transition(trigger, key, time) for time in range(1, length + 1) for key in keys]


def ids_by_key(transitions: Iterable[Transition]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in transitions:
        found.setdefault(one.key, []).append(one.event_id)
    return found


def statuses(database: Database) -> dict[str, int]:
    with database.connect_sync() as connection:
        return dict(connection.execute("SELECT status, count(*) FROM outbox GROUP BY status").fetchall())


async def until(database: Database, query: str, true: Callable[[list[Any]], object], seconds: float = 120) -> None:
    """Wait until something holds of the first column of a query."""
    async with asyncio.timeout(seconds), await database.connect() as connection:
        while True:
            rows = await (await connection.execute(query.encode())).fetchall()
            if true([row[0] for row in rows]):
                return
            await asyncio.sleep(0.02)


async def settled(database: Database, count: int, seconds: float = 120) -> None:
    """Wait until so many are delivered or dead."""
    query = "SELECT count(*) FROM outbox WHERE status <> 'pending'"
    await until(database, query, lambda counted: counted[0] >= count, seconds)


def assert_complete(receiver: Receiver, sent: Sequence[Transition]) -> None:
    """Nothing lost, order kept for every key, and what was repeated came with the same id and content."""
    assert receiver.by_key() == ids_by_key(sent)
    expected = {one.event_id: msgspec.json.decode(one.data) for one in sent}
    assert all(request.payload["data"] == expected[request.id] for request in receiver.requests)
    last: dict[str, int] = {}
    for request in receiver.accepted:
        key, number = str(request.payload["data"]["id"]), request.payload["data"]["n"]
        assert last.get(key, 0) in (number - 1, number), "a repeat is of the last one of its key"
        last[key] = number


def asked(database: Database, query: str) -> list[tuple[Any, ...]]:
    with database.connect_sync() as connection:
        return connection.execute(query.encode()).fetchall()


class Disabled(list[str]):
    """Names of triggers that were asked to be disabled."""

    async def __call__(self, name: str) -> int:
        self.append(name)
        return 100 + len(self)


@asynccontextmanager
async def delivering(
    database: Database,
    terms: Terms = TERMS,
    *,
    timeout_s: float = 10,
    disable: Disabled | None = None,
    lease_s: float = 30,
    retention_ns: int = DAY,
    killed: bool = False,
) -> AsyncIterator[Delivery]:
    """A process's delivery, for the time of the block. `killed`: it ends with nothing settled nor given back."""
    sender = WebhookSender(timeout_s=timeout_s, response_bytes_max=200, allow_private=True)
    delivery = Delivery(
        database,
        sender,
        terms,
        retention_ns=retention_ns,
        disable=disable if disable is not None else Disabled(),
        lease_s=lease_s,
        renew_s=0.05,
        poll_s=0.05,
    )
    await delivery.start()
    try:
        yield delivery
    finally:
        if killed:
            tasks = [*delivery._tasks, *delivery.dispatch._under_way]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await sender.close()
        else:
            await delivery.close()
