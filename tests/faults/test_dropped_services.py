"""Services go on when a connection drops at any moment, and catch up: nothing is lost, nothing is done twice.

What all readers share is tried in `tests/postgres/test_loop.py`; here are those whose own steps must not be done twice.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from tests.conftest import Databases
from tests.dropping import Drop, Dropping, dropping, sweep
from tests.model.triggers import transitions
from tests.recording import LIMITS, record, rows, sequencing
from tests.serving import Start
from tests.sources.connectors import STREAM, ListSource
from tests.triggers.folded import begin_evaluation, expected, hand_fold, told
from tests.triggers.histories import DEFINITIONS, history
from tests.triggers.outboxes import PATIENT, assert_complete, chains, create_trigger, delivering, fill, settled
from tests.triggers.outboxes import statuses as outbox_statuses
from tests.triggers.receiver import receiving
from tests.views.folding import folding, following, hub_of, put, until
from tests.views.histories import TABLE, Client, comparable, visible
from tidelock.definitions import Definitions
from tidelock.errors import Unreachable
from tidelock.ledger.anchor import Anchor, read_anchors
from tidelock.ledger.sequencer import Sequencer
from tidelock.postgres.database import Database
from tidelock.settings import Settings
from tidelock.settings.groups import ConnectSettings
from tidelock.sources.connect.connecting import Connecting
from tidelock.sources.connect.memory import Memory
from tidelock.sources.connect.memory import ViewFeed as ConnectorFeed
from tidelock.sources.sender import Sender
from tidelock.triggers.evaluate import Evaluator
from tidelock.views.hub import Hub
from tidelock.views.subscriptions import Subscription

SEED = 20261118
#: drops tried in the normal suite; the soak tries all
SAMPLED = pytest.mark.parametrize(
    "sample", [4, pytest.param(None, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])], ids=["some", "all"]
)
#: a bound on hanging
LIMIT_S = 60

Service = Callable[[Database, Dropping], Awaitable[None]]


def check(databases: Databases, sample: int | None, service: Service, *, refusals: int = 0) -> None:
    """Run a service over a proxy on a ledger of its own, for each drop. It is given the way around the proxy, too."""

    def run(drop: Drop | None) -> Dropping:
        with databases() as database, dropping(database, drop) as made:
            try:
                asyncio.run(asyncio.wait_for(service(database, made), LIMIT_S))
            except BaseException as error:
                raise AssertionError(f"{made.dropped}: {type(error).__name__}: {error}") from error
        return made

    sweep(run, sample=sample, seed=SEED, refusals=refusals).check()


async def sent(sequencer: Sequencer, number: int) -> None:
    """What a producer does: it sends until it is answered."""
    while True:
        try:
            await record(sequencer, {"idempotencyKey": f"k{number}", "customerRef": str(number)})
            return
        except Unreachable:
            await asyncio.sleep(0.02)


async def recorded(database: Database) -> list[tuple[Any, ...]]:
    return await rows(database, "SELECT ingress_sequence, customer_ref FROM events ORDER BY 1")


@asynccontextmanager
async def sequencer_over(made: Dropping, database: Database) -> AsyncIterator[Sequencer]:
    """A sequencer on a ledger that is prepared already."""
    async with sequencing(database) as prepared:
        salts = prepared.salts
    sequencer = Sequencer(made.database, salts, LIMITS)
    await sequencer.start()
    try:
        yield sequencer
    finally:
        await sequencer.close()


async def until_rows(database: Database, query: str) -> None:
    while not await rows(database, query):  # noqa: ASYNC110  (the database knows)
        await asyncio.sleep(0.02)


@SAMPLED
def test_a_producer_that_sends_again_has_each_event_recorded_once_and_in_order(
    databases: Databases, sample: int | None
) -> None:
    async def service(database: Database, made: Dropping) -> None:
        async with sequencer_over(made, database) as sequencer:
            for number in range(1, 4):
                await sent(sequencer, number)
        assert await recorded(database) == [(1, "1"), (2, "2"), (3, "3")]

    check(databases, sample, service)


@SAMPLED
def test_the_anchor_knows_the_head(databases: Databases, tmp_path: Path, sample: int | None) -> None:
    names = (tmp_path / f"anchor{number}.jsonl" for number in itertools.count())

    async def service(database: Database, made: Dropping) -> None:
        path = next(names)
        anchor = Anchor(made.database, path, 10**9)
        async with sequencing(database) as sequencer:
            for commit in (1, 2):
                await record(sequencer, {})
                await (anchor.write() if commit == 1 else anchor.close())
                assert [line.commit_id for line in read_anchors(path)][-1] == commit

    check(databases, sample, service)


@SAMPLED
def test_triggers_are_evaluated_exactly_once(databases: Databases, sample: int | None) -> None:
    events = history(Random(SEED), 12)
    wanted = expected(transitions(events, DEFINITIONS))
    assert wanted, "the history is about something"
    ends = sorted({event.source_timestamp: event.ingress_sequence for event in events}.values())

    async def service(database: Database, made: Dropping) -> None:
        begin_evaluation(database)
        stop = threading.Event()
        thread = threading.Thread(target=Evaluator(made.database, changes_max=3).run, args=(stop,))
        with hand_fold(database, events, ends) as fold:
            thread.start()
            try:
                for hi in ends:
                    fold.fold(hi)
                await until_rows(database, f"SELECT 1 FROM cursors WHERE name = 'triggers' AND sequence = {ends[-1]}")
            finally:
                stop.set()
                thread.join(LIMIT_S)
        assert told(database) == wanted

    check(databases, sample, service)


@SAMPLED
def test_webhooks_are_delivered_in_order_and_at_least_once(databases: Databases, sample: int | None) -> None:
    async def service(database: Database, made: Dropping) -> None:
        async with receiving() as receiver:
            trigger = create_trigger(database, "big", receiver.url), "big"
            deliveries = chains(trigger, range(3), 3)
            fill(database, deliveries[:6])
            async with delivering(made.database, PATIENT, lease_s=1):
                await receiver.until(lambda: len(receiver.accepted) >= 3)
                fill(database, deliveries[6:])
                await settled(database, len(deliveries))
            assert_complete(receiver, deliveries)
            assert outbox_statuses(database) == {"delivered": len(deliveries)}

    check(databases, sample, service)


@SAMPLED
def test_a_subscription_has_every_change(databases: Databases, sample: int | None) -> None:
    async def service(database: Database, made: Dropping) -> None:
        client = Client()
        with folding(database) as fold:
            fold.fold([put("a", i=1)], [put("b", i=1)])
            async with hub_of(made.database) as hub:
                subscription = await subscribed(hub)
                async with following(subscription, client, Random(SEED)):
                    for number in (2, 3):
                        await asyncio.to_thread(fold.fold, [put("a", i=number)])
                    await until(lambda: (hub.state.through or 0) >= fold.time, LIMIT_S)
                    wanted = comparable(visible(fold.rows(fold.time), {}, None))
                    await until(lambda: comparable(client.rows) == wanted)

    async def subscribed(hub: Hub) -> Subscription:
        """As a client does, who is told to ask again."""
        while True:
            try:
                return await hub.subscribe(TABLE)
            except Unreachable:
                await asyncio.sleep(0.02)

    check(databases, sample, service)


@SAMPLED
def test_a_connector_records_each_change_once(databases: Databases, sample: int | None) -> None:
    async def service(database: Database, made: Dropping) -> None:
        source, definitions = ListSource(), Definitions(streams={STREAM.name: STREAM})
        settings = Settings(definitions=definitions, connect=ConnectSettings(pause_max=10**8))
        source.commit({1: "a", 2: "b"})
        async with sequencer_over(made, database) as sequencer:
            connector = source.connector(2)
            feed = ConnectorFeed.of(connector, STREAM, "default")
            sender = Sender(sequencer, settings, streams_open=True)
            connecting = Connecting(
                connector, feed, Memory(made.database, feed), sender, settings=settings.connect, tell=lambda _: None
            )
            following = asyncio.create_task(connecting.run())
            await until(lambda: following.done() or connecting.result.snapshots > 0)
            last = source.commit({2: "c", 3: "d", 4: "e"}, deletes=[1])
            await until(lambda: following.done() or int(connecting.result.position or 0) >= last)
            connecting.stop.set()
            await following
        found = await rows(database, "SELECT data ->> 'id', op, data ->> 'v' FROM events ORDER BY ingress_sequence")
        assert found[:2] == [("1", "upsert", "a"), ("2", "upsert", "b")]
        assert sorted(found[2:]) == [
            ("1", "delete", None), ("2", "upsert", "c"), ("3", "upsert", "d"), ("4", "upsert", "e"),
        ]  # fmt: skip
        ((position,),) = await rows(database, "SELECT position FROM connections")
        assert int(position) >= last

    check(databases, sample, service)


@SAMPLED
def test_a_server_starts_records_and_stops(databases: Databases, start: Start, sample: int | None) -> None:
    async def service(database: Database, made: Dropping) -> None:
        async with start(database_url=made.url) as server, httpx.AsyncClient(base_url=server.url) as client:
            for number in range(3):
                while True:
                    event = {"stream": "s", "customerRef": str(number), "idempotencyKey": str(number)}
                    answer = await client.post("/v1/events", json=event)
                    if answer.status_code != 503:
                        break
                    await asyncio.sleep(0.02)
                assert answer.status_code == 200, answer.text
        assert [customer for _, customer in await recorded(database)] == ["0", "1", "2"]

    check(databases, sample, service)
