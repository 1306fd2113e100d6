"""DuckDB on one thread: sums per customer and month of a Parquet file, in a process of its own.

Apart, so that its memory is not counted as the fold's. Run as `python -m`; prints the seconds of each round.
"""

from __future__ import annotations

import json
import sys
import time

_SUMS = """
    CREATE OR REPLACE TEMP TABLE sums AS
    SELECT tenant_id, customer_ref, date_trunc('month', make_timestamp(occurred_at // 1000)) AS period,
        sum(quantity) AS quantity, count(*) AS events, max(occurred_at) AS latest
    FROM read_parquet('{files}') GROUP BY ALL"""


def main(directory: str, rounds: int) -> None:
    import duckdb

    with duckdb.connect(config={"threads": 1}) as connection:
        seconds = []
        for _ in range(rounds):
            started = time.perf_counter()
            connection.execute(_SUMS.format(files=f"{directory}/*.parquet"))
            seconds.append(time.perf_counter() - started)
        print(json.dumps(seconds))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
