"""Stores to load in tests: a lake and an embedded ClickHouse, read by foreign programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import clickhouse_connect
import duckdb

from tests.recording import record, sequencing
from tidelock.fold.store import Store
from tidelock.ledger.findings import Check
from tidelock.postgres.database import Database
from tidelock.settings.groups import ClickHouseSettings, KafkaSettings, LakeSettings
from tidelock.sinks.clickhouse import ClickHouseSink, ClickHouseStore
from tidelock.sinks.columns import NAMES
from tidelock.sinks.kafkasource import KafkaSource
from tidelock.sinks.lake import LakeSink
from tidelock.sinks.lakereader import LakeReader
from tidelock.sinks.loader import Loading, Sink
from tidelock.sinks.proof import StoreProof
from tidelock.sinks.source import LedgerSource
from tidelock.spark.runtime import Spark
from tidelock.tables import SCHEMA

EVERY_FIELD = {
    "tenantId": "acme", "stream": "calls", "customerRef": 'cus_ü"\\', "resourceId": "", "quantity": "-1.50",
    "ts": "2026-01-31T23:59:59.123456789Z", "data": {"b": 1.10, "a": [1e400, "x\ny"]}, "op": "delete",
    "causalityKey": "run", "correlationId": "c", "causationId": "k", "idempotencyKey": "k1", "source": "sdk",
}  # fmt: skip


class TestLake:
    """A lake in a directory."""

    __test__ = False

    def __init__(self, path: Path, file_events: int = 1_000) -> None:
        self.path = path
        self.settings = LakeSettings(path=str(path), file_events=file_events)

    def sink(self, spark: Spark) -> Sink:
        return LakeSink(spark, self.settings)

    def read(self, columns: str = ", ".join(NAMES)) -> list[tuple[Any, ...]]:
        """As DuckDB reads it, in the order of the files."""
        with duckdb.connect() as connection:
            files = f"read_parquet('{self.path}/events/*.parquet', union_by_name = true)"
            return connection.execute(f"SELECT {columns} FROM {files}").fetchall()

    def change(self, sql: str) -> None:
        """Every file becomes what a query makes of it, as somebody would who knows Parquet."""
        for file in sorted(self.path.glob("events/*.parquet")):
            with duckdb.connect() as connection:
                rows = sql.format(rows=f"read_parquet('{file}')")
                connection.execute(f"COPY ({rows}) TO '{file}.new' (FORMAT parquet)")
            file.with_name(file.name + ".new").replace(file)

    def remove(self, sequence: int) -> None:
        self.change(f"SELECT * FROM {{rows}} WHERE ingress_sequence <> {sequence}")

    def drop(self, *columns: str) -> None:
        self.change(f"SELECT * EXCLUDE ({', '.join(columns)}) FROM {{rows}}")

    def alter(self, sequence: int, column: str = "customer_ref", value: str = "'another'") -> None:
        changed = f"if(ingress_sequence = {sequence}, {value}, {column}) AS {column}"
        self.change(f"SELECT * REPLACE ({changed}) FROM {{rows}}")

    def repeat(self, sequence: int) -> None:
        self.change(
            f"SELECT * FROM (SELECT * FROM {{rows}} UNION ALL SELECT * FROM {{rows}} "
            f"WHERE ingress_sequence = {sequence}) ORDER BY ingress_sequence"
        )

    def prove(self, database: Database) -> Check:
        return proven(database, LakeReader(str(self.path)))


class TestClickHouse:
    """A ClickHouse in this process."""

    __test__ = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = ClickHouseSettings(url=f"chdb:{path}")

    def sink(self, spark: Spark) -> Sink:
        return ClickHouseSink(self.settings)

    @contextmanager
    def client(self) -> Iterator[Any]:
        client = clickhouse_connect.get_client(interface="chdb", path=str(self.path))
        try:
            yield client
        finally:
            client.close()

    def read(self, columns: str = ", ".join(NAMES)) -> list[tuple[Any, ...]]:
        order = "ingress_sequence, kafka_partition, kafka_offset"
        with self.client() as client:
            return list(map(tuple, client.query(f"SELECT {columns} FROM events ORDER BY {order}").result_rows))

    def remove(self, sequence: int) -> None:
        self._command(f"DELETE FROM events WHERE ingress_sequence = {sequence}")

    def drop(self, *columns: str) -> None:
        self._command(f"ALTER TABLE events {', '.join(f'DROP COLUMN {column}' for column in columns)}")

    def alter(self, sequence: int, column: str = "customer_ref", value: str = "'another'") -> None:
        self._command(f"ALTER TABLE events UPDATE {column} = {value} WHERE ingress_sequence = {sequence}")

    def repeat(self, sequence: int) -> None:
        self._command(f"INSERT INTO events SELECT * FROM events WHERE ingress_sequence = {sequence}")

    def prove(self, database: Database) -> Check:
        return proven(database, ClickHouseStore(self.settings))

    def _command(self, sql: str) -> None:
        with self.client() as client:
            client.command(sql, settings={"mutations_sync": 2})


AnyStore = TestLake | TestClickHouse


@contextmanager
def loading(
    spark: Spark, database: Database, store: AnyStore, small_events: int = 10_000, kafka: KafkaSettings | None = None
) -> Iterator[Loading]:
    """A store with its cursor, as a loader has them; from the ledger, or from its mirror."""
    sink = store.sink(spark)
    cursor = Store(database, SCHEMA, sink.name)
    from_ledger = LedgerSource(spark, cursor, database, small_events=small_events)
    made = Loading(sink, cursor, KafkaSource(spark, cursor, database, kafka) if kafka else from_ledger)
    made.open()
    try:
        yield made
    finally:
        made.close()


def proven(database: Database, copy: Any) -> Check:
    store = Store(database, SCHEMA, "")
    try:
        proof = StoreProof(store, copy)
        proof.compare(lambda done, end: None)
        return proof.check()
    finally:
        store.close()


async def fill(database: Database, commits: int = 3, events: int = 4) -> None:
    """Every field there is, a control event, then commits of so many events each."""
    async with sequencing(database) as sequencer:
        await record(sequencer, EVERY_FIELD, {})
        await sequencer.control({"type": "tick"})
        for number in range(commits):
            await record(sequencer, *({"quantity": "4", "customerRef": f"{number}/{n}"} for n in range(events)))
