"""Kafka beside a server: health and status tell of the mirror, `up` runs it, and the page says what is so."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.commandline import json_lines, run
from tests.e2e.conftest import Start
from tests.faults.processes import until
from tests.faults.servers import ROOT, Server
from tests.mirror.mirrors import consume, mirror_once, settings_for
from tests.recording import record, sequencing
from tidelock.ledger.database import Database
from tidelock.mirror.broker import Broker
from tidelock.settings import Settings
from tidelock.settings.kafka import Kafka

PAGE = (ROOT / "docs" / "kafka.md").read_text()


async def test_health_and_status_tell_how_far_the_mirror_is_and_where(start: Start, broker: Broker) -> None:
    settings = settings_for(broker)
    async with start(kafka=settings.kafka) as server, httpx.AsyncClient(base_url=server.url) as client:
        await client.post("/v1/events", json=[{"stream": "a"}, {"stream": "b"}, {"stream": "a"}])
        for path in ("/readyz", "/admin/event-health"):
            (reader,) = (await client.get(path)).json()["readers"]
            assert (reader["name"], reader["ingressSequence"], reader["lagSequences"]) == ("kafka", 0, 3)
        assert (await client.get("/admin/event-health")).json()["kafka"] == []
        database = server.ledger.database
        await asyncio.to_thread(mirror_once, database, settings)
        caught_up = {"name": "kafka", "ingressSequence": 3, "lagSequences": 0, "lagSeconds": 0.0}
        assert (await client.get("/readyz")).json()["readers"] == [caught_up]
        ranges = [
            {"topic": f"{settings.kafka.topic_prefix}{stream}", "partition": 0, "firstOffset": 0, "lastOffset": last,
             "firstSequence": 1, "lastSequence": 3}
            for stream, last in (("a", 1), ("b", 0))
        ]  # fmt: skip
        assert (await client.get("/admin/event-health")).json()["kafka"] == ranges
        assert 'tidelock_reader_sequence{reader="kafka"} 3.0' in (await client.get("/metrics")).text
        (status,) = json_lines(await asyncio.to_thread(run, database, "status", "--json"))
        assert status["kafka"] == ranges
        shown = (await asyncio.to_thread(run, database, "status")).output
        assert f"{settings.kafka.topic_prefix}a" in shown


async def test_a_reader_that_is_too_far_behind_makes_the_server_not_ready(start: Start) -> None:
    kafka = Kafka(brokers=("127.0.0.1:9",))
    async with (
        start(kafka=kafka, reader_lag_max=1_000_000_000) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        assert (await client.get("/readyz")).status_code == 200
        await client.post("/v1/events", json={"stream": "a"})
        assert (await client.get("/readyz")).status_code == 200
        await asyncio.sleep(1.2)
        late = await client.get("/readyz")
        assert late.status_code == 503
        assert late.json()["readers"][0]["lagSeconds"] > 1


async def test_without_a_mirror_health_says_nothing_of_one(start: Start) -> None:
    async with start() as server, httpx.AsyncClient(base_url=server.url) as client:
        assert "kafka" not in (await client.get("/admin/event-health")).json()


def test_without_brokers_the_mirror_says_how_to_name_them(database: Database) -> None:
    result = run(database, "mirror")
    assert result.exit_code == 2
    assert "TIDELOCK_KAFKA_BROKERS" in result.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"acks": "1"}, "`acks` in `kafka.options` cannot be changed"),
        ({"batch.size": "1"}, "`batch.size` in `kafka.options` cannot be changed"),
        ({"bootstrap.servers": "x"}, "is the setting `kafka.brokers`"),
        ({"no.such.option": "1"}, 'No such configuration property: "no.such.option"'),
    ],
)
def test_options_that_cannot_be_are_refused(database: Database, options: dict[str, str], said: str) -> None:
    env = {"TIDELOCK_KAFKA_BROKERS": "127.0.0.1:9", "TIDELOCK_KAFKA_OPTIONS": json.dumps(options)}
    result = run(database, "mirror", "--once", env=env)
    assert result.exit_code == 2, result.output
    assert said in result.output


async def test_once_without_a_broker_is_an_error_for_scripts(database: Database) -> None:
    async with sequencing(database) as sequencer:
        await record(sequencer, {})
    result = run(database, "mirror", "--once", "--kafka-brokers", "127.0.0.1:9")
    assert result.exit_code == 3, result.output
    assert "Cannot reach Kafka at 127.0.0.1:9" in result.output


@contextmanager
def dev_kafka(jars: Path) -> Iterator[str]:
    """`tidelock dev kafka` as people run it; gives its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tidelock", "dev", "kafka", "--port", "0", "--data", str(jars)],
        cwd=ROOT, env=os.environ | {"NO_COLOR": "1"}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if found := re.search(r"Kafka is up at (\S+)\.", line):
                yield found[1]
                break
        else:
            raise AssertionError("it did not start")
    finally:
        process.terminate()
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said


@pytest.mark.timeout(400)
def test_up_mirrors_by_itself_to_a_kafka_for_development(
    jars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dev_kafka(jars) as address:
        monkeypatch.setenv("TIDELOCK_KAFKA_BROKERS", address)
        prefix = f"up{time.time_ns()}."
        monkeypatch.setenv("TIDELOCK_KAFKA_TOPIC_PREFIX", prefix)
        server = Server(tmp_path)
        server.start()
        try:
            server.wait_until_ready()
            events = [{"stream": "api_calls", "customerRef": f"cus_{n}"} for n in range(3)]
            httpx.post(f"{server.url}/v1/events", json=events).raise_for_status()
            until(lambda: _lag(server.url) == 0, "it is mirrored", 120)
            listed = httpx.get(f"{server.url}/admin/events").json()["items"]
        finally:
            assert server.stop() == 0, server.log()
        settings = Settings(kafka=Kafka(brokers=(address,), topic_prefix=prefix))
        assert [message.value for message in consume(settings)] == listed
        assert _printed_by_the_pages_consumer(address, f"{prefix}api_calls", 3) == ["1 cus_0", "2 cus_1", "3 cus_2"]


def _lag(url: str) -> int:
    readers: list[dict[str, Any]] = httpx.get(f"{url}/readyz").json()["readers"]
    return next(int(reader["lagSequences"]) for reader in readers if reader["name"] == "kafka")


def _printed_by_the_pages_consumer(address: str, topic: str, lines: int) -> list[str]:
    (script,) = re.findall(r"^```text\n(from confluent_kafka.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    script = script.replace("127.0.0.1:9092", address).replace("tidelock.api_calls", topic)
    process = subprocess.Popen([sys.executable, "-u", "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        return [process.stdout.readline().strip() for _ in range(lines)]
    finally:
        process.kill()
        process.stdout.close()
        process.wait()
