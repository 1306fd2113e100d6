"""`verify` of the mirror: what is missing from Kafka, altered, or too much, is found and named, and can be repaired."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import Result

from tests.cli.commandline import run
from tests.losttails import accept, anchored, cut
from tests.mirror.mirrors import Received, consume, mirror_once, mirroring, settings_for
from tests.recording import record, sequencing
from tidelock.mirror import cluster
from tidelock.mirror.broker import Broker
from tidelock.mirror.proof import MirrorProof
from tidelock.postgres.database import Database
from tidelock.settings import Settings


class Mirrored:
    """A ledger of 30 events in three streams, and its mirror."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.database = database
        self.settings = settings
        self.admin = AdminClient({"bootstrap.servers": settings.kafka.brokers[0]})

    def topic(self, stream: str) -> str:
        return self.settings.kafka.topic_prefix + stream

    def run(self, *arguments: object) -> Result:
        kafka = self.settings.kafka
        env = {"TIDELOCK_KAFKA_BROKERS": ",".join(kafka.brokers), "TIDELOCK_KAFKA_TOPIC_PREFIX": kafka.topic_prefix}
        # Not on a thread: commands listen to signals.
        return run(self.database, *arguments, env=env)

    def found(self) -> str:
        """What `verify` says of a mirror that differs."""
        result = self.run("verify", "--no-tables", "--json", "--anchor", "/dev/null")
        assert result.exit_code == 1, result.output
        (check,) = [check for check in json.loads(result.stdout)["checks"] if check["name"] == "kafka"]
        assert not check["ok"]
        return str(check["detail"])

    def clean(self) -> str:
        result = self.run("verify", "--no-tables", "--json", "--anchor", "/dev/null")
        assert result.exit_code == 0, result.output
        (check,) = [check for check in json.loads(result.stdout)["checks"] if check["name"] == "kafka"]
        return str(check["detail"])

    def repair(self, first: int) -> None:
        result = self.run("mirror", "--from", first, "--once")
        assert result.exit_code == 0, result.output

    def produce(self, topic: str, value: bytes, key: bytes, headers: list[Any], timestamp: int) -> None:
        producer = Producer({"bootstrap.servers": self.settings.kafka.brokers[0]})
        producer.produce(topic, value, key, 0, headers=headers, timestamp=timestamp)
        assert producer.flush(30) == 0

    def execute(self, *statements: str) -> None:
        """As one who can, and means ill: past what the database refuses."""
        with self.database.connect_sync() as connection:
            connection.execute("SET session_replication_role = replica")
            for statement in statements:
                connection.execute(statement.encode())


@pytest.fixture
async def mirrored(database: Database, broker: Broker) -> Mirrored:
    made = Mirrored(database, settings_for(broker))
    async with sequencing(database) as sequencer:
        for number in range(10):
            await record(sequencer, *({"stream": stream, "data": {"n": number}} for stream in "abc"))
            if number == 4:
                await asyncio.to_thread(mirror_once, database, made.settings)
    await asyncio.to_thread(mirror_once, database, made.settings)
    return made


async def test_a_mirror_that_is_right_is_said_to_be(mirrored: Mirrored) -> None:
    assert mirrored.clean() == (
        "the same 30 events in the same order, with the same commit digests, through sequence 30"
    )


async def test_messages_that_were_removed_are_named_and_repaired(mirrored: Mirrored) -> None:
    topic = mirrored.topic("b")
    for future in mirrored.admin.delete_records([TopicPartition(topic, 0, 7)]).values():
        future.result()
    assert mirrored.found() == (
        f"sequence 2 is missing from {topic}; `tidelock mirror --from 2` repairs it (and 6 more)"
    )
    mirrored.repair(2)
    mirrored.clean()


async def test_a_topic_that_was_deleted_is_named_and_repaired(mirrored: Mirrored) -> None:
    topic = mirrored.topic("c")
    mirrored.admin.delete_topics([topic])[topic].result()
    assert mirrored.found().startswith(f"topic {topic} does not exist; `tidelock mirror --from 1` repairs it")
    mirrored.repair(1)
    mirrored.clean()


async def test_a_message_that_says_something_else_is_named_and_repaired(mirrored: Mirrored) -> None:
    original = (await asyncio.to_thread(consume, mirrored.settings))[4]
    assert original.sequence == 13
    value = json.dumps({**original.value, "quantity": "1000000"}).encode()
    mirrored.produce(original.topic, value, original.key, original.headers, original.timestamp)
    assert mirrored.found() == (
        f"sequence 13: offset 10 of {original.topic}, partition 0, has a different event than the ledger; "
        "`tidelock mirror --from 13` repairs it"
    )
    mirrored.repair(13)
    mirrored.clean()


async def test_a_message_of_the_first_form_is_right_and_one_that_lacks_what_its_event_has_is_not(
    mirrored: Mirrored,
) -> None:
    def first_form(message: Received) -> bytes:
        without, removed, _ = message.text.partition(b',"target":')
        assert removed
        return without + b"}"

    last = (await asyncio.to_thread(consume, mirrored.settings))[-1]
    mirrored.produce(last.topic, first_form(last), last.key, last.headers, last.timestamp)
    mirrored.clean()
    async with sequencing(mirrored.database) as sequencer:
        await record(sequencer, {"stream": "c", "reason": "a test"})
    await asyncio.to_thread(mirror_once, mirrored.database, mirrored.settings)
    last = (await asyncio.to_thread(consume, mirrored.settings))[-1]
    assert last.value["reason"] == "a test"
    mirrored.produce(last.topic, first_form(last), last.key, last.headers, last.timestamp)
    assert "has a different event than the ledger" in mirrored.found()


@pytest.mark.timeout(90)
async def test_a_repair_beside_a_mirror_that_has_nothing_to_do_is_done_by_it(mirrored: Mirrored) -> None:
    with mirroring(mirrored.database, mirrored.settings) as mirror:
        await asyncio.to_thread(mirror.until_told, "mirroring to")
        mirrored.repair(16)
        assert mirror.told[-1].endswith("from sequence 15")
    assert len(await asyncio.to_thread(consume, mirrored.settings)) == 45
    mirrored.clean()


@pytest.mark.parametrize("what", ["key", "timestamp", "header"])
async def test_a_message_with_another_key_time_or_header_is_named(mirrored: Mirrored, what: str) -> None:
    original = (await asyncio.to_thread(consume, mirrored.settings))[0]
    key = b"other" if what == "key" else original.key
    timestamp = original.timestamp + (what == "timestamp")
    headers = [*original.headers, *([("x", b"y")] if what == "header" else [])]
    mirrored.produce(
        original.topic, json.dumps(original.value, separators=(",", ":")).encode(), key, headers, timestamp
    )
    assert "has a key, time or headers that differ from what the mirror writes" in mirrored.found()


async def test_a_message_that_the_mirror_did_not_write_is_named(mirrored: Mirrored) -> None:
    mirrored.produce(mirrored.topic("a"), b"{}", b"k", [], 0)
    assert "offset 10" in (said := mirrored.found())
    assert "was not written by the mirror" in said


async def test_one_between_those_that_it_wrote_is_named_with_what_repairs_it(
    database: Database, broker: Broker
) -> None:
    made = Mirrored(database, settings_for(broker))
    async with sequencing(database) as sequencer:
        with mirroring(database, made.settings) as mirror:
            await record(sequencer, {"stream": "a"})
            await asyncio.to_thread(mirror.wait, 1)
            made.produce(made.topic("a"), b"{}", b"k", [], 0)
            await record(sequencer, {"stream": "a"})
            await asyncio.to_thread(mirror.wait, 2)
        await record(sequencer, {"stream": "a"})
    await asyncio.to_thread(mirror_once, database, made.settings)
    assert "offset 1 of" in (said := made.found())
    assert said.endswith("consumers should ignore it; `tidelock mirror --from 1` repairs it")
    made.repair(1)
    made.clean()


async def test_what_is_recorded_meanwhile_counts_as_nothing(mirrored: Mirrored) -> None:
    mirrored.execute("UPDATE cursors SET sequence = 15 WHERE name = 'kafka'")
    assert mirrored.clean().startswith("the same 15 events")


async def test_what_retention_has_removed_is_not_missing(mirrored: Mirrored) -> None:
    for future in mirrored.admin.delete_records([TopicPartition(mirrored.topic("b"), 0, 3)]).values():
        future.result()
    settings = replace(mirrored.settings, kafka=replace(mirrored.settings.kafka, retention=10**9))
    proof = MirrorProof(mirrored.database, settings)
    await asyncio.to_thread(proof.compare, lambda *_: None)
    assert proof.check().ok
    assert proof.check().detail.startswith("the same 27 events")
    assert proof.check().detail.endswith("through sequence 30, all of them from sequence 9 on")


async def test_a_cut_tail_of_the_ledger_is_found_by_what_kafka_has(mirrored: Mirrored) -> None:
    mirrored.execute(
        "DELETE FROM events WHERE ingress_sequence > 27", "DELETE FROM identities WHERE ingress_sequence > 27",
        "DELETE FROM commits WHERE last_sequence > 27",
        "UPDATE ledger_head SET (ingress_sequence, commit_id, digest, source_timestamp) = "
        "(SELECT last_sequence, commit_id, digest, last_source_timestamp FROM commits ORDER BY 2 DESC LIMIT 1)",
    )  # fmt: skip
    said = mirrored.found()
    assert said.startswith("the ledger's tail was cut off: offset 9 of ")
    assert "the ledger ends at commit 9, sequence 27" in said
    result = mirrored.run("mirror", "--once")
    assert result.exit_code == 3
    assert "tail was cut off" in result.output
    async with sequencing(mirrored.database) as sequencer:
        await record(sequencer, *({"stream": stream, "data": {"n": 9}} for stream in "abcabc"))
    assert "a different event" in (said := mirrored.found()) or "digest" in said


@pytest.mark.parametrize("readers", [True, False], ids=["with its cursor", "without its cursor"])
async def test_what_kafka_has_of_an_accepted_loss_is_lost_and_no_difference_and_the_mirror_continues(
    mirrored: Mirrored, tmp_path: Path, readers: bool
) -> None:
    settings = replace(mirrored.settings, data=tmp_path, database_url=mirrored.database.url)
    await anchored(mirrored.database, settings.anchor_path)
    await asyncio.to_thread(cut, mirrored.database, 15, readers=readers)
    recorded = await accept(settings)
    async with sequencing(mirrored.database) as sequencer:
        await record(sequencer, {"stream": "a"}, {"stream": "b"})
    await asyncio.to_thread(mirror_once, mirrored.database, mirrored.settings)
    assert mirrored.clean() == (
        f"the same 18 events in the same order, with the same commit digests, through sequence {recorded + 2:,}; "
        "and 15 that the ledger has lost, of sequences 16 to 30"
    )
    sequences = {message.sequence for message in consume(mirrored.settings)}
    assert sequences == {*range(1, 31), recorded, recorded + 1, recorded + 2}


async def test_a_ledger_that_was_cut_and_grew_the_same_events_again_has_other_digests(mirrored: Mirrored) -> None:
    mirrored.execute(
        "UPDATE commits SET digest = decode(repeat('07', 32), 'hex') WHERE commit_id = 10",
        "UPDATE ledger_head SET digest = decode(repeat('07', 32), 'hex')",
    )
    assert "sequence 28: offset 9" in (said := mirrored.found())
    assert "the digest of another commit: this is not the ledger that was mirrored" in said


async def test_repeats_are_left_out_and_count_as_nothing(mirrored: Mirrored) -> None:
    """A mirror that was killed between the acknowledgement and its record sends again."""
    mirrored.execute(
        "UPDATE cursors SET sequence = 15 WHERE name = 'kafka'", "DELETE FROM mirrored WHERE last_sequence > 15"
    )
    await asyncio.to_thread(mirror_once, mirrored.database, mirrored.settings)
    received = await asyncio.to_thread(consume, mirrored.settings)
    assert len(received) == 45
    mirrored.clean()


@pytest.mark.parametrize(("first", "said"), [(0, "sequences 1 to 30 are mirrored"), (31, "1 to 30 are mirrored")])
async def test_only_what_was_mirrored_can_be_mirrored_again(mirrored: Mirrored, first: int, said: str) -> None:
    result = mirrored.run("mirror", "--from", first, "--once")
    assert result.exit_code == 2
    assert said in result.output


def test_without_a_broker_verify_says_what_is_unreachable(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "ANSWER_S", 1.0)
    env = {"TIDELOCK_KAFKA_BROKERS": "127.0.0.1:9"}
    result = run(database, "verify", "--no-tables", env=env)
    assert result.exit_code == 3
    assert "Cannot reach Kafka at 127.0.0.1:9" in result.output
