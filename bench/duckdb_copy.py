"""DuckDB writes the files of a lake once more, with the same columns and compression.

In a process of its own, as `duckdb_sums`. Run as `python -m`; prints the seconds.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main(source: str, target: str, threads: int) -> None:
    import duckdb

    Path(target).mkdir(parents=True, exist_ok=True)
    with duckdb.connect(config={"threads": threads}) as connection:
        started = time.perf_counter()
        for file in sorted(Path(source).glob("*.parquet")):
            connection.execute(
                f"COPY (SELECT * FROM read_parquet('{file}')) TO '{target}/{file.name}' "
                "(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 1000000)"
            )
        print(json.dumps(time.perf_counter() - started))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
