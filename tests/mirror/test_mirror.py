"""The mirror: every event in Kafka, in order, in the shapes that consumers rely on."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from itertools import groupby
from typing import Any

import msgspec
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from tests.mirror.mirrors import consume, first_of_each, mirror_once, mirroring, settings_for
from tests.recording import record, rows, sequencing
from tidelock.instants import MILLISECOND, parse_rfc3339
from tidelock.ledger.reader import Slice, read_events
from tidelock.mirror.broker import Broker
from tidelock.postgres.database import Database


async def events_of(database: Database) -> list[dict[str, Any]]:
    """The ledger as `/admin/events` has it."""
    async with await database.connect() as connection:
        found = await read_events(connection, Slice(), limit=1_000_000)
    return [msgspec.json.decode(msgspec.json.encode(event)) for event in found]


async def test_a_message_has_the_events_shape_its_key_its_time_and_its_headers(
    database: Database, broker: Broker
) -> None:
    settings = settings_for(broker)
    async with sequencing(database) as sequencer:
        await record(
            sequencer,
            {"stream": "calls", "causalityKey": "run-42", "idempotencyKey": "ü", "data": {"b": 1.10, "a": [None]},
             "ts": "2026-01-31T23:59:59.5Z", "quantity": "1.50", "customerRef": "cus_1", "source": "sdk"},
            {"stream": "calls", "ts": "2020-01-01T00:00:00Z"},
            {"stream": "calls"},
        )  # fmt: skip
    await asyncio.to_thread(mirror_once, database, settings)
    received = await asyncio.to_thread(consume, settings)
    assert [message.value for message in received] == await events_of(database)
    assert {message.topic for message in received} == {f"{settings.kafka.topic_prefix}calls"}
    assert [message.key for message in received] == [b"run-42", b"2", b"3"]
    first = received[0]
    assert first.timestamp == parse_rfc3339(first.value["receivedAt"]) // MILLISECOND
    (digest,) = await rows(database, "SELECT encode(digest, 'hex') FROM commits")
    assert first.headers == [
        ("ingress-sequence", b"1"),
        ("idempotency-key", "ü".encode()),
        ("commit-digest", digest[0].encode()),
    ]
    keys = [dict(message.headers)["idempotency-key"] for message in received]
    assert keys[1] == received[1].value["idempotencyKey"].encode()
    assert keys[2] is None, "an event without identity"


async def test_data_is_the_text_that_was_sent(database: Database, broker: Broker) -> None:
    settings = settings_for(broker)
    async with sequencing(database) as sequencer:
        body = '{"z":1.10,  "a":"\\u00fc", "z":12345678901234567890.5}'
        await record(sequencer, {"data": msgspec.Raw(body.encode())})
    await asyncio.to_thread(mirror_once, database, settings)
    async with await database.connect() as connection:
        (event,) = await read_events(connection, Slice(), limit=10)
    (message,) = await asyncio.to_thread(consume, settings)
    assert message.text == msgspec.json.encode(event)
    assert f'"data":{body},'.encode() in message.text


async def test_every_stream_has_a_topic_that_forgets_nothing(database: Database, broker: Broker) -> None:
    settings = settings_for(broker, partitions=3)
    async with sequencing(database) as sequencer:
        await record(sequencer, {"stream": "a.b"}, {"stream": "a_b"}, {"stream": "a b"}, {"stream": "x" * 255})
    await asyncio.to_thread(mirror_once, database, settings)
    received = await asyncio.to_thread(consume, settings)
    assert [message.value for message in first_of_each(received)] == await events_of(database)
    assert len({message.topic for message in received}) == 4
    admin = AdminClient({"bootstrap.servers": broker.address})
    topic = f"{settings.kafka.topic_prefix}a.b"
    (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    config = found.result()
    assert config["retention.ms"].value == "-1"
    assert int(config["max.message.bytes"].value) > settings.event_bytes_max
    assert config["message.timestamp.type"].value == "CreateTime"
    assert len(admin.list_topics(timeout=10).topics[topic].partitions) == 3


async def test_eight_writers_and_clocks_that_disagree_leave_one_order_that_kafka_has_too(
    database: Database, broker: Broker
) -> None:
    settings = settings_for(broker, partitions=4, batch_events_max=50)
    chance = random.Random(9)

    async def write(sequencer: Any, writer: int) -> None:
        for number in range(20):
            await record(
                sequencer,
                *(
                    {"stream": chance.choice(["a", "b", "c"]), "customerRef": f"{writer}",
                     "ts": f"2026-01-{chance.randint(1, 28):02}T00:00:00Z", "idempotencyKey": f"{writer}/{number}/{n}",
                     "causalityKey": chance.choice([None, f"run-{writer % 3}"])}
                    for n in range(chance.randint(1, 9))
                ),
            )  # fmt: skip

    async with sequencing(database) as sequencer:
        with mirroring(database, settings) as mirror:
            await asyncio.gather(*(write(sequencer, number) for number in range(8)))
            expected = await events_of(database)
            await asyncio.to_thread(mirror.wait, expected[-1]["ingressSequence"])
    received = await asyncio.to_thread(consume, settings)
    assert [message.value for message in first_of_each(received)] == expected
    assert len(received) == len(expected), "nothing was lost, so nothing is there twice"
    for _, partition in groupby(received, key=lambda message: (message.topic, message.partition)):
        sequences = [message.sequence for message in partition]
        assert sequences == sorted(sequences)
    by_key: dict[tuple[str, bytes], set[int]] = {}
    for message in received:
        by_key.setdefault((message.topic, message.key), set()).add(message.partition)
    assert all(len(partitions) == 1 for partitions in by_key.values()), "a key stays in its partition"
    assert len({message.partition for message in received}) == 4


async def test_what_was_acknowledged_is_recorded_with_its_partitions_and_offsets(
    database: Database, broker: Broker
) -> None:
    settings = settings_for(broker, partitions=2)
    async with sequencing(database) as sequencer:
        for number in range(5):
            await record(sequencer, *({"stream": f"s{n % 3}"} for n in range(10)))
            await asyncio.to_thread(mirror_once, database, settings)
            assert await rows(database, "SELECT sequence FROM cursors WHERE name = 'kafka'") == [(10 * number + 10,)]
    ranges = await rows(database, "SELECT * FROM mirrored ORDER BY last_sequence, topic, partition")
    assert {(first, last) for first, last, *_ in ranges} == {(10 * n + 1, 10 * n + 10) for n in range(5)}
    for message in await asyncio.to_thread(consume, settings):
        place = (message.topic, message.partition)
        (held,) = [
            (first, last) for first, last, *where, low, high in ranges
            if tuple(where) == place and low <= message.offset <= high
        ]  # fmt: skip
        assert held[0] <= message.sequence <= held[1]


async def test_neighbouring_ranges_are_joined_while_they_are_small(database: Database, broker: Broker) -> None:
    settings = settings_for(broker)
    async with sequencing(database) as sequencer:
        with mirroring(database, settings) as mirror:
            for number in range(1, 11):
                await record(sequencer, {})
                await asyncio.to_thread(mirror.wait, number)
    topic = f"{settings.kafka.topic_prefix}s"
    assert await rows(database, "SELECT * FROM mirrored") == [(1, 10, topic, 0, 0, 9)]


async def test_control_events_are_mirrored_too(database: Database, broker: Broker) -> None:
    settings = settings_for(broker)
    async with sequencing(database) as sequencer:
        await record(sequencer, {})
        await sequencer.control({"type": "tick"})
    await asyncio.to_thread(mirror_once, database, settings)
    received = first_of_each(await asyncio.to_thread(consume, settings))
    assert [message.topic.removeprefix(settings.kafka.topic_prefix) for message in received] == ["s", "_tidelock"]
    assert received[1].value["data"]["type"] == "tick"


async def test_many_events_arrive_where_only_small_ones_are_taken(database: Database, broker: Broker) -> None:
    """The limit of a topic is of what is sent as one."""
    settings = replace(settings_for(broker), event_bytes_max=1 << 10)
    chance = random.Random(7)
    async with sequencing(database) as sequencer:
        await record(sequencer, *({"data": chance.randbytes(500).hex()} for _ in range(400)))
    await asyncio.wait_for(asyncio.to_thread(mirror_once, database, settings), 60)
    assert len(await asyncio.to_thread(consume, settings)) == 400


async def test_a_large_event_and_a_commit_larger_than_a_page_arrive(database: Database, broker: Broker) -> None:
    settings = settings_for(broker, batch_events_max=7, batch_bytes_max=1 << 10, queue_bytes_max=4 << 20)
    async with sequencing(database) as sequencer:
        await record(sequencer, {"data": "x" * ((1 << 20) - 2)}, *({"data": "y" * 500} for _ in range(40)))
        await record(sequencer, {})
    await asyncio.to_thread(mirror_once, database, settings)
    received = await asyncio.to_thread(consume, settings)
    assert [message.value for message in received] == await events_of(database)
    ranges = await rows(database, "SELECT min(first_sequence), max(last_sequence) FROM mirrored")
    assert ranges == [(1, 42)]
