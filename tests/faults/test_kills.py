"""kill -9 of the server and of its Postgres at random points under load: nothing acknowledged is lost or doubled."""

import asyncio
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.faults.servers import ROOT, Producer, Server, running

PRODUCERS = 4


async def kill_under_load(server: Server, producers: list[Producer], kills: int, seed: int) -> None:
    """Kill one of the two at a random moment, `kills` times, while the producers go on."""
    chance = random.Random(seed)
    sending = [asyncio.create_task(producer.run()) for producer in producers]
    for number in range(kills):
        await asyncio.sleep(chance.uniform(0.05, 0.8))
        if chance.random() < 0.5:
            server.kill()
            if chance.random() < 0.3:
                server.kill_postgres()
            server.start()
        else:
            server.kill_postgres()
        await asyncio.to_thread(server.wait_until_ready)
        if number % 10 == 9:
            print(f"{number + 1} kills, {sum(len(p.acknowledged) for p in producers)} events acknowledged", flush=True)
    await asyncio.sleep(0.5)
    for producer in producers:
        producer.stopping.set()
    await asyncio.gather(*sending)


def read_ledger(server: Server) -> dict[str, int]:
    """Every event of the ledger through the public API; asserts that no key and no sequence comes twice."""
    found: dict[str, int] = {}
    sequences: list[int] = []
    cursor: str | None = None
    while True:
        parameters = {"limit": "1000"} | ({"cursor": cursor} if cursor else {})
        page = httpx.get(f"{server.url}/admin/events", params=parameters, timeout=30).json()
        for event in page["items"]:
            assert event["idempotencyKey"] not in found, f"{event} is there twice"
            found[event["idempotencyKey"]] = event["ingressSequence"]
            sequences.append(event["ingressSequence"])
        cursor = page["next"]
        if cursor is None:
            assert sequences == list(range(1, len(sequences) + 1)), "dense, in order"
            return found


def check(server: Server, producers: list[Producer]) -> int:
    stored = read_ledger(server)
    for producer in producers:
        for key, sequence in producer.acknowledged.items():
            assert stored.get(key) == sequence, (
                f"{key} was acknowledged as {sequence}, the ledger has {stored.get(key)}"
            )
    verified = subprocess.run(
        [sys.executable, "-m", "tidelock", "verify", "--json", "--data", str(server.data)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert json.loads(verified.stdout)["ok"] is True
    return len(stored)


async def prove(data: Path, kills: int) -> None:
    seed = int(os.environ.get("SOAK_SEED", random.randrange(10**6)))
    print(f"seed {seed}")
    with running(data) as server:
        producers = [Producer(server.url, f"p{number}") for number in range(PRODUCERS)]
        await kill_under_load(server, producers, kills, seed)
        events = await asyncio.to_thread(check, server, producers)
        retries = sum(producer.retries for producer in producers)
        print(f"{kills} kills, {events} events in the ledger, {retries} requests sent again")
        assert events > 0


async def test_a_few_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    await prove(tmp_path / "ledger", kills=6)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_a_hundred_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    await prove(tmp_path / "ledger", kills=100)
