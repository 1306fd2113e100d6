"""kill -9 of delivering processes while receivers fail in every way: nothing lost, order kept, dead letters complete.

`SOAK_SEED` repeats a run's choices, `SOAK_KILLS` makes the long form longer or shorter.
"""

import asyncio
import os
import random
import sys
import time
from pathlib import Path

import msgspec
import pytest

from tests.faults.deliverer import TERMS
from tests.faults.killing import kills_of_a_soak
from tests.triggers import receiver as replies
from tests.triggers.outboxes import asked, create_trigger, fill, ids_by_key, settled, transition, until
from tests.triggers.receiver import Receiver, Reply, Request, receiving
from tidelock.postgres.database import Database
from tidelock.triggers.outbox import Transition

ROOT = Path(__file__).parent.parent.parent
PROCESSES, KEYS = 2, 15
#: enough for processes to have something under way whenever they are killed
PENDING_MAX = 60
#: what the receiver never takes
POISON = 8


class Deliverers:
    """Processes that deliver, of which one or another is killed and started again."""

    def __init__(self, database: Database, chance: random.Random) -> None:
        self._database = database
        self._chance = chance
        self._processes: list[asyncio.subprocess.Process] = []
        self.kills = 0

    async def start(self) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.faults.deliverer", self._database.url,
            cwd=ROOT, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        self._processes.append(process)

    async def kill(self) -> None:
        victim = self._processes.pop(self._chance.randrange(len(self._processes)))
        assert victim.returncode is None, "none ends by itself"
        victim.kill()
        await victim.wait()
        self.kills += 1

    async def stop(self) -> None:
        while self._processes:
            await self.kill()


class Moods:
    """A receiver that fails in every way, at random; and some events it never takes."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def __call__(self, request: Request) -> Reply | str:
        if request.payload["data"]["n"] % POISON == 0:
            return Reply(400, b"never")
        if self._chance.random() < 0.75:
            return Reply()
        failures: list[Reply | str] = [
            Reply(500), Reply(429, headers={"Retry-After": "0"}), Reply(302, headers={"Location": "http://127.0.0.1:1"}),
            replies.HANG, replies.CLOSE, replies.CUT, replies.SHORT, replies.GARBAGE,
        ]  # fmt: skip
        return self._chance.choice(failures)


async def feed(
    database: Database, triggers: list[tuple[int, str]], sent: list[Transition], stop: asyncio.Event
) -> None:
    times = dict.fromkeys(((trigger, key) for trigger in triggers for key in range(KEYS)), 0)
    chance = random.Random(1)
    query = f"SELECT count(*) FROM outbox WHERE status = 'pending' HAVING count(*) < {PENDING_MAX}"
    while not stop.is_set():
        batch = []
        for place in chance.sample(list(times), 8):
            times[place] += 1
            batch.append(transition(*place, times[place]))
        await asyncio.to_thread(fill, database, batch)
        sent += batch
        await until(database, query, lambda found: found or stop.is_set())


async def prove(database: Database, kills: int) -> None:
    seed = int(os.environ.get("SOAK_SEED", random.randrange(2**32)))
    print(f"SOAK_SEED={seed}", flush=True)
    chance = random.Random(seed)
    async with receiving(Moods(chance)) as first, receiving(Moods(chance)) as second:
        receivers = {"first": first, "second": second}
        triggers = [(create_trigger(database, name, receiver.url), name) for name, receiver in receivers.items()]
        sent: list[Transition] = []
        stop = asyncio.Event()
        feeding = asyncio.create_task(feed(database, triggers, sent, stop))
        deliverers = Deliverers(database, chance)
        for _ in range(PROCESSES):
            await deliverers.start()
        started = time.monotonic()
        while deliverers.kills < kills:
            # At work: one that has just started sends nothing whose loss would show.
            wanted = len(first.requests) + chance.randrange(10, 40)
            await first.until(lambda wanted=wanted: len(first.requests) > wanted)  # type: ignore[misc]
            await deliverers.kill()
            await deliverers.start()
            if deliverers.kills % 10 == 0:
                print(f"{deliverers.kills} kills, {len(sent)} events, {time.monotonic() - started:.0f} s", flush=True)
        stop.set()
        await feeding
        await settled(database, len(sent), 400)
        await deliverers.stop()
        for trigger_id, name in triggers:
            judge(database, receivers[name], [one for one in sent if one.trigger_id == trigger_id], trigger_id)


def judge(database: Database, receiver: Receiver, sent: list[Transition], trigger_id: int) -> None:
    poison = {one.event_id for one in sent if one.source_timestamp % POISON == 0}
    assert receiver.by_key() == ids_by_key(one for one in sent if one.event_id not in poison), "lost, or out of order"
    expected = {one.event_id: msgspec.json.decode(one.data) for one in sent}
    assert all(request.payload["data"] == expected[request.id] for request in receiver.requests)
    rows = asked(database, f"SELECT event_id, status, attempts FROM outbox WHERE trigger_id = {trigger_id}")
    assert {event_id for event_id, status, _ in rows if status == "dead"} == poison, "dead letters are complete"
    assert {status for _, status, _ in rows} <= {"delivered", "dead"}
    least = 1 + len(TERMS.schedule.delays_s)
    assert all(attempts == least for _, status, attempts in rows if status == "dead")
    repeats = len(receiver.ids()) - len(set(receiver.ids()))
    print(f"{len(sent)} events, {len(poison)} dead, {len(receiver.requests)} requests, {repeats} repeats", flush=True)


@pytest.mark.timeout(600)
async def test_kills_of_delivering_processes_lose_nothing_and_keep_the_order(database: Database) -> None:
    await prove(database, kills=3)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_a_hundred_kills_of_delivering_processes_lose_nothing_and_keep_the_order(database: Database) -> None:
    await prove(database, kills=kills_of_a_soak(100))
