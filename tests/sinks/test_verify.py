"""`tidelock verify` over everything that holds the events: what was changed by hand is found and named in each."""

import asyncio
import json
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.cli.commandline import run
from tests.losttails import accept, anchored, cut
from tests.mirror.mirrors import consume, mirror_once, settings_for
from tests.recording import record, sequencing
from tests.sinks.stores import TestClickHouse, TestLake, fill, loading
from tidelock.mirror.broker import Broker
from tidelock.postgres.database import Database
from tidelock.settings import Settings
from tidelock.spark.runtime import Spark

IN_LEDGER = {
    "remove": "DELETE FROM events WHERE ingress_sequence = 14",
    "alter": "UPDATE events SET customer_ref = 'another' WHERE ingress_sequence = 14",
}


def change_kafka(settings: Settings, damage: str) -> None:
    """Sequence 2, the first of its topic. Nothing can be altered there, but others can write."""
    topic = f"{settings.kafka.topic_prefix}s"
    config: dict[str, str | int | float | bool] = {"bootstrap.servers": settings.kafka.brokers[0]}
    if damage == "remove":
        admin = AdminClient(config)
        for done in admin.delete_records([TopicPartition(topic, 0, 1)]).values():
            done.result(30)
        return
    (original,) = [message for message in consume(settings) if message.sequence == 2]
    producer = Producer(config)
    value = json.dumps({**original.value, "customerRef": "another"}).encode()
    producer.produce(topic, value, original.key, 0, headers=dict(original.headers), timestamp=original.timestamp)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("damage", IN_LEDGER)
async def test_what_was_changed_by_hand_is_named_in_ledger_kafka_clickhouse_and_lake(
    spark: Spark, database: Database, broker: Broker, tmp_path: Path, damage: str
) -> None:
    await fill(database)
    settings = settings_for(broker)
    await asyncio.to_thread(mirror_once, database, settings)
    lake, clickhouse = TestLake(tmp_path / "lake"), TestClickHouse(tmp_path / "clickhouse")
    for store in (lake, clickhouse):
        with loading(spark, database, store) as load:
            load.step(100)
    env = {
        "TIDELOCK_KAFKA_BROKERS": broker.address, "TIDELOCK_KAFKA_TOPIC_PREFIX": settings.kafka.topic_prefix,
        "TIDELOCK_LAKE_PATH": str(lake.path), "TIDELOCK_CLICKHOUSE_URL": f"chdb:{clickhouse.path}",
    }  # fmt: skip
    command = ("verify", "--no-tables", "--json", "--anchor", "/dev/null")
    result = run(database, *command, env=env)
    assert result.exit_code == 0, result.output
    change_kafka(settings, damage)
    getattr(clickhouse, damage)(5)
    getattr(lake, damage)(7)
    with database.connect_sync() as connection:
        # As one who can, and means ill: past what the database refuses.
        connection.execute("SET session_replication_role = replica")
        connection.execute(IN_LEDGER[damage].encode())
    result = run(database, *command, env=env)
    assert result.exit_code == 1, result.output
    found = {check["name"]: check["detail"] for check in json.loads(result.stdout)["checks"] if not check["ok"]}
    named = {name: detail.partition(";")[0] for name, detail in found.items()}
    for name, sequence in (("kafka", 2), ("clickhouse", 5), ("lake", 7)):
        assert f"sequence {sequence}" in named.pop(name)
    assert any("14" in detail for detail in named.values()), named
    assert "the ledger differs from what was recorded" in result.output


@pytest.mark.parametrize("readers", [True, False], ids=["with cursors", "without cursors"])
async def test_what_stores_hold_of_an_accepted_loss_stays_there_and_is_named_as_lost(
    spark: Spark, database: Database, tmp_path: Path, readers: bool
) -> None:
    await fill(database)
    settings = Settings(data=tmp_path, database_url=database.url)
    # One file would take the lost events and what comes after them.
    stores = (TestLake(tmp_path / "lake", file_events=10_000_000), TestClickHouse(tmp_path / "clickhouse"))
    for store in stores:
        with loading(spark, database, store) as load:
            load.step(100)
    await anchored(database, settings.anchor_path)
    await asyncio.to_thread(cut, database, 7, readers=readers)
    recorded = await accept(settings)
    async with sequencing(database) as sequencer:
        await record(sequencer, {}, {})
    for store in stores:
        with loading(spark, database, store) as load:
            while load.step(100):
                pass
        assert [row[0] for row in store.read("ingress_sequence")] == [*range(1, 16), *range(recorded, recorded + 3)]
        check = store.prove(database)
        assert check.ok, check.detail
        assert check.detail.endswith("and 8 that the ledger has lost, of sequences 8 to 15")


def test_a_store_that_is_away_hides_nothing_of_the_others(database: Database, tmp_path: Path) -> None:
    lake = tmp_path / "events"
    lake.mkdir()
    env = {
        "TIDELOCK_CLICKHOUSE_URL": "clickhouse://127.0.0.1:1", "TIDELOCK_CLICKHOUSE_TIMEOUT_S": "0.1",
        "TIDELOCK_LAKE_PATH": str(tmp_path),
    }  # fmt: skip
    command = ("verify", "--no-tables", "--json", "--anchor", "/dev/null")
    result = run(database, *command, env=env)
    assert result.exit_code == 3, result.output
    found = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    assert found["lake"]["ok"]
    assert found["clickhouse"]["detail"].startswith("ClickHouse at 127.0.0.1 does not respond")
    assert "AWAY" in run(database, *command[:2], *command[3:], env=env).output
    (lake / "copy.parquet").touch()
    result = run(database, *command, env=env)
    assert result.exit_code == 1, result.output
    assert "lake differs from the ledger" in result.output
