"""kill -9 of server, fold, its JVM and Postgres while events arrive: tables, changes and webhooks are the model's.

So are tables and changes where the fold is killed while it makes tables anew by changed definitions, and swaps them.

`SOAK_SEED` repeats a run's choices, `SOAK_KILLS` makes the long form longer or shorter.
"""

import asyncio
import random
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.killing import Victims, Watched, kills_of_a_soak, started
from tests.faults.processes import fold_of, found, gone, jvm_of, kill, until
from tests.faults.servers import Producer
from tests.faults.told import SETTINGS, telling
from tests.ledgers import read_ledger
from tests.model import fold
from tests.spark.definition_changes import leftovers, modelled, picture
from tests.spark.folding import differences, expected, pictured
from tidelock.changes.reader import read_changes
from tidelock.definitions import parse_definitions
from tidelock.fold.tables import tables_of
from tidelock.instants import format_instant
from tidelock.ledger.database import Database
from tidelock.ledger.postgres import EmbeddedPostgres

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

    @property
    def database(self) -> Database:
        return Database(EmbeddedPostgres(self.data, None, {}).url)

    def wait_until_folded(self, sequence: int) -> None:
        self.wait_until_read(sequence, "fold")

    def change(self, config: str) -> None:
        """Begin again with other definitions."""
        assert self.stop() == 0, self.log()
        (self.data / "tidelock.toml").write_text(config)
        self.start()

    def ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    def swapping(self) -> bool:
        """Whether an event that changes definitions waits for the fold, or none does any more."""
        asked = {"stream": "_tidelock", "order": "desc", "limit": "1"}
        last = httpx.get(f"{self.url}/admin/events", params=asked, timeout=10).json()["items"]
        folded = self.positions().get("fold", 0)
        waits = any(each["data"]["type"] == "definition" and each["ingressSequence"] > folded for each in last)
        return waits or self.ready()

    def folds_begun(self) -> int:
        """How often a fold has begun to work."""
        return (self.data / "up.log").read_text().count("folding from sequence")

    def wait_for_another_fold(self, begun: int) -> int:
        """Until one begins to work beside those that did; how many have by then."""
        until(lambda: self.folds_begun() > begun, f"a fold begins, with the log\n{self.log()}", 300)
        return self.folds_begun()


@pytest.fixture(scope="module")
def server(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folded]:
    with started(Folded, jars, tmp_path_factory.mktemp("folded"), CONFIG) as server:
        yield server


def test_events_are_taken_before_the_fold_runs_and_then_the_server_is_ready(server: Folded) -> None:
    until(server.positions, "the API answers")
    waiting = httpx.get(f"{server.url}/readyz")
    assert waiting.status_code == 503, waiting.text
    sent = httpx.post(f"{server.url}/v1/events", json=[{"stream": "calls", "customerRef": "x", "quantity": "1"}])
    assert sent.json()["accepted"] == 1
    assert httpx.get(f"{server.url}/readyz").status_code == 503, "Spark takes longer than a request"
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


async def kill_under_load(server: Folded, producers: list[Customer], kills: int, victims: Victims) -> None:
    _pace(producers, QUIET_S)
    sending = [asyncio.create_task(producer.run()) for producer in producers]
    started = time.monotonic()
    for number, victim in enumerate(victims.draw(kills), start=1):
        if victim != "early":
            # At work again, with what has come meanwhile; then events arrive faster.
            await asyncio.to_thread(server.wait_until_folded, await asyncio.to_thread(server.head))
            _pace(producers, BUSY_S)
        await asyncio.sleep(victims.chance.uniform(0, 8 if victim == "early" else 3))
        await asyncio.to_thread(kill_one, server, victims, victim)
        _pace(producers, QUIET_S)
        if number % 10 == 0:
            head = await asyncio.to_thread(server.head)
            print(f"{victims}, {head} events, {time.monotonic() - started:.0f} s", flush=True)
    await asyncio.sleep(1)
    for producer in producers:
        producer.stopping.set()
    await asyncio.gather(*sending)


def _pace(producers: list[Customer], pause_s: float) -> None:
    for producer in producers:
        producer.pause_s = pause_s


def check(server: Folded) -> str:
    server.wait_until_folded(server.head())
    database = server.database
    events = read_ledger(database)
    wanted = expected(fold(events, DEFINITIONS), DEFINITIONS)
    held = pictured(database, TABLES)
    assert differences(held, wanted) == {}
    told = {name for name, table in TABLES.items() if not table.internal}
    with database.connect_sync() as connection:
        places = [change.place for change in read_changes(connection, after=0) if change.table in told]
    assert places == [(time, table, key, tenant) for time, (table, tenant, key), *_ in wanted.changes]
    assert {table for table, *_ in wanted.rows} == told, "the ledger has something for every table"
    return f"{len(events)} events, {len(wanted.rows)} rows, {len(places)} changes"


async def prove(server: Folded, kills: int) -> None:
    victims = Victims(WEIGHTS)
    await asyncio.to_thread(server.wait_until_ready, 120)
    begun = time.monotonic()
    producers = [Customer(server.url, f"{victims.seed}/{kills}/{number}") for number in range(2)]
    async with telling(server.url, victims.seed) as told:
        await kill_under_load(server, producers, kills, victims)
        compared = await asyncio.to_thread(check, server)
        delivered = await told.check(await asyncio.to_thread(read_ledger, server.database), DEFINITIONS)
    print(f"{victims} in {time.monotonic() - begun:.0f} s: {compared}, {delivered}")


@pytest.mark.timeout(900)
async def test_a_few_kills_of_what_folds_and_tells_change_nothing(server: Folded) -> None:
    await prove(server, kills=3)


@pytest.mark.soak
@pytest.mark.timeout(7200)
async def test_a_hundred_kills_of_what_folds_and_tells_change_nothing(server: Folded) -> None:
    await prove(server, kills=kills_of_a_soak(100))


def kill_while_changing(server: Folded, kills: int) -> None:
    """The fold, at any moment from when it begins to make tables anew until they are swapped, of one change or more."""
    victims = Victims({"fold": 1})
    customer = Customer(server.url, f"{victims.seed}/changing")
    server.wait_until_ready(300)
    begun, killed, changes = time.monotonic(), 0, 0

    def send() -> None:
        keys = [f"{victims.seed}/{changes}/{killed}/{number}" for number in range(10)]
        assert httpx.post(f"{server.url}/v1/events", json=customer.events(keys), timeout=20).status_code == 200

    send()
    server.wait_until_folded(server.head())
    while killed < kills:
        config = CONFIG
        for told, others in CHANGES.items():
            config = config.replace(told, others[changes % len(others)])
        seen, changes = server.folds_begun(), changes + 1
        server.change(config)
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
            kill(found(lambda: server.fold, "the fold"))
            victims.count("fold")
            killed += 1
    server.wait_until_ready(300)
    server.wait_until_folded(server.head())
    unlike = differences(picture(server.database), modelled(server.database, DEFINITIONS))
    assert unlike == {}, "\n".join(unlike.values())
    assert [name for name in leftovers(server.database) if "shadow" in name] == []
    print(f"{victims} in {time.monotonic() - begun:.0f} s, while definitions were changed {changes} times")


@pytest.mark.timeout(900)
def test_kills_while_tables_are_made_anew_and_swapped_change_nothing(server: Folded) -> None:
    kill_while_changing(server, kills=1)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_kills_while_tables_are_made_anew_and_swapped_change_nothing(server: Folded) -> None:
    kill_while_changing(server, kills=kills_of_a_soak(20))


def test_a_fold_and_its_jvm_end_with_the_server_that_was_killed(server: Folded) -> None:
    server.wait_until_ready(120)
    processes = [found(lambda: server.fold, "the fold"), found(lambda: server.jvm, "its JVM")]
    server.kill()
    until(lambda: all(map(gone, processes)), "fold and JVM have ended", 20)
    until(lambda: not (server.data / "postgres" / "postmaster.pid").exists(), "the last user stops Postgres", 20)
