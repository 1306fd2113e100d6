"""Brokers that are absent, go away, are killed or full: nothing is lost, nothing out of order, memory stays small."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path

import pytest

from tests.faults.processes import until
from tests.mirror.mirrors import consume, first_of_each, mirroring, settings_for
from tests.mirror.processes import MirrorProcess, mirror_process
from tests.recording import record, sequencing
from tidelock.ledger.database import Database
from tidelock.ledger.sequencer import Sequencer
from tidelock.mirror.broker import Broker
from tidelock.mirror.proof import MirrorProof
from tidelock.settings import Settings

SEED = 20261116


@pytest.fixture
def own_broker(jars: Path, tmp_path: Path) -> Iterator[Broker]:
    """A broker of this test's own, which it starts."""
    made = Broker(tmp_path / "kafka", jars)
    yield made
    made.stop()


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


async def write(sequencer: Sequencer, name: str, stop: asyncio.Event, pause_s: float = 0.05) -> None:
    chance = random.Random(name)
    number = 0
    while not stop.is_set():
        events = [
            {"stream": chance.choice("abc"), "idempotencyKey": f"{name}/{number}/{n}", "data": "x" * 100}
            for n in range(chance.randint(1, 20))
        ]
        await record(sequencer, *events)
        number += 1
        await asyncio.sleep(pause_s)


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


async def test_brokers_that_are_not_there_at_the_start_are_waited_for(database: Database, own_broker: Broker) -> None:
    settings = settings_for(own_broker)
    async with sequencing(database) as sequencer:
        with mirroring(database, settings) as mirror:
            await record(sequencer, {"idempotencyKey": "1"})
            await asyncio.to_thread(mirror.until_told, "Cannot reach Kafka at")
            await asyncio.to_thread(own_broker.start)
            await asyncio.to_thread(mirror.wait, 1)
    assert [said for said in mirror.told if "Cannot reach" in said] == mirror.told[:1], "it is told once"
    assert_mirrored(database, settings)


async def test_a_broker_that_goes_away_under_load_delays_nobody_and_is_caught_up_with(
    database: Database, own_broker: Broker, tmp_path: Path
) -> None:
    settings = settings_for(own_broker, queue_bytes_max=4 << 20, batch_events_max=1_000)
    await asyncio.to_thread(own_broker.start)
    with mirror_process(database, settings, tmp_path) as mirror:
        async with load(database) as sequencer:
            await asyncio.to_thread(until, lambda: position(database) > 100, "it mirrors")
            before = mirror.memory_mib()
            await asyncio.to_thread(own_broker.kill)
            for number in range(20):
                async with asyncio.timeout(20):
                    await record(
                        sequencer, *({"idempotencyKey": f"{number}/{n}", "data": "y" * 500} for n in range(1_000))
                    )
            await asyncio.sleep(6)
            assert mirror.memory_mib() < before + 100, "events wait in the ledger, not here"
            await asyncio.to_thread(own_broker.start)
        await asyncio.to_thread(until, lambda: position(database) == head(database), "it catches up", 120)
    _, waited, afterwards = mirror.log().partition("events wait in the ledger")
    assert waited
    assert "takes messages again" in afterwards or "mirroring to" in afterwards, "by this producer or the next"
    await asyncio.to_thread(assert_mirrored, database, settings)


@pytest.mark.skipif(
    shutil.which("prlimit") is None and os.environ.get("CI") != "true",
    reason="a small disk is made of a limit on files, by prlimit",
)
async def test_a_broker_that_is_full_is_waited_for_until_it_has_room(database: Database, own_broker: Broker) -> None:
    settings = settings_for(own_broker)
    # Its files may not grow beyond this: what a broker gets from a full disk, too.
    await asyncio.to_thread(own_broker.start, ["prlimit", f"--fsize={16 << 20}"])
    async with sequencing(database) as sequencer:
        with mirroring(database, settings) as mirror:
            for number in range(30):
                data = random.Random(number).randbytes(500_000).hex()
                await record(sequencer, {"idempotencyKey": f"{number}", "data": data})
            await asyncio.to_thread(mirror.until_told, "events wait in the ledger")
            assert mirror.runner.position < 30
            await record(sequencer, {"idempotencyKey": "31"})
            await asyncio.to_thread(own_broker.kill)
            await asyncio.to_thread(own_broker.start)
            await asyncio.to_thread(mirror.wait, 31, 120)
    await asyncio.to_thread(assert_mirrored, database, settings)


def until_it_goes_on(database: Database) -> None:
    before = position(database)
    until(lambda: position(database) > before, "it goes on", 120)


async def killed_again_and_again(
    database: Database, broker: Broker, mirror: MirrorProcess, kills: int, chance: random.Random
) -> None:
    for _ in range(kills):
        await asyncio.to_thread(until_it_goes_on, database)
        await asyncio.sleep(chance.uniform(0, 0.3))
        if chance.random() < 0.7:
            mirror.kill()
            mirror.start()
        else:
            broker.kill()
            await asyncio.sleep(chance.uniform(0, 1))
            await asyncio.to_thread(broker.start)


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(1_800)])])
async def test_a_mirror_and_a_broker_that_are_killed_leave_nothing_out(
    database: Database, own_broker: Broker, tmp_path: Path, kills: int
) -> None:
    print(f"seed {SEED}")
    settings = settings_for(own_broker, partitions=2, batch_events_max=200)
    await asyncio.to_thread(own_broker.start)
    with mirror_process(database, settings, tmp_path) as mirror:
        async with load(database):
            await killed_again_and_again(database, own_broker, mirror, kills, random.Random(SEED))
        await asyncio.to_thread(until, lambda: position(database) == head(database), "it catches up", 120)
    repeats = await asyncio.to_thread(assert_mirrored, database, settings)
    print(f"{head(database)} events, {repeats} of them sent again")
