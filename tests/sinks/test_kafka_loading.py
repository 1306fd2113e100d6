"""Loading from a real Kafka: the rows are the ledger's, with partition and offset, whatever the mirror has repeated."""

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.mirror.mirrors import consume, first_of_each, mirror_once, settings_for
from tests.recording import record, rows, sequencing
from tests.sinks.stores import TestClickHouse, TestLake, fill
from tidelock.errors import SettingsError
from tidelock.fold.store import Store
from tidelock.mirror.broker import Broker
from tidelock.postgres.database import Database
from tidelock.settings import Settings
from tidelock.settings.groups import KafkaSettings
from tidelock.sinks.kafkasource import KafkaSource, java_options, not_mirrored
from tidelock.sinks.loader import Loading
from tidelock.spark.runtime import Spark
from tidelock.tables import SCHEMA


def loading(spark: Spark, database: Database, store: Any, settings: Settings) -> Loading:
    sink = store.sink(spark)
    cursor = Store(database, SCHEMA, sink.name)
    made = Loading(sink, cursor, KafkaSource(spark, cursor, database, settings.kafka))
    made.open()
    return made


async def places(database: Database) -> list[tuple[Any, ...]]:
    return await rows(database, "SELECT topic, partition, first_offset, last_offset FROM mirrored ORDER BY 1, 2, 3")


async def test_rows_are_the_ledgers_with_the_places_of_their_messages(
    spark: Spark, database: Database, broker: Broker, tmp_path: Path
) -> None:
    await fill(database)
    async with sequencing(database) as sequencer:
        await record(
            sequencer,
            {"data": "a text"},
            {"data": ' ,"op":"x'},
            {"data": {"op": [1.50, {"data": 2}], "x": ' ,"data":1'}, "customerRef": ',"data":7,"op":"'},
            {"data": 12345678901234567890.10},
            {"data": {"digits": 10**399}},
            {"ts": "1970-01-01T00:00:00Z", "data": False},
            {"ts": "1969-12-31T23:59:59.000000001Z"},
        )
    settings = settings_for(broker, partitions=3)
    lake, clickhouse = TestLake(tmp_path / "lake", file_events=10), TestClickHouse(tmp_path / "clickhouse")
    mirror_once(database, settings)
    for store, size in ((lake, 12), (clickhouse, 100)):
        load = loading(spark, database, store, settings)
        while load.step(size):
            pass
        assert load.position == 22
        load.close()
        assert store.prove(database).ok, store.prove(database).detail
        found = store.read("ingress_sequence, stream, kafka_partition, kafka_offset")
        assert [sequence for sequence, *_ in found] == list(range(1, 23))
        known = await places(database)
        for _, stream, partition, offset in found:
            assert any(
                topic.endswith(stream) and (partition, True) == (number, first <= offset <= last)
                for topic, number, first, last in known
            )


async def test_kafka_is_read_once_for_all_files_of_a_step(
    spark: Spark, database: Database, broker: Broker, tmp_path: Path
) -> None:
    await fill(database, commits=8)
    settings = settings_for(broker, partitions=2)
    mirror_once(database, settings)
    store = TestLake(tmp_path, file_events=3)
    load = loading(spark, database, store, settings)
    read = load._source.read([(0, 3), (3, 9), (9, 10), (10, 35)])
    plan = read._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("KafkaRelation") == 1, plan
    parts: dict[int, list[int]] = {}
    for number, sequence in read.selectExpr("spark_partition_id()", "ingress_sequence").collect():
        parts.setdefault(number, []).append(sequence)
    assert parts == {0: [1, 2, 3], 1: list(range(4, 10)), 2: [10], 3: list(range(11, 36))}
    load.step(4)
    load.step(100)
    load.close()
    assert len(list(tmp_path.glob("events/*.parquet"))) == 12
    assert store.prove(database).ok, store.prove(database).detail


async def test_a_message_that_was_repeated_is_loaded_once_with_its_first_offset(
    spark: Spark, database: Database, broker: Broker, tmp_path: Path
) -> None:
    await fill(database)
    settings = settings_for(broker)
    for _ in range(2):
        # As after a kill: what was sent is not recorded, so it is sent again.
        await forget(database)
        mirror_once(database, settings)
    async with await database.connect() as connection:
        await connection.execute("UPDATE mirrored SET first_offset = 0")
    store = TestLake(tmp_path)
    load = loading(spark, database, store, settings)
    load.step(100)
    load.close()
    received = consume(settings)
    assert len(received) == 30
    wanted = [(message.sequence, message.partition, message.offset) for message in first_of_each(received)]
    assert store.read("ingress_sequence, kafka_partition, kafka_offset") == wanted


async def forget(database: Database) -> None:
    async with await database.connect() as connection:
        await connection.execute("DELETE FROM mirrored")
        await connection.execute("DELETE FROM cursors WHERE name = 'kafka'")


async def test_only_what_is_mirrored_is_loaded(
    spark: Spark, database: Database, broker: Broker, tmp_path: Path
) -> None:
    await fill(database)
    settings = settings_for(broker)
    load = loading(spark, database, TestLake(tmp_path), settings)
    assert load.step(100) == 0
    mirror_once(database, settings)
    assert load.step(100) == 15
    load.close()


async def test_a_message_that_is_gone_is_named(
    spark: Spark, database: Database, broker: Broker, tmp_path: Path
) -> None:
    await fill(database)
    settings = settings_for(broker)
    mirror_once(database, settings)
    topic = f"{settings.kafka.topic_prefix}s"
    admin = AdminClient(client(settings))
    for done in admin.delete_records([TopicPartition(topic, 0, 1)]).values():
        done.result(30)
    load = loading(spark, database, TestLake(tmp_path), settings)
    with pytest.raises(Exception, match="not in Kafka") as raised:
        load.step(100)
    load.close()
    found = not_mirrored(raised.value)
    assert found is not None
    assert "`tidelock mirror --from 2` sends it again" in found.message


async def test_what_others_wrote_into_a_topic_is_passed_over(
    spark: Spark, database: Database, broker: Broker, tmp_path: Path
) -> None:
    await fill(database)
    settings = settings_for(broker)
    mirror_once(database, settings)
    producer, topic = Producer(client(settings)), f"{settings.kafka.topic_prefix}s"
    producer.produce(topic, b"hello", partition=0)
    producer.produce(topic, b"hello", partition=0, headers={"ingress-sequence": b"5"})
    assert producer.flush(30) == 0
    async with await database.connect() as connection:
        # As if it had been written while the mirror sent the range.
        await connection.execute("UPDATE mirrored SET last_offset = last_offset + 2 WHERE topic = %s", [topic])
    store = TestLake(tmp_path)
    load = loading(spark, database, store, settings)
    assert load.step(100) == 15
    load.close()
    assert store.prove(database).ok


def client(settings: Settings) -> dict[str, str | int | float | bool]:
    return {"bootstrap.servers": settings.kafka.brokers[0]}


def test_security_is_told_to_java_in_its_own_words() -> None:
    options = {
        "security.protocol": "SASL_SSL", "sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": 'u"',
        "sasl.password": "p\\", "ssl.ca.location": "/ca.pem",
    }  # fmt: skip
    assert java_options(KafkaSettings(brokers=("a:1", "b:2"), options=options)) == {
        "kafka.bootstrap.servers": "a:1,b:2",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": (
            'org.apache.kafka.common.security.scram.ScramLoginModule required username="u\\"" password="p\\\\";'
        ),
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/ca.pem",
    }


def test_security_that_java_is_not_told_of_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"does not support ssl\.key\.location") as raised:
        java_options(KafkaSettings(brokers=("a:1",), options={"ssl.key.location": "/key.pem"}))
    assert raised.value.field == "kafka.options.ssl.key.location"
