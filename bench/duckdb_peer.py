"""DuckDB beside the fold and the loader: sums of Parquet files by month or window, and the same files written again.

In a process of its own, so that its memory is not counted as ours: `python -m bench.duckdb_peer sums|copy ...` prints
the seconds.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

_SUMS = {
    "months": """
        SELECT tenant_id, customer_ref, date_trunc('month', make_timestamp(occurred_at // 1000)) AS period,
            sum(quantity) AS quantity, count(*) AS events, max(occurred_at) AS latest""",
    "windows": """
        SELECT tenant_id, customer_ref, occurred_at // 10000000000 AS window_number,
            sum(quantity) AS quantity, count(*) AS events""",
}


def sums(directory: str, kind: str, rounds: int) -> list[float]:
    """The seconds of each round on one thread."""
    import duckdb

    source = f"FROM read_parquet('{directory}/*.parquet') GROUP BY ALL"
    with duckdb.connect(config={"threads": 1}) as connection:
        seconds = []
        for _ in range(rounds):
            started = time.perf_counter()
            connection.execute(f"CREATE OR REPLACE TEMP TABLE sums AS {_SUMS[kind]} {source}")
            seconds.append(time.perf_counter() - started)
        return seconds


def copy(source: str, target: str, threads: int) -> float:
    """The seconds in which the files of a lake are written once more, with the same columns and compression."""
    import duckdb

    Path(target).mkdir(parents=True, exist_ok=True)
    with duckdb.connect(config={"threads": threads}) as connection:
        started = time.perf_counter()
        for file in sorted(Path(source).glob("*.parquet")):
            connection.execute(
                f"COPY (SELECT * FROM read_parquet('{file}')) TO '{target}/{file.name}' "
                "(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 1000000)"
            )
        return time.perf_counter() - started


if __name__ == "__main__":
    what, first, second, count = sys.argv[1:]
    print(json.dumps(sums(first, second, int(count)) if what == "sums" else copy(first, second, int(count))))
