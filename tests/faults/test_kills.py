"""kill -9 of the server and of its Postgres at random points under load: nothing acknowledged is lost or doubled."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.cli.commandline import run
from tests.faults.killing import Victims, kills_of_a_soak
from tests.faults.servers import Producer, Server, running, until_acknowledged

PRODUCERS = 4
WEIGHTS = {"postgres": 10, "server": 7, "both": 3}


async def kill_under_load(server: Server, producers: list[Producer], kills: int, victims: Victims) -> None:
    """Kill one of the two, or both, at a random moment, `kills` times, while the producers go on."""
    sending = [asyncio.create_task(producer.run()) for producer in producers]
    for number, victim in enumerate(victims.draw(kills), start=1):
        await until_acknowledged(producers, victims.chance.randrange(1, 2_000))
        if victim != "postgres":
            server.kill()
        if victim != "server":
            server.kill_postgres()
        if victim != "postgres":
            server.start()
        victims.count(victim)
        await asyncio.to_thread(server.wait_until_ready)
        if number % 10 == 0:
            print(f"{victims}, {sum(len(p.acknowledged) for p in producers)} events acknowledged", flush=True)
    await until_acknowledged(producers, 100)
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
        page = server.client.get("/admin/events", params=parameters).json()
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
    verified = run(None, "verify", "--json", "--data", server.data)
    assert verified.exit_code == 0, verified.output
    assert json.loads(verified.stdout)["ok"] is True
    return len(stored)


async def prove(data: Path, kills: int) -> None:
    victims = Victims(WEIGHTS)
    with running(data) as server:
        producers = [Producer(server.url, f"p{number}") for number in range(PRODUCERS)]
        await kill_under_load(server, producers, kills, victims)
        # Not on a thread: commands listen to signals.
        events = check(server, producers)
        retries = sum(producer.retries for producer in producers)
        print(f"{victims}, {events} events in the ledger, {retries} requests sent again")
        assert events > 0


async def test_a_few_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    await prove(tmp_path / "ledger", kills=3)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_a_hundred_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    await prove(tmp_path / "ledger", kills=kills_of_a_soak(100))
