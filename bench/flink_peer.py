"""Flink SQL beside the fold: the same windows of a Parquet export, to local files. Prints what it did as JSON.

It runs in a virtual environment of its own and knows nothing of ours: `PYTHON flink_peer.py EXPORT OUT EVENTS SIZE_S
TOLERANCE_S CORES`. Flink reads Parquet only with jars that its wheel lacks, so the export is written as CSV first.
"""

from __future__ import annotations

import csv
import json
import shutil
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv
import pyarrow.dataset as ds
from pyflink.table import EnvironmentSettings, TableEnvironment

_SOURCE = """
    CREATE TABLE events (tenant_id STRING, customer_ref STRING, occurred_ms BIGINT, quantity DECIMAL(38, 9),
        happened AS TO_TIMESTAMP_LTZ(occurred_ms, 3),
        WATERMARK FOR happened AS happened - INTERVAL '{tolerance}' SECOND)
    WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'csv')"""
_SINK = """
    CREATE TABLE windows (tenant_id STRING, customer_ref STRING, window_start TIMESTAMP(3), window_end TIMESTAMP(3),
        events BIGINT, quantity DECIMAL(38, 9))
    WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'csv')"""
_INSERT = """
    INSERT INTO windows SELECT tenant_id, customer_ref, window_start, window_end, count(*), sum(quantity)
    FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(happened), INTERVAL '{size}' SECOND))
    GROUP BY tenant_id, customer_ref, window_start, window_end"""


def main(export: str, out: Path, events: int, size_s: int, tolerance_s: int, cores: int) -> dict[str, object]:
    for directory in ("events", "windows"):
        shutil.rmtree(out / directory, ignore_errors=True)
    (out / "events").mkdir(parents=True)
    rows = _written(export, out / "events", events, cores)
    environment = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    environment.get_config().set("parallelism.default", str(cores)).set("table.local-time-zone", "UTC")
    environment.execute_sql(_SOURCE.format(path=out / "events", tolerance=tolerance_s))
    environment.execute_sql(_SINK.format(path=out / "windows"))
    started = time.perf_counter()
    environment.execute_sql(_INSERT.format(size=size_s)).wait()
    seconds = time.perf_counter() - started
    counts = [int(row[4]) for path in (out / "windows").iterdir() if path.is_file() for row in csv.reader(path.open())]
    return {"seconds": seconds, "events": rows, "windows": len(counts), "within": sum(counts)}


def _written(export: str, directory: Path, events: int, files: int) -> int:
    """A file for each core, whose rows take turns, so that they are read in about the order of the ledger."""
    columns = ["tenant_id", "customer_ref", "occurred_at", "quantity"]
    found = ds.dataset(export).sort_by("ingress_sequence").head(events, columns=columns)
    found = found.set_column(2, "occurred_ms", pc.divide(found["occurred_at"], 1_000_000))
    options = pc_csv.WriteOptions(include_header=False, quoting_style="none")
    turns = pa.array([number % files for number in range(found.num_rows)], pa.int64())
    for number in range(files):
        pc_csv.write_csv(found.filter(pc.equal(turns, number)), directory / f"{number}.csv", options)
    return int(found.num_rows)


if __name__ == "__main__":
    export, out, *numbers = sys.argv[1:]
    print(json.dumps(main(export, Path(out), *map(int, numbers))))
