"""Kafka beside a server: health and status tell of the mirror, `up` runs it, and the page says what is so."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys

import httpx
import pytest

from tests.cli.commandline import json_lines, run
from tests.faults.servers import ROOT
from tests.javascript import CLIENTS, need_javascript
from tests.mirror.mirrors import consume, mirror_once
from tests.recording import record, sequencing
from tests.serving import Start
from tests.stack import TOPICS, Stack
from tidelock.postgres.database import Database
from tidelock.settings import Settings
from tidelock.settings.groups import KafkaSettings

pytestmark = pytest.mark.stack
#: reads a topic from its beginning; the client is in a directory of its own (see `clients` in pyproject.toml)
KAFKA_PYTHON = """
import itertools, sys
sys.path.append(sys.prefix + "/clients")
from kafka import KafkaConsumer
broker, topic, count = sys.argv[1:]
consumer = KafkaConsumer(topic, bootstrap_servers=broker, auto_offset_reset="earliest")
for message in itertools.islice(consumer, int(count)):
    print(message.value.decode())
consumer.close()
"""
PAGE = (ROOT / "docs" / "kafka.md").read_text()


async def test_health_and_status_show_how_far_the_mirror_is_and_where(start: Start, stack: Stack) -> None:
    settings = Settings(kafka=KafkaSettings(brokers=(stack.kafka,), topic_prefix="health."))
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
    kafka = KafkaSettings(brokers=("127.0.0.1:9",))
    async with (
        start(kafka=kafka, reader_lag_max=1_000_000_000) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        assert (await client.get("/readyz")).status_code == 200
        await client.post("/v1/events", json={"stream": "a"})
        assert (await client.get("/readyz")).status_code == 200
        async with asyncio.timeout(60):
            while (late := await client.get("/readyz")).status_code == 200:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
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
        ({"bootstrap.servers": "x"}, "must be set as `kafka.brokers`"),
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


def test_up_mirrors_by_itself_to_a_kafka_for_development(stack: Stack) -> None:
    events = [{"stream": "mirrored", "customerRef": f"cus_{n}"} for n in range(3)]
    httpx.post(f"{stack.url}/v1/events", json=events).raise_for_status()
    stack.until_caught_up("kafka")
    listed = httpx.get(f"{stack.url}/admin/events", params={"stream": "mirrored"}).json()["items"]
    settings = Settings(kafka=KafkaSettings(brokers=(stack.kafka,), topic_prefix=f"{TOPICS}mirrored"))
    assert [message.value for message in consume(settings)] == listed
    printed = [f"{event['ingressSequence']} {event['customerRef']}" for event in listed]
    assert _printed_by_the_pages_consumer(stack.kafka, f"{TOPICS}mirrored", 3) == printed


def test_consumers_read_the_mirror_as_they_are_installed(stack: Stack) -> None:
    """KafkaJS and kafka-python come without lz4, snappy and zstd, and refuse what is compressed so."""
    need_javascript()
    events = [{"stream": "installed", "data": {"text": "the same again"}} for _ in range(50)]
    httpx.post(f"{stack.url}/v1/events", json=events).raise_for_status()
    stack.until_caught_up("kafka")
    listed = httpx.get(f"{stack.url}/admin/events", params={"stream": "installed"}).json()["items"]
    topic = f"{TOPICS}installed"
    command = ["node", str(CLIENTS / "consume.mjs"), stack.kafka, topic, "50"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert printed.returncode == 0, printed.stderr
    assert list(map(json.loads, printed.stdout.splitlines())) == listed
    command = [sys.executable, "-c", KAFKA_PYTHON, stack.kafka, topic, "50"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert printed.returncode == 0, printed.stderr
    assert list(map(json.loads, printed.stdout.splitlines())) == listed


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
