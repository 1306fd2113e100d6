"""Loading a lake and ClickHouse from a ledger: the same rows in the same order, whatever happens on the way."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.recording import record, rows, sequencing
from tests.sinks.stores import AnyStore, TestClickHouse, TestLake, fill, loading, proven
from tidelock.errors import CursorMoved, Unreachable
from tidelock.postgres.database import Database
from tidelock.sinks import proof
from tidelock.sinks.clickhouse import ClickHouseStore
from tidelock.sinks.clickhouse import _StagedRows as ClickHouseStaged
from tidelock.sinks.columns import LATER, NAMES
from tidelock.sinks.files import LocalFiles
from tidelock.sinks.lakereader import LakeReader
from tidelock.spark.runtime import Spark

MAKERS: dict[str, Callable[[Path], AnyStore]] = {
    "lake": lambda path: TestLake(path / "a läke"),
    "clickhouse": lambda path: TestClickHouse(path / "clickhouse"),
}


@pytest.fixture(params=MAKERS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> AnyStore:
    return MAKERS[request.param](tmp_path)


class Killed(Exception):
    """In place of a kill: what was done before it stays done."""


async def recorded(database: Database) -> list[tuple[Any, ...]]:
    return await rows(
        database,
        """SELECT ingress_sequence, commit_id, source_timestamp, tenant_id, stream, customer_ref, resource_id, row_key,
        op, occurred_at, received_at, quantity, data::text, causality_key, correlation_id, causation_id, source,
        idempotency_key, encode(content_hash, 'hex'),
        CASE key_source WHEN 'c' THEN 'client' WHEN 'd' THEN 'derived' ELSE 'none' END, target, target_sequence, reason,
        batch_id, encode(row_digest, 'hex'), encode(digest, 'hex'), -1, -1
        FROM events JOIN commits USING (commit_id) ORDER BY ingress_sequence""",
    )


@pytest.mark.parametrize("small_events", [0, 10_000], ids=["executors", "driver"])
async def test_a_store_has_every_column_of_every_event_as_it_was_recorded(
    spark: Spark, database: Database, store: AnyStore, small_events: int
) -> None:
    await fill(database)
    with loading(spark, database, store, small_events) as load:
        while load.step(5):
            pass
        assert load.position == 15
    assert store.read() == await recorded(database)
    assert store.prove(database).ok


async def test_a_store_of_the_first_form_goes_on_and_is_compared_by_what_both_have(
    spark: Spark, database: Database, store: AnyStore
) -> None:
    await fill(database, commits=1)
    with loading(spark, database, store) as load:
        load.step(1_000)
    async with await database.connect() as connection:
        # As an earlier version left it: neither chain nor store had these columns.
        await connection.execute("SET session_replication_role = replica")
        await connection.execute("UPDATE events SET row_digest = NULL")
    store.drop(*LATER)
    assert store.prove(database).ok
    async with sequencing(database) as sequencer:
        await record(sequencer, {"customerRef": "new", "reason": "why", "batchId": "march"})
    with loading(spark, database, store) as load:
        while load.step(1_000):
            pass
    assert store.prove(database).ok
    later = store.read("ingress_sequence, key_source, reason, batch_id, row_digest IS NOT NULL")
    assert later[-1] == (8, "none", "why", "march", True)
    assert {row[1:] for row in later[:-1]} == {(None, None, None, False)}
    store.alter(4)
    assert store.prove(database).detail.startswith("sequence 4: `customer_ref` is another, the ledger has 0/0;")
    store.alter(8, "key_source", "NULL")
    assert "and 1 more" in store.prove(database).detail


async def test_steps_of_any_size_give_the_same(spark: Spark, database: Database, tmp_path: Path) -> None:
    await fill(database, commits=8)
    for size in (6, 1000):
        store = TestLake(tmp_path / str(size), file_events=10)
        with loading(spark, database, store) as load:
            assert load.position == 0, "a lake in another place begins anew"
            while load.step(size):
                pass
        assert store.read() == await recorded(database)
        names = [path.name for path in sorted(store.path.glob("events/*"))]
        assert names == [f"events-{first:019}-{first + 9:019}.parquet" for first in range(1, 36, 10)]


async def test_a_step_killed_before_its_cursor_moved_is_done_again_and_changes_nothing(
    spark: Spark, database: Database, store: AnyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(database)
    with loading(spark, database, store) as load:
        load.step(5)
        monkeypatch.setattr(load._store, "commit", _killed)
        with pytest.raises(Killed):
            load.step(5)
    before = store.read()
    assert len(before) > 3, "it was published"
    monkeypatch.undo()
    with loading(spark, database, store) as load:
        assert load.position < len(before)
        load.step(5)
        assert store.read() == before
        while load.step(5):
            pass
    assert store.read() == await recorded(database)


def _killed() -> None:
    raise Killed


async def test_a_fold_that_has_lost_the_cursor_publishes_nothing(
    spark: Spark, database: Database, store: AnyStore
) -> None:
    await fill(database)
    with loading(spark, database, store) as slow, loading(spark, database, store) as quick:
        while quick.step(100):
            pass
        with pytest.raises(CursorMoved):
            slow.step(3)
    assert store.read() == await recorded(database)


@pytest.mark.parametrize("damage", ["remove", "alter", "repeat"])
async def test_what_was_changed_by_hand_is_named_and_repaired(
    spark: Spark, database: Database, store: AnyStore, damage: str
) -> None:
    await fill(database)
    with loading(spark, database, store) as load:
        load.step(100)
        getattr(store, damage)(9)
        found = store.prove(database)
        said = {"remove": "is missing", "alter": "`customer_ref` is another, the ledger has 1/1", "repeat": "twice"}
        assert not found.ok
        assert found.detail.startswith("sequence 9")
        assert said[damage] in found.detail
        assert f"tidelock load {found.name} --from 9" in found.detail
        reached = 8
        while reached < load.position:
            reached = load.repair(reached, 3)
    assert store.prove(database).ok
    assert store.read() == await recorded(database)


async def test_a_repair_killed_after_it_removed_leaves_no_hole(
    spark: Spark, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(database)
    store = TestClickHouse(tmp_path / "clickhouse")
    with loading(spark, database, store) as load:
        load.step(100)

        def removes_only(staged: ClickHouseStaged) -> None:
            store.remove(9)
            raise Killed

        monkeypatch.setattr(ClickHouseStaged, "publish", removes_only)
        with pytest.raises(Killed):
            load.repair(8, 3)
    monkeypatch.undo()
    with loading(spark, database, store) as load:
        while load.step(100):
            pass
        assert load.position == 15
    assert store.read() == await recorded(database)


async def test_two_that_stage_at_once_share_no_directory(spark: Spark, database: Database, tmp_path: Path) -> None:
    await fill(database)
    store = TestLake(tmp_path, file_events=5)
    with loading(spark, database, store) as load:
        orphaned = load.sink.stage(0, 3, load._source)
        staged = load.sink.stage(0, 15, load._source)
        assert len(list((tmp_path / "_staging").iterdir())) == 2
        orphaned.publish()
        staged.publish()
        assert store.read() == await recorded(database)
        load.sink.stage(0, 3, load._source)
        load.sink.open()
        assert not (tmp_path / "_staging").exists(), "what was left there is swept"


@pytest.mark.parametrize("names", [["part-00000-a", "part-00000-b", "part-00001-a"], ["part-00000-a"], []])
def test_parts_that_are_not_those_of_the_step_are_not_published(tmp_path: Path, names: list[str]) -> None:
    files = LocalFiles(tmp_path)
    files.make()
    for name in names:
        part = tmp_path / "_staging" / "fresh" / f"{name}.parquet"
        part.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
    with pytest.raises(Unreachable, match="instead of the 2 that were written"):
        files.publish("fresh", {0: "one.parquet", 1: "two.parquet"})
    assert files.names() == []


async def test_a_ledger_whose_tail_was_cut_is_found(spark: Spark, database: Database, store: AnyStore) -> None:
    await fill(database)
    with loading(spark, database, store) as load:
        load.step(100)
    async with await database.connect() as connection:
        await connection.execute("SET session_replication_role = replica")
        await connection.execute("DELETE FROM events WHERE commit_id = 5")
        await connection.execute("DELETE FROM commits WHERE commit_id = 5")
        await connection.execute("UPDATE ledger_head SET ingress_sequence = 11, commit_id = 4")
    found = store.prove(database)
    assert not found.ok
    assert "tail was cut off" in found.detail
    assert "has sequence 15 of commit 5; the ledger ends at commit 4, sequence 11" in found.detail


async def test_a_ledger_written_again_has_other_digests(spark: Spark, database: Database, store: AnyStore) -> None:
    await fill(database)
    with loading(spark, database, store) as load:
        load.step(100)
    async with await database.connect() as connection:
        await connection.execute("SET session_replication_role = replica")
        await connection.execute("UPDATE commits SET digest = sha256('x') WHERE commit_id = 4")
    found = store.prove(database)
    assert "sequence 8: `commit_digest` is" in found.detail
    assert hashlib.sha256(b"x").hexdigest() in found.detail


async def test_files_are_listed_once_the_cursor_was_read_and_compared_by_pages_of_bounded_bytes(
    spark: Spark, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(database)
    store = TestLake(tmp_path, file_events=5)
    reader = LakeReader(str(tmp_path))
    with loading(spark, database, store) as load:
        load.step(100)
    monkeypatch.setattr(proof, "_PAGE_EVENTS_MIN", 4)
    monkeypatch.setattr(proof, "_PAGE_BYTES", 1)
    pages, rows = list[tuple[int, int]](), reader.rows

    def counted(lo: int, hi: int) -> Any:
        pages.append((lo, hi))
        return rows(lo, hi)

    monkeypatch.setattr(reader, "rows", counted)
    assert proven(database, reader).ok
    assert pages == [(0, 3), (3, 7), (7, 11), (11, 15)]


async def test_a_damaged_file_and_a_stray_one_are_named(spark: Spark, database: Database, tmp_path: Path) -> None:
    await fill(database)
    store = TestLake(tmp_path, file_events=5)
    with loading(spark, database, store) as load:
        load.step(100)
        file = sorted(tmp_path.glob("events/*.parquet"))[1]
        (tmp_path / "events" / "copy.parquet").write_bytes(file.read_bytes())
        assert "copy.parquet is not one of the lake's files" in store.prove(database).detail
        (tmp_path / "events" / "copy.parquet").unlink()
        store.change("SELECT * REPLACE (if(ingress_sequence = 7, 2, ingress_sequence) AS ingress_sequence) FROM {rows}")
        assert f"{file.name} contains sequence 2, which does not belong there" in store.prove(database).detail
        file.write_bytes(file.read_bytes()[:100])
        found = store.prove(database)
        assert f"{file.name} cannot be read" in found.detail
        assert "tidelock load lake --from 6" in found.detail
        reached = 5
        while reached < load.position:
            reached = load.repair(reached, 5)
    assert store.read() == await recorded(database)


async def test_a_store_that_lost_its_end_is_loaded_from_there(
    spark: Spark, database: Database, store: AnyStore
) -> None:
    await fill(database)
    with loading(spark, database, store) as load:
        load.step(100)
    for sequence in (15, 14, 13):
        store.remove(sequence)
    with loading(spark, database, store) as load:
        assert load.position == 11, "the end of the last commit that is there as a whole"
        load.step(100)
    assert store.read() == await recorded(database)


async def test_a_store_of_an_empty_ledger_is_empty(spark: Spark, database: Database, store: AnyStore) -> None:
    with loading(spark, database, store) as load:
        assert load.step(10) == 0
    assert store.prove(database).ok


def test_rows_below_the_first_sequence_are_found(database: Database, tmp_path: Path) -> None:
    store = TestClickHouse(tmp_path / "clickhouse")
    assert store.prove(database).ok, "there is no table yet"
    ClickHouseStore(store.settings).create()
    with store.client() as client:
        client.command("INSERT INTO events (ingress_sequence) VALUES (0), (-3)")
    assert store.prove(database).detail.startswith("2 of its rows are below sequence 1; `DELETE FROM")


def test_the_columns_are_those_of_the_contract() -> None:
    assert ", ".join(NAMES) == (
        "ingress_sequence, commit_id, source_timestamp, tenant_id, stream, customer_ref, resource_id, row_key, op, "
        "occurred_at, ingested_at, quantity, data, causality_key, correlation_id, causation_id, source, "
        "idempotency_key, content_hash, key_source, target, target_sequence, reason, batch_id, row_digest, "
        "commit_digest, kafka_partition, kafka_offset"
    )
