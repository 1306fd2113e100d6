"""Brokers that are absent, go away, are killed or full: nothing is lost, nothing out of order, memory stays small."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path

import pytest

from tests.dropping import Drop, dropping
from tests.faults.processes import until
from tests.mirror.mirrors import consume, first_of_each, mirroring, settings_for
from tests.mirror.processes import MirrorProcess, mirror_process
from tests.recording import record, sequencing
from tidelock.errors import Unreachable
from tidelock.ledger.sequencer import Sequencer
from tidelock.mirror.broker import Broker
from tidelock.mirror.messages import LedgerPages
from tidelock.mirror.proof import MirrorProof
from tidelock.mirror.runner import Mirror
from tidelock.postgres.database import Database
from tidelock.settings import Settings

SEED = 20261116


@pytest.fixture(scope="module")
def own_broker(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of these tests' own, to be started and killed; one after another, they go on where it is."""
    made = Broker(tmp_path_factory.mktemp("outages"), jars)
    yield made
    made.stop()


@pytest.fixture
def running_broker(own_broker: Broker) -> Broker:
    if not own_broker.running:
        own_broker.start()
    return own_broker


def position(database: Database) -> int:
    with database.connect_sync() as connection:
        row = connection.execute("SELECT sequence FROM cursors WHERE name = 'kafka'").fetchone()
    return row[0] if row else 0


def head(database: Database) -> int:
    with database.connect_sync() as connection:
        row = connection.execute("SELECT ingress_sequence FROM ledger_head").fetchone()
    assert row is not None
    return int(row[0])


def assert_mirrored(database: Database, settings: Settings) -> int:
    """Everything is there, in order; gives how many messages were sent again."""
    received = consume(settings)
    firsts = first_of_each(received)
    with database.connect_sync() as connection:
        keys = connection.execute("SELECT ingress_sequence, idempotency_key FROM events ORDER BY 1").fetchall()
    assert [(message.sequence, message.value["idempotencyKey"]) for message in firsts] == keys
    for _, partition in groupby(received, key=lambda message: (message.topic, message.partition)):
        new = list(dict.fromkeys(message.sequence for message in partition))
        assert new == sorted(new), "leaving out repeats, no sequence comes after a later one"
    proof = MirrorProof(database, settings)
    proof.compare(lambda *_: None)
    assert proof.check().ok, proof.check().detail
    return len(received) - len(firsts)


async def write(sequencer: Sequencer, name: str, stop: asyncio.Event) -> None:
    chance = random.Random(name)
    number = 0
    while not stop.is_set():
        events = [
            {"stream": chance.choice("abc"), "idempotencyKey": f"{name}/{number}/{n}", "data": "x" * 100}
            for n in range(chance.randint(1, 20))
        ]
        await record(sequencer, *events)
        number += 1
        # Not a wait: the load is to be steady, not as heavy as it can be.
        await asyncio.sleep(0.05)


@asynccontextmanager
async def load(database: Database) -> AsyncIterator[Sequencer]:
    """Writers that go on for as long as the block takes."""
    stop = asyncio.Event()
    async with sequencing(database) as sequencer, asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(write(sequencer, f"w{number}", stop))
        try:
            yield sequencer
        finally:
            stop.set()


@pytest.mark.parametrize("commits", [8, pytest.param(300, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
async def test_connections_to_postgres_that_drop_at_any_moment_leave_nothing_out(
    database: Database, broker: Broker, commits: int
) -> None:
    chance, settings = random.Random(SEED), settings_for(broker)
    with dropping(database, None) as made:
        async with sequencing(database) as sequencer:
            with mirroring(made.database, settings) as mirror:
                for number in range(commits):
                    made.arm(chance, 10)
                    await record(sequencer, {"idempotencyKey": f"k{number}"}, {"idempotencyKey": f"l{number}"})
                    await asyncio.to_thread(mirror.wait, 2 * number + 2)
        print(f"{made.drops} drops in {commits} commits, {made.moments} moments")
        assert made.drops
    assert_mirrored(database, settings)


def test_a_ledger_whose_second_connection_drops_keeps_none_open(database: Database) -> None:
    asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tidelock mirror source'"
    with dropping(database, Drop(at=2, refusals=9)) as made:
        with pytest.raises(Unreachable) as kept:
            LedgerPages(made.database, 10, 1000)
        with database.connect_sync() as connection:
            until(lambda: connection.execute(asked).fetchone() == (0,), "the first is closed")
        # What failed still holds on to the connection, so that nobody has collected it.
        assert made.dropped == "connect"
        assert kept.tb is not None


@pytest.mark.parametrize("drops", [3, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
async def test_a_mirror_that_is_run_once_outlives_connections_to_postgres_that_drop(
    database: Database, broker: Broker, drops: int
) -> None:
    chance, settings = random.Random(SEED), settings_for(broker)
    with dropping(database, None) as made:
        async with sequencing(database) as sequencer:
            for number in range(drops):
                await record(sequencer, {"idempotencyKey": f"k{number}"})
                made.arm(chance, 20)
                runner = Mirror(made.database, settings, lambda _: None, patient=False)
                await asyncio.to_thread(runner.run, threading.Event(), through=number + 1)
        print(f"{made.drops} drops in {drops} runs, {made.moments} moments")
        assert made.drops
    assert_mirrored(database, settings)


@pytest.mark.skipif(
    shutil.which("prlimit") is None and os.environ.get("CI") != "true",
    reason="a small disk is made of a limit on files, by prlimit",
)
async def test_a_broker_that_is_absent_at_the_start_and_then_full_is_waited_for(
    database: Database, own_broker: Broker
) -> None:
    settings = settings_for(own_broker)
    await asyncio.to_thread(own_broker.kill)
    async with sequencing(database) as sequencer:
        with mirroring(database, settings) as mirror:
            await record(sequencer, {"idempotencyKey": "1"})
            await asyncio.to_thread(mirror.until_told, "Cannot reach Kafka at")
            # Its files may not grow beyond this: what a broker gets from a full disk, too.
            await asyncio.to_thread(own_broker.start, ["prlimit", f"--fsize={16 << 20}"])
            await asyncio.to_thread(mirror.wait, 1)
            assert [said for said in mirror.told if "Cannot reach" in said] == mirror.told[:1], "it is told once"
            told = len(mirror.told)
            for number in range(30):
                data = random.Random(number).randbytes(500_000).hex()
                await record(sequencer, {"idempotencyKey": f"full/{number}", "data": data})
            await asyncio.to_thread(
                mirror.until,
                lambda: any("events wait in the ledger" in said for said in mirror.told[told:]),
                "it waits",
            )
            assert mirror.runner.position < 31
            await record(sequencer, {"idempotencyKey": "32"})
            await asyncio.to_thread(own_broker.kill)
            await asyncio.to_thread(own_broker.start)
            await asyncio.to_thread(mirror.wait, 32, 120)
    await asyncio.to_thread(assert_mirrored, database, settings)


async def test_a_broker_that_goes_away_under_load_delays_nobody_and_is_caught_up_with(
    database: Database, running_broker: Broker, tmp_path: Path
) -> None:
    settings = settings_for(running_broker, queue_bytes_max=4 << 20, batch_events_max=1_000)
    with mirror_process(database, settings, tmp_path) as mirror:
        async with load(database) as sequencer:
            await asyncio.to_thread(until, lambda: position(database) > 100, "it mirrors")
            before = mirror.memory_mib()
            await asyncio.to_thread(running_broker.kill)
            for number in range(20):
                async with asyncio.timeout(60):
                    await record(
                        sequencer, *({"idempotencyKey": f"{number}/{n}", "data": "y" * 500} for n in range(1_000))
                    )
            await asyncio.to_thread(until, lambda: "events wait in the ledger" in mirror.log(), "it waits")
            assert mirror.memory_mib() < before + 100, "events wait in the ledger, not here"
            await asyncio.to_thread(running_broker.start)
        await asyncio.to_thread(until, lambda: position(database) == head(database), "it catches up", 120)
    afterwards = mirror.log().partition("events wait in the ledger")[2]
    assert "accepts messages again" in afterwards or "mirroring to" in afterwards, "by this producer or the next"
    await asyncio.to_thread(assert_mirrored, database, settings)


def until_it_goes_on(database: Database) -> None:
    before = position(database)
    until(lambda: position(database) > before, "it goes on", 120)


async def killed_again_and_again(
    database: Database, broker: Broker, mirror: MirrorProcess, kills: int, chance: random.Random
) -> None:
    for _ in range(kills):
        await asyncio.to_thread(until_it_goes_on, database)
        if chance.random() < 0.7:
            mirror.kill()
            mirror.start()
        else:
            broker.kill()
            await asyncio.to_thread(broker.start)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
async def test_a_mirror_and_a_broker_that_are_killed_leave_nothing_out(
    database: Database, running_broker: Broker, tmp_path: Path
) -> None:
    """The short form is among the kills of `tests/faults/test_load_kills.py`."""
    print(f"seed {SEED}")
    settings = settings_for(running_broker, partitions=2, batch_events_max=200)
    with mirror_process(database, settings, tmp_path) as mirror:
        async with load(database):
            await killed_again_and_again(database, running_broker, mirror, 50, random.Random(SEED))
        await asyncio.to_thread(until, lambda: position(database) == head(database), "it catches up", 120)
    repeats = await asyncio.to_thread(assert_mirrored, database, settings)
    print(f"{head(database)} events, {repeats} of them sent again")
