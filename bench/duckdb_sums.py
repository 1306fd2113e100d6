"""DuckDB on one thread: sums per customer and month, or window of ten seconds, of Parquet files.

In a process of its own, so that its memory is not counted as the fold's. Run as `python -m`; prints the seconds of
each round.
"""

from __future__ import annotations

import json
import sys
import time

_SUMS = {
    "months": """
        SELECT tenant_id, customer_ref, date_trunc('month', make_timestamp(occurred_at // 1000)) AS period,
            sum(quantity) AS quantity, count(*) AS events, max(occurred_at) AS latest""",
    "windows": """
        SELECT tenant_id, customer_ref, occurred_at // 10000000000 AS window_number,
            sum(quantity) AS quantity, count(*) AS events""",
}


def main(directory: str, sums: str, rounds: int) -> None:
    import duckdb

    source = f"FROM read_parquet('{directory}/*.parquet') GROUP BY ALL"
    with duckdb.connect(config={"threads": 1}) as connection:
        seconds = []
        for _ in range(rounds):
            started = time.perf_counter()
            connection.execute(f"CREATE OR REPLACE TEMP TABLE sums AS {_SUMS[sums]} {source}")
            seconds.append(time.perf_counter() - started)
        print(json.dumps(seconds))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
