"""kill -9 of server, fold, its JVM and Postgres while events arrive: tables, changes and webhooks are the model's.

So are tables and changes where the fold is killed while it makes tables anew by changed definitions, and swaps them.

`SOAK_SEED` repeats a run's choices, `SOAK_KILLS` makes the long form longer or shorter.
`SOAK_BACKLOG` is how many events wait when kills every few seconds begin.
"""

import asyncio
import os
import random
import signal
import time
import tomllib
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from tests.faults.killing import Victims, Watched, kills_of_a_soak, started
from tests.faults.processes import fold_of, found, gone, jvm_of, kill, until
from tests.faults.servers import Producer, until_acknowledged
from tests.faults.told import SETTINGS, telling
from tests.fold.folding import differences, expected, pictured
from tests.fold.redefine.definition_changes import leftovers, modelled, picture
from tests.ledgers import read_ledger
from tests.model import fold
from tests.model.triggers import Transition, Triggers, transitions
from tidelock.changes.reader import read_changes
from tidelock.definitions import parse_definitions
from tidelock.instants import format_instant
from tidelock.tables import tables_of

CONFIG = f"""
{SETTINGS}
[spark]
master = "local[2]"
driver_memory = "768MiB"

[meters]
lateness = "6h"
[meters.calls]
group_by = ["data.region"]
[meters.calls_peak]
stream = "calls"
aggregation = "max"
period = "day"
lateness = "1h"
[meters.calls_last]
stream = "calls"
aggregation = "last"
period = "hour"
lateness = "5m"
where = {{ quantity = {{ _gt = 3 }} }}
[meters.device_events]
stream = "devices"
aggregation = "count"
live = false

[streams.calls]
ordered = true
eventtime = {{ column = "occurred_at", late_tolerance = "36h" }}
[windows.calls_by_region]
stream = "calls"
window = {{ tumbling = "3h" }}
eventtime = {{ enabled = true, late_tolerance = "30h" }}
group_by = ["data.region"]
select = {{ calls = "count(*)", used = "sum(quantity)", latest = "last(quantity)" }}

[streams.devices]
key = ["site", "number"]
[streams.devices.columns]
site = "string"
number = "bigint"
level = "decimal(10,2)"
"""
DEFINITIONS = tomllib.loads(CONFIG)
#: what may be changed, and what to
CHANGES = {
    'aggregation = "max"': ['aggregation = "avg"', 'aggregation = "count"'],
    'period = "day"': ['period = "week"', 'period = "hour"'],
    'tumbling = "3h"': ['tumbling = "2h"', 'hopping = ["4h", "2h"]'],
    'late_tolerance = "36h"': ['late_tolerance = "20h"', 'late_tolerance = "40h"'],
    'key = ["site", "number"]': ['key = "number"', 'key = ["number", "site"]'],
}
TABLES = tables_of(parse_definitions(DEFINITIONS))
DAY = 86400 * 10**9
START = 1_767_225_600 * 10**9
BUSY_S, QUIET_S = 0.05, 1.0
#: mostly the JVM, since a fold that was killed is started after a pause
WEIGHTS = {"jvm": 3, "fold": 2, "early": 2, "postgres": 1, "server": 2}


class Customer(Producer):
    """Sends usage, late now and then, and rows of devices that come, change and go."""

    def events(self, keys: list[str]) -> list[dict[str, Any]]:
        return [self._event(key, random.Random(key)) for key in keys[:10]]

    def _event(self, key: str, chance: random.Random) -> dict[str, Any]:
        ts = format_instant(START + chance.randrange(3) * DAY + chance.randrange(DAY))
        event = {"idempotencyKey": key, "tenantId": chance.choice("ab"), "customerRef": chance.choice("xyz"), "ts": ts}
        if chance.random() < 0.6:
            # Some have no quantity, which is an error row.
            quantity = chance.choice([None, "1", "2.5", "-3", "7.000000001"])
            return event | {
                "stream": "calls",
                "quantity": quantity,
                "data": {"region": chance.choice(["eu", "us", None])},
            }
        device = {"site": chance.choice(["s1", 's"2']), "number": chance.randrange(5)}
        if chance.random() < 0.3:
            return event | {"stream": "devices", "op": "delete", "data": device}
        return event | {"stream": "devices", "data": device | {"level": chance.choice([1, 2.5, None, "much"])}}

    def _remember(self, keys: list[str], results: list[dict[str, Any]], attempts: int) -> None:
        super()._remember(keys[: len(results)], results, attempts)


class Folded(Watched):
    """An `up` with its fold."""

    @property
    def fold(self) -> int | None:
        return fold_of(self.pid)

    @property
    def jvm(self) -> int | None:
        return jvm_of(self.fold)

    def wait_until_folded(self, sequence: int) -> None:
        self.wait_until_read(sequence, "fold")

    def folded(self) -> int:
        """How far the fold is, as soon as anybody can say."""
        while not (found := self.positions()):
            time.sleep(0.1)
        return found["fold"]

    def change(self, config: str) -> None:
        """Begin again with other definitions."""
        assert self.stop() == 0, self.log()
        (self.data / "tidelock.toml").write_text(config)
        self.start()

    def ready(self) -> bool:
        try:
            return self.client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def swapping(self) -> bool:
        """Whether an event that changes definitions waits for the fold, or none does any more."""
        asked = {"stream": "_tidelock", "order": "desc", "limit": "1"}
        last = self.client.get("/admin/events", params=asked).json()["items"]
        folded = self.reached().get("fold", 0)
        waits = any(each["data"]["type"] == "definition" and each["ingressSequence"] > folded for each in last)
        return waits or self.ready()

    def folds_begun(self) -> int:
        """How often a fold has begun to work."""
        return (self.data / "up.log").read_text().count("folding from sequence")

    def wait_for_another_fold(self, begun: int) -> int:
        """Until one begins to work beside those that did; how many have by then."""
        until(lambda: self.folds_begun() > begun, f"a fold begins, with the log\n{self.log()}", 300)
        return self.folds_begun()


def one_for_every_table(server: Folded) -> None:
    """Whatever the customers draw: windows that close, what comes too late for them, what cannot be read, and hours
    that are closed for one meter, so that what comes for them later is told of beside what is folded."""
    first, last = START, START + 3 * DAY - 1
    called: dict[str, Any] = {"stream": "calls", "quantity": "4", "data": {"region": "eu"}}
    device = {"site": "s1", "number": 1}
    sent = [(first + number, called) for number in range(10)] + [(last, called), (first, called)]
    sent += [(last, called | {"quantity": None})]
    sent += [(first, {"stream": "devices", "data": device | {"level": level}}) for level in (1, "much")]
    # One after another: what is late is judged by what was recorded before.
    for number, (ts, event) in enumerate(sent):
        common = {"idempotencyKey": f"every/{number}", "tenantId": "a", "customerRef": "x", "ts": format_instant(ts)}
        answer = server.client.post("/v1/events", json=[event | common])
        # Tests share the server: what one has sent is a duplicate for the next.
        assert answer.json()["accepted"] + answer.json()["duplicates"] == 1, answer.text
    closed = {"through": format_instant(first + DAY // 2), "metric": "calls_last"}
    answer = server.client.post("/v1/periods/close", json=closed)
    assert answer.status_code == 200, answer.text


@pytest.fixture(scope="module")
def server(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folded]:
    with started(Folded, jars, tmp_path_factory.mktemp("folded"), CONFIG) as server:
        yield server


def test_events_are_taken_before_the_fold_runs_and_then_the_server_is_ready(server: Folded) -> None:
    # It waits in the middle of its start, so that neither Spark's speed nor the test's matters.
    fold = found(lambda: server.fold, "the fold")
    os.kill(fold, signal.SIGSTOP)
    try:
        until(server.positions, "the API answers")
        assert server.client.get("/readyz").status_code == 503
        sent = server.client.post("/v1/events", json=[{"stream": "calls", "customerRef": "x", "quantity": "1"}])
        assert sent.json()["accepted"] == 1
        assert server.client.get("/readyz").status_code == 503
    finally:
        os.kill(fold, signal.SIGCONT)
    server.wait_until_ready(120)
    server.wait_until_folded(1)


def kill_one(server: Folded, victims: Victims, victim: str) -> None:
    """Now; `early` is the JVM of a fold that has just begun, or begun again."""
    if victim == "postgres":
        server.kill_postgres()
    elif victim == "server":
        # With it those who evaluate triggers and deliver; fold and JVM see it and end.
        server.kill()
        server.start()
    elif victim == "fold":
        kill(found(lambda: server.fold, "the fold"))
    else:
        kill(found(lambda: server.jvm, "its JVM"))
    victims.count(victim)


class Customers:
    """Two of them, who send for the time of a block."""

    def __init__(self, server: Folded, name: str) -> None:
        self._producers = [Customer(server.url, f"{name}/{number}") for number in range(2)]

    async def __aenter__(self) -> Self:
        self.pace(QUIET_S)
        self._sending = [asyncio.create_task(producer.run()) for producer in self._producers]
        return self

    async def __aexit__(self, *_: object) -> None:
        for producer in self._producers:
            producer.stopping.set()
        await asyncio.gather(*self._sending)

    def pace(self, pause_s: float) -> None:
        for producer in self._producers:
            producer.pause_s = pause_s

    async def send(self, more: int) -> None:
        """Until so many more have arrived."""
        await until_acknowledged(self._producers, more)


async def kill_at_work(server: Folded, customers: Customers, victims: Victims, victim: str) -> None:
    """When it has come to what has arrived, and events arrive faster; but `early` is hit while it begins."""
    if victim != "early":
        await asyncio.to_thread(server.wait_until_folded, await asyncio.to_thread(server.head))
        customers.pace(BUSY_S)
    await customers.send(victims.chance.randrange(1, 60 if victim == "early" else 300))
    await asyncio.to_thread(kill_one, server, victims, victim)
    customers.pace(QUIET_S)


def check(server: Folded, definitions: Mapping[str, Any] = DEFINITIONS) -> str:
    server.wait_until_folded(server.head())
    database = server.database
    events = read_ledger(database)
    wanted = expected(fold(events, definitions), definitions)
    tables = tables_of(parse_definitions(definitions))
    held = pictured(database, tables)
    assert differences(held, wanted) == {}
    told = {name for name, table in tables.items() if not table.internal}
    with database.connect_sync() as connection:
        places = [change.place for change in read_changes(connection, after=0) if change.table in told]
    assert places == [(time, table, key, tenant) for time, (table, tenant, key), *_ in wanted.changes]
    assert {table for table, *_ in wanted.rows} == told, "the ledger has something for every table"
    return f"{len(events)} events, {len(wanted.rows)} rows, {len(places)} changes"


@pytest.mark.soak
@pytest.mark.timeout(7200)
async def test_a_hundred_kills_of_what_folds_and_tells_change_nothing(server: Folded) -> None:
    victims, begun = Victims(WEIGHTS), time.monotonic()
    await asyncio.to_thread(server.wait_until_ready, 120)
    await asyncio.to_thread(one_for_every_table, server)
    async with telling(server.url, victims.seed) as told:
        async with Customers(server, f"{victims.seed}") as customers:
            for number, victim in enumerate(victims.draw(kills_of_a_soak(100)), start=1):
                await kill_at_work(server, customers, victims, victim)
                if number % 10 == 0:
                    head = await asyncio.to_thread(server.head)
                    print(f"{victims}, {head} events, {time.monotonic() - begun:.0f} s", flush=True)
            await customers.send(10)
        compared = await asyncio.to_thread(check, server)
        events = await asyncio.to_thread(read_ledger, server.database)
        delivered = await told.check(server.database, transitions(events, DEFINITIONS))
    print(f"{victims} in {time.monotonic() - begun:.0f} s: {compared}, {delivered}")


async def send_backlog(server: Folded, name: str, events: int) -> None:
    """Many, before anything is killed: more than a fold can do between two kills."""
    customer = Customer(server.url, f"{name}/backlog")
    for start in range(0, events, 1000):
        keys = [f"{name}/backlog/{number}" for number in range(start, min(start + 1000, events))]
        sent = [event for tens in range(0, len(keys), 10) for event in customer.events(keys[tens : tens + 10])]
        answer = await asyncio.to_thread(server.client.post, "/v1/events", json=sent, timeout=60)
        assert answer.json()["accepted"] == len(keys)


async def kill_every_few_seconds(server: Folded, kills: int, minutes: int) -> list[int]:
    """Whoever it hits, whether it has begun to work or not, until as many are killed as wanted.

    Gives the fold's cursor at the end of each minute. The moments are random, and who is not there has its turn later:
    to wait for a process and kill it at once would hit every JVM at its birth, and no fold could ever work.
    """
    victims = Victims({"jvm": 1, "fold": 1, "postgres": 1, "server": 1})
    await send_backlog(server, f"{victims.seed}", int(os.environ.get("SOAK_BACKLOG", 50_000)))
    began, apart_s = time.monotonic(), 60 * minutes / kills
    cursors = [await asyncio.to_thread(server.folded)]
    print(f"at first: fold at {cursors[0]} of {await asyncio.to_thread(server.head)}", flush=True)

    async def note_cursors() -> None:
        while True:
            await asyncio.sleep(began + 60 * len(cursors) - time.monotonic())
            cursor, head = await asyncio.to_thread(server.folded), await asyncio.to_thread(server.head)
            print(f"minute {len(cursors)}: fold at {cursor} of {head}, {victims}", flush=True)
            cursors.append(cursor)

    async with Customers(server, f"{victims.seed}/steady") as customers:
        customers.pace(BUSY_S)
        noting = asyncio.create_task(note_cursors())
        wanted = list(victims.draw(kills))
        while wanted:
            await asyncio.sleep(victims.chance.uniform(0, 2 * apart_s))
            there = {"postgres": True, "server": True, "fold": server.fold, "jvm": server.jvm}
            victim = next((each for each in wanted if there[each]), None)
            if victim is not None:
                wanted.remove(victim)
                await asyncio.to_thread(kill_one, server, victims, victim)
        # The minute in which the last one fell is told, too.
        last = int((time.monotonic() - began) / 60) + 1
        await asyncio.to_thread(until, lambda: len(cursors) > last, "the last minute is told", 300)
        noting.cancel()
        await asyncio.gather(noting, return_exceptions=True)
    print(f"{victims} in {time.monotonic() - began:.0f} s", flush=True)
    assert victims.killed == kills
    return cursors


@pytest.mark.soak
@pytest.mark.timeout(7200)
async def test_a_fold_advances_while_something_is_killed_every_few_seconds(server: Folded) -> None:
    await asyncio.to_thread(server.wait_until_ready, 120)
    await asyncio.to_thread(one_for_every_table, server)
    kills = kills_of_a_soak(50)
    cursors = await kill_every_few_seconds(server, kills, minutes=max(2, kills // 5))
    assert all(later > earlier for earlier, later in pairwise(cursors)), "it moved in every minute"
    print(await asyncio.to_thread(check, server))


@pytest.mark.timeout(600)
async def test_kills_of_what_folds_and_tells_and_swaps_change_nothing(server: Folded) -> None:
    """Each once: Postgres; the server, which comes back with other definitions; then the JVM while it starts again,
    and the fold while it swaps the tables."""
    victims = Victims(WEIGHTS)
    await asyncio.to_thread(server.wait_until_ready, 120)
    await asyncio.to_thread(one_for_every_table, server)
    async with telling(server.url, victims.seed) as told:
        async with Customers(server, f"{victims.seed}") as customers:
            await kill_at_work(server, customers, victims, "postgres")
            await customers.send(10)
        compared = await asyncio.to_thread(check, server)
        async with Customers(server, f"{victims.seed}/changing") as customers:
            begun = server.folds_begun()
            (server.data / "tidelock.toml").write_text(changed(0))
            await kill_at_work(server, customers, victims, "server")
            await asyncio.to_thread(kill_one, server, victims, "early")
            await asyncio.to_thread(server.wait_for_another_fold, begun)
            await asyncio.to_thread(until, server.swapping, "the swap begins", 120)
            await asyncio.to_thread(kill_one, server, victims, "fold")
            await customers.send(10)
        delivered = await told.check(server.database, await asyncio.to_thread(check_changed, server))
    print(f"{victims}: {compared} before definitions were changed; {delivered}")


def changed(number: int) -> str:
    """The settings with every change made that may be, each time to something else."""
    config = CONFIG
    for told, others in CHANGES.items():
        config = config.replace(told, others[number % len(others)])
    return config


def check_changed(server: Folded) -> list[Transition]:
    """Tables and changes are the model's, which follows the definitions; gives what triggers must have told."""
    server.wait_until_ready(300)
    server.wait_until_folded(server.head())
    triggers = Triggers()
    unlike = differences(picture(server.database), modelled(server.database, DEFINITIONS, triggers=triggers))
    assert unlike == {}, "\n".join(unlike.values())
    assert [name for name in leftovers(server.database) if "shadow" in name] == []
    return triggers.told


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_kills_while_tables_are_rebuilt_and_swapped_change_nothing(server: Folded) -> None:
    """Of the fold, at any moment from when it begins to make tables anew until they are swapped, again and again."""
    victims, kills = Victims({"fold": 1}), kills_of_a_soak(20)
    customer = Customer(server.url, f"{victims.seed}/changing")
    server.wait_until_ready(300)
    begun, killed, changes = time.monotonic(), 0, 0

    def send() -> None:
        keys = [f"{victims.seed}/{changes}/{killed}/{number}" for number in range(10)]
        assert server.client.post("/v1/events", json=customer.events(keys)).status_code == 200

    send()
    server.wait_until_folded(server.head())
    while killed < kills:
        seen = server.folds_begun()
        server.change(changed(changes))
        changes += 1
        while killed < kills:
            seen = server.wait_for_another_fold(seen)
            # Events that come meanwhile are in the tables of either definitions.
            send()
            if victims.chance.random() < 0.5:
                until(server.swapping, "the swap begins", 120)
                time.sleep(victims.chance.uniform(0, 0.5))
            else:
                time.sleep(victims.chance.uniform(0, 3))
            if server.ready():
                break
            kill_one(server, victims, "fold")
            killed += 1
    check_changed(server)
    print(f"{victims} in {time.monotonic() - begun:.0f} s, while definitions were changed {changes} times")


def test_a_fold_and_its_jvm_end_with_the_server_that_was_killed(server: Folded) -> None:
    server.wait_until_ready(120)
    processes = [found(lambda: server.fold, "the fold"), found(lambda: server.jvm, "its JVM")]
    server.kill()
    until(lambda: all(map(gone, processes)), "fold and JVM have ended", 120)
    until(lambda: not (server.data / "postgres" / "postmaster.pid").exists(), "the last user stops Postgres", 120)
