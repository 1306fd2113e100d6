"""kill -9 of the loader, of its JVM and of Postgres while events arrive: nothing missing, nothing doubled, one order.

`SOAK_SEED` repeats a run's choices.
"""

import asyncio
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clickhouse_connect
import duckdb
import httpx
import pytest

from tests.faults.processes import gone, jvm_of, kill, load_of, until
from tests.faults.servers import ROOT, Producer, Server
from tidelock.instants import format_instant

CONFIG = """
[fold]
enabled = false
[spark]
master = "local[2]"
[load]
driver_memory = "768MiB"
interval = "200ms"
batch_events_max = 5000
[lake]
path = "{data}/lake"
file_events = 1000
[clickhouse]
url = "chdb:{data}/clickhouse"
"""
START = 1_767_225_600 * 10**9
DAY = 86400 * 10**9
WRITERS = 8


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


class Loaded(Server):
    """An `up` with its loader."""

    @property
    def loader(self) -> int | None:
        return load_of(self.pid)

    @property
    def jvm(self) -> int | None:
        return jvm_of(self.loader)

    def health(self) -> dict[str, Any] | None:
        try:
            found = httpx.get(f"{self.url}/admin/event-health", timeout=10).json()
            return found if found["readers"] else None
        except (httpx.TransportError, ValueError, KeyError):
            return None

    def head(self) -> int:
        until(self.health, "the ledger answers")
        found = self.health()
        return int(found["head"]["ingressSequence"]) if found else self.head()

    def wait_until_loaded(self, sequence: int) -> None:
        def loaded() -> bool:
            found = self.health()
            return found is not None and all(each["ingressSequence"] >= sequence for each in found["readers"])

        until(loaded, f"loaded through {sequence}, with the log\n{self.log()}", 240)


@pytest.fixture(scope="module")
def server(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    data = tmp_path_factory.mktemp("loaded")
    shutil.copytree(jars / "jars", data / "jars", ignore=shutil.ignore_patterns("kafka*"))
    config = data / "tidelock.toml"
    config.write_text(CONFIG.format(data=data))
    server = Loaded(data, config)
    server.start()
    try:
        yield server
    finally:
        if not gone(server.pid):
            assert server.stop() == 0, server.log()


def admin_events(server: Loaded) -> list[tuple[int, str]]:
    """Everything, as `/admin/events` lists it."""
    found: list[tuple[int, str]] = []
    after = 0
    while items := httpx.get(f"{server.url}/admin/events", params={"after": after, "limit": 1000}).json()["items"]:
        found += [(item["ingressSequence"], item["idempotencyKey"]) for item in items]
        after = found[-1][0]
    return found


def clickhouse_events(server: Loaded) -> list[tuple[int, str]]:
    """chDB lets one process in, so the loader has left it between two steps, or has ended."""
    deadline = time.monotonic() + 60
    order = "ingress_sequence, kafka_partition, kafka_offset"
    while True:
        try:
            client = clickhouse_connect.get_client(interface="chdb", path=str(server.data / "clickhouse"))
        except Exception:
            assert time.monotonic() < deadline
            time.sleep(0.1)
            continue
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


def check(server: Loaded) -> int:
    """The same total order everywhere, and `verify` agrees."""
    server.wait_until_loaded(server.head())
    wanted = admin_events(server)
    assert [sequence for sequence, _ in wanted] == sorted({sequence for sequence, _ in wanted})
    assert lake_events(server) == wanted
    assert clickhouse_events(server) == wanted
    flags = ["--data", str(server.data), "--config", str(server.data / "tidelock.toml"), "--no-tables", "--json"]
    told = subprocess.run(
        [sys.executable, "-m", "tidelock", "verify", *flags], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr
    return len(wanted)


async def send(server: Loaded, name: str, seconds: float) -> None:
    producers = [Straggler(server.url, f"{name}/{number}") for number in range(WRITERS)]
    sending = [asyncio.create_task(producer.run()) for producer in producers]
    await asyncio.sleep(seconds)
    for producer in producers:
        producer.stopping.set()
    await asyncio.gather(*sending)


@pytest.mark.timeout(600)
async def test_eight_writers_are_in_one_order_everywhere(server: Loaded) -> None:
    await asyncio.to_thread(server.wait_until_ready, 120)
    names = [each["name"] for each in (await asyncio.to_thread(server.health) or {})["readers"]]
    assert names == ["clickhouse", "lake"]
    await send(server, "order", 2)
    assert await asyncio.to_thread(check, server) > 100


class Killer:
    """Kills what loads, again and again."""

    def __init__(self, server: Loaded, seed: int) -> None:
        self._server = server
        self._chance = random.Random(seed)

    def victims(self, kills: int) -> list[str]:
        """Mostly the JVM, which is back soonest; each kind where there are enough."""
        kinds = ["jvm", "loader", "postgres"]
        wanted = [*kinds, *self._chance.choices(kinds, [4, 4, 1], k=kills)][:kills]
        self._chance.shuffle(wanted)
        return wanted

    def kill(self, victim: str) -> None:
        # Anywhere: while it starts, amid a step, between two.
        time.sleep(self._chance.uniform(0, 4))
        if victim == "postgres":
            self._server.kill_postgres()
            return
        found = (lambda: self._server.jvm) if victim == "jvm" else (lambda: self._server.loader)
        until(found, f"{victim} runs", 120)
        if (pid := found()) is not None:
            kill(pid)


async def prove(server: Loaded, kills: int) -> None:
    seed = int(os.environ.get("SOAK_SEED", random.randrange(10**6)))
    print(f"SOAK_SEED={seed}")
    killer = Killer(server, seed)
    producers = [Straggler(server.url, f"{seed}/{kills}/{number}") for number in range(WRITERS)]
    for producer in producers:
        producer.pause_s = 1.5
    sending = [asyncio.create_task(producer.run()) for producer in producers]
    for number, victim in enumerate(killer.victims(kills), start=1):
        if number % 2:
            # At work again; every other time it is hit while it still starts.
            await asyncio.to_thread(server.wait_until_loaded, await asyncio.to_thread(server.head))
        await asyncio.to_thread(killer.kill, victim)
        if number % 10 == 0:
            print(f"{number} kills, {await asyncio.to_thread(server.head)} events", flush=True)
    for producer in producers:
        producer.stopping.set()
    await asyncio.gather(*sending)
    events = await asyncio.to_thread(check, server)
    print(f"{kills} kills, {events} events in one order in ledger, lake and ClickHouse")


@pytest.mark.timeout(900)
async def test_a_few_kills_of_what_loads_change_nothing(server: Loaded) -> None:
    await prove(server, kills=3)


@pytest.mark.soak
@pytest.mark.timeout(7200)
async def test_fifty_kills_of_what_loads_change_nothing(server: Loaded) -> None:
    await prove(server, kills=50)
