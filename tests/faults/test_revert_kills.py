"""kill -9 of `tidelock revert`: a batch is void once, and every counter is what it was before the batch, as previewed.

`SOAK_ROWS` makes the long form longer or shorter, `SOAK_SEED` repeats its choices.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commandline import process, run
from tests.faults.processes import until
from tests.fold.folding import Folding
from tidelock.instants import format_instant
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark

Json = dict[str, Any]

CONFIG = """
[meters.calls]
period = "day"
lateness = "6h"
[meters.calls_peak]
stream = "calls"
aggregation = "max"
period = "day"
lateness = "6h"
[meters.calls_last]
stream = "calls"
aggregation = "last"
period = "month"
lateness = "2d"
[meters.calls_count]
stream = "calls"
aggregation = "count"
period = "hour"
"""
_COUNTERS = b"""SELECT metric, customer_ref, period_start, trim_scale(value)::text, trim_scale(total)::text
    FROM tidelock_tables.counters"""
_VOIDS = b"SELECT count(*), count(DISTINCT target_sequence) FROM events WHERE op = 'void'"
_NOTHING = ("0", None)


def test_a_revert_that_is_killed_is_done_once_and_as_previewed(
    spark: Spark, database: Database, tmp_path: Path
) -> None:
    _revert_through_kills(spark, database, tmp_path, rows=4_000, kills=1, seed=random.randrange(10**6))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_hundred_thousand_rows_are_reverted_once_through_three_kills(
    spark: Spark, database: Database, tmp_path: Path
) -> None:
    """Prints the figures for docs/proofs.md."""
    rows = int(os.environ.get("SOAK_ROWS", "100000"))
    seed = int(os.environ.get("SOAK_SEED", random.randrange(10**6)))
    _revert_through_kills(spark, database, tmp_path, rows=rows, kills=3, seed=seed)


def _revert_through_kills(spark: Spark, database: Database, folder: Path, *, rows: int, kills: int, seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    (folder / "tidelock.toml").write_text(CONFIG)
    with Folding(spark, database, tomllib.loads(CONFIG)) as folding:
        _imported(database, folder / "kept.csv", chance, rows // 5, first=0)
        folding.catch_up()
        before = _counters(database)
        batch = _imported(database, folder / "wrong.csv", chance, rows, first=1_000_000)
        folding.catch_up()
        between, preview = _counters(database), _previewed(database, folder, batch)
        assert (preview["voids"], preview["leftCount"]) == (rows, 0)
        for kill in range(1, kills + 1):
            _kill(database, folder, batch, least=chance.uniform(kill - 0.9, kill - 0.1) * rows / (kills + 1))
        started = time.monotonic()
        result = json.loads(run(database, "revert", batch, "--json").stdout)
        print(f"to its end: {result} in {time.monotonic() - started:.1f} s")
        assert result["voided"] + result["duplicates"] == rows
        assert _voids(database) == (rows, rows)
        started = time.monotonic()
        folding.catch_up()
        print(f"{rows:,} voids folded in {time.monotonic() - started:.1f} s")
        after = _counters(database)
    expected = dict(between)
    for each in preview["counters"]:
        place = each["metric"], each["customerRef"], each["periodStart"]
        assert between[place] == (each["value"], each["total"])
        expected[place] = each["valueAfter"], each["totalAfter"]
    assert after == expected
    # What the batch alone had made remains with nothing in it; a counter of before has its total again, and its value
    # where the batch has not moved its watermark past what it had.
    assert {place: total for place, (_, total) in after.items() if place in before} == {
        place: total for place, (_, total) in before.items()
    }
    assert all(figure in _NOTHING for place, (_, figure) in after.items() if place not in before)


def _imported(database: Database, file: Path, chance: random.Random, rows: int, *, first: int) -> str:
    """A file of a month, and the batch that its import names."""
    lines = ["stream,customerRef,ts,quantity,idempotencyKey"]
    for number in range(first, first + rows):
        at = f"2026-03-{chance.randrange(1, 29):02}T{chance.randrange(24):02}:00:00Z"
        lines.append(f"calls,cus_{chance.randrange(40)},{at},{chance.randrange(1, 1000)}.5,k{number}")
    file.write_text("\n".join(lines) + "\n")
    started = time.monotonic()
    told = json.loads(run(database, "import", file, "--json").stdout)
    print(f"{told['accepted']:,} rows imported in {time.monotonic() - started:.1f} s")
    assert told["accepted"] == rows
    return str(told["batchId"])


def _previewed(database: Database, folder: Path, batch: str) -> Json:
    started = time.monotonic()
    preview: Json = json.loads(
        run(database, "revert", batch, "--preview", "--json", "--config", folder / "tidelock.toml").stdout
    )
    print(f"{len(preview['counters']):,} counters previewed in {time.monotonic() - started:.1f} s")
    return preview


def _kill(database: Database, folder: Path, batch: str, least: float) -> None:
    with process("revert", batch, "--json", "--database-url", database.url, cwd=folder) as running:
        until(lambda: _voids(database)[0] > least or running.poll() is not None, "it voids", 600)
        if running.poll() is None:
            os.kill(running.pid, signal.SIGKILL)
        running.communicate()
    print(f"killed with {_voids(database)[0]:,} voids")


def _voids(database: Database) -> tuple[int, int]:
    with database.connect_sync() as connection:
        (found,) = connection.execute(_VOIDS).fetchall()
    return found


def _counters(database: Database) -> dict[tuple[str, str, str], tuple[str | None, str | None]]:
    with database.connect_sync() as connection:
        found = connection.execute(_COUNTERS).fetchall()
    return {
        (metric, customer, format_instant(start)): (value, total) for metric, customer, start, value, total in found
    }
