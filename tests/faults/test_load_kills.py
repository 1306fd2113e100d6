"""kill -9 of mirror, broker, loader, its JVM and Postgres while events arrive: nothing missing, nothing doubled, one
order in ledger, Kafka, lake and ClickHouse.

`SOAK_SEED` repeats a run's choices, `SOAK_KILLS` makes the long form longer or shorter.
"""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import clickhouse_connect
import duckdb
import pytest

from tests.cli.commandline import run
from tests.faults.killing import Victims, Watched, kills_of_a_soak, started
from tests.faults.processes import found, jvm_of, kill, load_of, mirror_of, until
from tests.faults.servers import Producer, until_acknowledged
from tests.mirror.mirrors import consume, first_of_each
from tidelock.instants import format_instant
from tidelock.mirror.broker import Broker
from tidelock.settings import Settings
from tidelock.settings.groups import KafkaSettings

CONFIG = """
[fold]
enabled = false
[spark]
master = "local[2]"
[load]
driver_memory = "768MiB"
interval = "1s"
batch_events_max = 20000
pause_max = "2s"
[lake]
path = "{data}/lake"
file_events = 10000
[clickhouse]
url = "chdb:{data}/clickhouse"
[kafka]
brokers = ["{broker}"]
partitions = 2
batch_events_max = 200
pause_max = "1s"
"""
START = 1_767_225_600 * 10**9
DAY = 86400 * 10**9
WRITERS = 8
#: mirror and broker are back soonest; the JVM is what loads
WEIGHTS = {"mirror": 4, "broker": 3, "loader": 2, "jvm": 3, "postgres": 1}


class Straggler(Producer):
    """Sends events whose times are in no order."""

    def events(self, keys: list[str]) -> list[dict[str, Any]]:
        return [self._event(key, random.Random(key)) for key in keys]

    def _event(self, key: str, chance: random.Random) -> dict[str, Any]:
        return {
            "stream": chance.choice(["calls", "jobs"]),
            "idempotencyKey": key,
            "ts": format_instant(START + chance.randrange(DAY)),
            "quantity": chance.choice([None, "1", "2.5", "-3.000000001"]),
            "causalityKey": chance.choice([None, "run"]),
            "data": chance.choice([None, {"text": 'x"\n' * chance.randrange(20)}]),
        }


class Loaded(Watched):
    """An `up` with mirror and loader."""

    broker: Broker

    @property
    def mirror(self) -> int | None:
        return mirror_of(self.pid)

    @property
    def loader(self) -> int | None:
        return load_of(self.pid)

    @property
    def jvm(self) -> int | None:
        return jvm_of(self.loader)


@pytest.fixture(scope="module")
def server(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    data = tmp_path_factory.mktemp("loaded")
    broker = Broker(data / "kafka", jars)
    with broker, started(Loaded, jars, data, CONFIG.format(data=data, broker=broker.address)) as server:
        server.broker = broker
        yield server


def admin_events(server: Loaded) -> list[tuple[int, str]]:
    """Everything, as `/admin/events` lists it."""
    listed: list[tuple[int, str]] = []
    after = 0
    while items := server.client.get("/admin/events", params={"after": after, "limit": 1000}).json()["items"]:
        listed += [(item["ingressSequence"], item["idempotencyKey"]) for item in items]
        after = listed[-1][0]
    return listed


def kafka_events(server: Loaded) -> tuple[list[tuple[int, str]], int]:
    """As a plain consumer has them that leaves out repeats, and how many of these there were."""
    received = consume(Settings(kafka=KafkaSettings(brokers=(server.broker.address,))))
    for _, partition in groupby(received, key=lambda message: (message.topic, message.partition)):
        new = list(dict.fromkeys(message.sequence for message in partition))
        assert new == sorted(new), "leaving out repeats, no sequence comes after a later one"
    firsts = first_of_each(received)
    return [(message.sequence, message.value["idempotencyKey"]) for message in firsts], len(received) - len(firsts)


def clickhouse_events(server: Loaded) -> list[tuple[int, str]]:
    """chDB lets one process in, so the loader has left it between two steps, or has ended."""

    def opened() -> Any:
        try:
            return clickhouse_connect.get_client(interface="chdb", path=str(server.data / "clickhouse"))
        except Exception:
            return None

    client = until(opened, "the loader has left ClickHouse")
    order = "ingress_sequence, kafka_partition, kafka_offset"
    try:
        rows = client.query(f"SELECT ingress_sequence, idempotency_key FROM events ORDER BY {order}").result_rows
        return [(int(row[0]), str(row[1])) for row in rows]
    finally:
        client.close()


def lake_events(server: Loaded) -> list[tuple[int, str]]:
    """As it stands in the files: nothing sorts it."""
    with duckdb.connect() as connection:
        files = f"read_parquet('{server.data}/lake/events/*.parquet')"
        return connection.execute(f"SELECT ingress_sequence, idempotency_key FROM {files}").fetchall()


def check(server: Loaded) -> str:
    """The same total order everywhere, and `verify` agrees."""
    # What was killed most has the most to catch up with.
    server.wait_until_read(server.head(), "kafka", "lake", "clickhouse", seconds=1800)
    wanted = admin_events(server)
    assert [sequence for sequence, _ in wanted] == list(range(1, len(wanted) + 1))
    mirrored, repeats = kafka_events(server)
    assert mirrored == wanted
    assert lake_events(server) == wanted
    assert clickhouse_events(server) == wanted
    told = run(
        None, "verify", "--data", server.data, "--config", server.data / "tidelock.toml", "--no-tables", "--json"
    )
    assert told.exit_code == 0, told.output
    return f"{len(wanted)} events in one order in ledger, Kafka ({repeats} messages repeated), lake and ClickHouse"


async def _stopped(producers: list[Straggler], sending: list[asyncio.Task[None]]) -> None:
    for producer in producers:
        producer.stopping.set()
    await asyncio.gather(*sending)


async def kill_one(server: Loaded, producers: list[Straggler], victims: Victims, victim: str) -> None:
    """Anywhere: while it starts, amid a step, between two."""
    await until_acknowledged(producers, victims.chance.randrange(1, 100))
    if victim == "postgres":
        server.kill_postgres()
    elif victim == "broker":
        server.broker.kill()
        await until_acknowledged(producers, victims.chance.randrange(1, 100))
        await asyncio.to_thread(server.broker.start)
    else:
        kill(await asyncio.to_thread(found, lambda: getattr(server, victim), victim))
    victims.count(victim)


def wait_until_at_work(server: Loaded, victim: str) -> None:
    """Until mirror, or loader, has brought on what it brings on."""
    names = ("kafka",) if victim in ("mirror", "broker") else ("lake", "clickhouse")
    before = server.reached()
    until(lambda: any(server.reached().get(name, 0) > before.get(name, 0) for name in names), f"{names} go on", 300)


async def prove(server: Loaded, victims: Victims, wanted: Sequence[str]) -> None:
    await asyncio.to_thread(server.wait_until_ready, 120)
    assert list(await asyncio.to_thread(server.positions)) == ["kafka", "clickhouse", "lake"]
    begun = time.monotonic()
    producers = [Straggler(server.url, f"{victims.seed}/{number}") for number in range(WRITERS)]
    for producer in producers:
        producer.pause_s = 1.5
    sending = [asyncio.create_task(producer.run()) for producer in producers]
    for number, victim in enumerate(wanted, start=1):
        if number % 2:
            # At work again; every other time it is hit while it still starts.
            await asyncio.to_thread(wait_until_at_work, server, victim)
        await kill_one(server, producers, victims, victim)
        if number % 5 == 0:
            head = await asyncio.to_thread(server.head)
            print(f"{victims}, {head} events, {time.monotonic() - begun:.0f} s", flush=True)
    await _stopped(producers, sending)
    # Not on a thread: commands listen to signals.
    compared = check(server)
    print(f"{victims} in {time.monotonic() - begun:.0f} s: {compared}", flush=True)


@pytest.mark.timeout(600)
async def test_kills_of_what_mirrors_and_loads_leave_one_order_of_eight_writers_everywhere(server: Loaded) -> None:
    victims = Victims(WEIGHTS)
    # The JVM comes first: it takes longest to be back, and the others are hit meanwhile.
    await prove(server, victims, ["jvm", "mirror", "broker", "postgres"])


@pytest.mark.soak
@pytest.mark.timeout(7200)
async def test_fifty_kills_of_what_mirrors_and_loads_change_nothing(server: Loaded) -> None:
    victims = Victims(WEIGHTS)
    await prove(server, victims, victims.draw(kills_of_a_soak(50)))
