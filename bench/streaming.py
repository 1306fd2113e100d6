"""Spark's own streaming: the same windows by Structured Streaming, from a Parquet export of the ledger."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from tidelock.spark.runtime import Spark

_WINDOWS = """
    SELECT tenant_id, customer_ref, window.start AS window_start, window.end AS window_end, events, quantity
    FROM (SELECT tenant_id, customer_ref, window(at, '{size}') AS window, count(*) AS events, sum(quantity) AS quantity
        FROM {{events}} GROUP BY tenant_id, customer_ref, window(at, '{size}'))"""


class Streaming:
    """Every run from nothing: state, checkpoint and sink are in `directory`, on the local disk."""

    def __init__(
        self, spark: Spark, export: Path, directory: Path, *, files_at_a_time: int, size_s: int, tolerance_s: int
    ) -> None:
        self._spark = spark
        self._export = export
        self._directory = directory
        self._files_at_a_time = files_at_a_time
        self._windows = _WINDOWS.format(size=f"{size_s} seconds")
        self._tolerance = f"{tolerance_s} seconds"
        _put_in_order(export)

    def warm(self) -> None:
        """Over the first file only."""
        self._run("part-00000-*")

    def seconds(self) -> float:
        return self._run("*.parquet")

    def events(self) -> int:
        """How many events the windows of the last run hold."""
        sink = self._spark.session.read.parquet(str(self._directory / "windows"))
        ((events,),) = sink.selectExpr("sum(events)").collect()
        return int(events)

    def _run(self, files: str) -> float:
        shutil.rmtree(self._directory, ignore_errors=True)
        session = self._spark.session
        started = time.perf_counter()
        events = (
            session.readStream.schema(session.read.parquet(str(self._export)).schema)
            .option("maxFilesPerTrigger", self._files_at_a_time)
            .parquet(str(self._export / files))
            .selectExpr("tenant_id", "customer_ref", "quantity", "timestamp_micros(occurred_at div 1000) AS at")
            .withWatermark("at", self._tolerance)
        )
        query = (
            session.sql(self._windows, events=events)
            .writeStream.format("parquet")
            .outputMode("append")
            .option("path", str(self._directory / "windows"))
            .option("checkpointLocation", str(self._directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return time.perf_counter() - started


def _put_in_order(export: Path) -> None:
    """Streaming takes files by their age, but the last of the ledger may be the first that was written."""
    files = sorted(export.glob("*.parquet"))
    now = time.time()
    for number, file in enumerate(files, start=1 - len(files)):
        os.utime(file, (now + number, now + number))
