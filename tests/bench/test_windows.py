"""`bench windows`, with numbers so small that their figures mean nothing: everything is there, and compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import commands as bench
from bench.backlog import Backlog, Pace
from bench.judgement import judged
from bench.windows import STEPS, measure_ledger
from tests.conftest import Databases
from tidelock.errors import Difference
from tidelock.instants import SECOND
from tidelock.postgres.database import Database
from tidelock.settings import Settings
from tidelock.spark.runtime import Spark

#: a range that Spark reads, and one that goes on from what is stored
EVENTS = 30_000
KEYS = 100


@pytest.mark.timeout(900)
def test_windows_are_measured_beside_the_streaming_of_spark(spark: Spark, databases: Databases, tmp_path: Path) -> None:
    said: list[str] = []
    with databases() as database:
        figures = measure_ledger(
            spark, database, Settings(), keys=KEYS, events=EVENTS, say=said.append, directory=tmp_path, again=False
        )
    assert set(bench._WINDOWS_ROWS) < set(figures), "every row of the table has its figure"
    assert (figures["keys"], figures["events"]) == (KEYS, EVENTS)
    for name in ("sparkSums", "sparkExport", "sparkStreaming", "duckdb", "fold", "open", "ordered", "held"):
        assert figures[f"{name}EventsPerSecond"], name
    # Five minutes, of which the last seconds are open; one event in a thousand lies a minute behind.
    closed, late = int(str(figures["windows"])), int(str(figures["lateRows"]))
    assert 28 * KEYS < closed < 30 * KEYS
    assert EVENTS // 1_000 - 1 <= late <= EVENTS // 1_000
    assert figures["changes"] == closed + late
    assert sum(float(str(figures[name])) for name in STEPS.values()) == pytest.approx(1.0, abs=0.01)
    assert figures["shareGather"]
    assert int(str(figures["openWaiting"])) > closed * 0.7
    assert int(str(figures["heldWaiting"])) > EVENTS * 0.7 > 10 * int(str(figures["orderedWaiting"]))
    assert any("held back" in line for line in said)


def test_windows_that_are_wrong_are_not_measured(database: Database) -> None:
    backlog = Backlog(database, 5_000, 100, 1_000_000, Pace(SECOND // 100, 2 * SECOND, 1_000, 60 * SECOND))
    with database.connect_sync() as connection:
        columns = "tenant_id text, customer_ref text, window_start bigint, events bigint, quantity numeric"
        connection.execute(f"CREATE TABLE tidelock_tables.per_customer ({columns})".encode())
        connection.execute(b'CREATE TABLE tidelock_tables."per_customer$open" (customer_ref text)')
    with judged(backlog, 5 * SECOND, 10 * SECOND) as judgement:
        with pytest.raises(Difference, match="late: 4 rows"):
            judgement.windows()
        with pytest.raises(Difference, match="Spark's windows hold 3 events"):
            judgement.check_streamed(3)
    with database.connect_sync() as connection:
        connection.execute(
            b'INSERT INTO tidelock_tables.late_rows (tenant_id, "$key", source_timestamp, "window", ingress_sequence, '
            b"event_time, watermark, reason) SELECT tenant_id, ingress_sequence, 0, 'per_customer', ingress_sequence, "
            b"0, 0, 'late' FROM events WHERE ingress_sequence % 1000 = 0 AND ingress_sequence > 1000"
        )
    with judged(backlog, 5 * SECOND, 10 * SECOND) as judgement, pytest.raises(Difference, match=r"windows: \d+ rows"):
        judgement.windows()
