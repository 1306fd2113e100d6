"""Limits of the fold: the plainest sums per customer and month, or window of ten seconds, over the same events.

They decide nothing about late events, keep no changes and write nothing, so no fold can be faster.
"""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

from bench.harness import peer
from tidelock.errors import SettingsError
from tidelock.postgres.database import Database
from tidelock.spark.configuration import jdbc_options
from tidelock.spark.runtime import Spark

_FETCH_ROWS = 10_000
_COLUMNS = "ingress_sequence, tenant_id, customer_ref, occurred_at, quantity::numeric(38, 9) AS quantity"
_SUMS = {
    "months": """
        SELECT tenant_id, customer_ref, date_trunc('MONTH', timestamp_micros(occurred_at div 1000)) AS period,
            sum(quantity) AS quantity, count(*) AS events, max(occurred_at) AS latest
        FROM {events} GROUP BY ALL""",
    "windows": """
        SELECT tenant_id, customer_ref, occurred_at div 10000000000 AS window,
            sum(quantity) AS quantity, count(*) AS events
        FROM {events} GROUP BY ALL""",
}


def check_duckdb() -> None:
    if importlib.util.find_spec("duckdb") is None:
        raise SettingsError("`bench` measures beside DuckDB, which is not installed: pip install duckdb")


class Limits:
    """Of one ledger, which is exported to Parquet in `directory` at once, in as many files (0: as Spark has cores)."""

    def __init__(
        self, spark: Spark, database: Database, events: int, directory: Path, *, sums: str = "months", files: int = 0
    ) -> None:
        self._spark = spark
        self._events = events
        self._parquet = directory
        self._sums = sums
        self._ledger = self._read(database)
        self._files = self._read(database, files) if files else self._ledger
        self._files.write.parquet(str(directory))

    def export_s(self) -> float:
        """The export, once more: beside the other one."""
        started = time.perf_counter()
        self._files.write.mode("overwrite").parquet(f"{self._parquet}-again")
        return time.perf_counter() - started

    def jdbc_s(self) -> float:
        """Spark, from Postgres: what the fold reads from too."""
        return self._spark_s(self._ledger)

    def parquet_s(self) -> float:
        return self._spark_s(self._spark.session.read.parquet(str(self._parquet)))

    def duckdb_s(self) -> float:
        """One thread, from Parquet; the second round, which finds everything warm."""
        return float(peer("duckdb_peer", "sums", self._parquet, self._sums, 2)[-1])

    def _spark_s(self, events: Any) -> float:
        """To the sink that takes every row and keeps none."""
        started = time.perf_counter()
        sums = self._spark.session.sql(_SUMS[self._sums], events=events)
        sums.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - started

    def _read(self, database: Database, partitions: int = 0) -> Any:
        options = jdbc_options(database.url) if self._spark.jdbc else None
        if options is None:
            raise SettingsError("`bench` needs Spark's PostgreSQL driver, which could not be fetched")
        partitions = partitions or self._spark.cores or self._spark.session.sparkContext.defaultParallelism
        return (
            self._spark.session.read.format("jdbc")
            .options(**options)
            .options(
                dbtable=f"(SELECT {_COLUMNS} FROM events) AS ledger",
                partitionColumn="ingress_sequence",
                lowerBound="1",
                upperBound=str(self._events + 1),
                numPartitions=str(partitions),
                fetchsize=str(_FETCH_ROWS),
            )
            .load()
        )
