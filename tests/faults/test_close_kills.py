"""kill -9 amid a close of many counters: all of it is there or nothing, and in the end every counter is stated once.

`SOAK_SEED` repeats a run's choices, `SOAK_KILLS` makes the long form longer or shorter.
"""

import asyncio
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bench.closing import _fill
from tests.faults.killing import Victims, kills_of_a_soak, started
from tests.faults.processes import until
from tests.faults.servers import ROOT
from tests.faults.test_fold_kills import Folded, kill_one
from tests.recording import sequencing
from tidelock.instants import parse_rfc3339
from tidelock.postgres.database import Database
from tidelock.usage.closing import WantedClose, close_periods

END = "2026-04-01T00:00:00Z"
CONFIG = """
[spark]
master = "local[2]"
driver_memory = "768MiB"
[meters.calls]
period = "month"
"""
_AMID = """
SELECT count(*) > 0 FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'
    AND (query LIKE '%unstated%' OR query LIKE 'COPY%"statements"%' OR query LIKE 'COPY%"changes"%')
"""
_STATED = """
SELECT (SELECT count(*) FROM tidelock_tables.statements), (
    SELECT coalesce(sum(rows), 0)::bigint FROM changes WHERE table_name = 'statements'
)
"""
_WRONG = """
SELECT count(*) FROM tidelock_tables.statements AS stated
LEFT JOIN tidelock_tables.counters AS it USING (tenant_id, "$key")
WHERE (stated.value, stated.total, stated.event_count) IS DISTINCT FROM (it.value, it.total, it.agg_count)
"""
_TENANT = """
INSERT INTO tidelock_tables.counters (
    tenant_id, "$key", metric, customer_ref, period_start, agg_sum, agg_count, agg_max, agg_min, agg_last, watermark_ts,
    value, total, source_timestamp, last_at, adj_sum, adj_count
)
SELECT %s, '["calls","customer_' || n || '","2026-03-01T00:00:00Z"]', 'calls', 'customer_' || n, %s,
    n, 3, n, 1, 2, %s + n, n, n, 1, %s + n, 0, 0
FROM generate_series(1, %s) AS n
"""


def test_a_fold_that_is_killed_amid_a_close_leaves_all_of_it_or_nothing(database: Database) -> None:
    counters, chance = 40_000, random.Random(seed := random.randrange(10**6))
    print(f"seed {seed}")
    _fill(database, counters)
    sequence = asyncio.run(_closed(database))
    with database.connect_sync() as connection:
        for _ in range(2):
            with _folding(database, sequence) as process:
                until(lambda: _amid(connection) or process.poll() is not None, "a fold is amid the close")
                time.sleep(chance.random() * 0.1)
                process.kill()
            until(lambda: not _amid(connection), "Postgres has given up what the killed fold had begun")
            assert _one(connection, _STATED) in ((0, 0), (counters, counters)), f"seed {seed}"
        with _folding(database, sequence) as process:
            assert process.wait() == 0
        assert _one(connection, _STATED) == (counters, counters)
        assert _one(connection, _WRONG) == (0,)


async def _closed(database: Database) -> int:
    async with sequencing(database) as sequencer:
        sequence = await close_periods(sequencer, WantedClose(parse_rfc3339(END)))
    assert sequence is not None
    return sequence


def _folding(database: Database, sequence: int) -> subprocess.Popen[bytes]:
    """What the fold does with the close, in a process of its own."""
    command = [sys.executable, "-m", "bench.closing", database.url, str(sequence)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_kills_amid_closes_change_nothing(jars: Path, tmp_path: Path) -> None:
    """Tenant after tenant is closed, and while it is, the fold, its JVM, the server or Postgres is killed."""
    victims, counters, amid = Victims({"fold": 3, "jvm": 1, "server": 1, "postgres": 2}), 100_000, 0
    with started(Folded, jars, tmp_path, CONFIG) as server:
        server.wait_until_ready(180)
        for number, victim in enumerate(victims.draw(kills_of_a_soak(20)), start=1):
            tenant = f"t{number}"
            sequence = _close_of(server, tenant, counters)
            _wait_until_amid(server, sequence)
            time.sleep(victims.chance.random() * 0.8)
            amid += server.folded() < sequence
            kill_one(server, victims, victim)
            server.wait_until_ready(180)
            server.wait_until_folded(sequence)
            with server.database.connect_sync() as connection:
                assert _one(connection, _STATED) == (number * counters, number * counters), (victims.seed, number)
        with server.database.connect_sync() as connection:
            assert _one(connection, _WRONG) == (0,)
    print(f"{victims}, {amid} of them before the close was folded: {number * counters:,} statements, each told once")


def _close_of(server: Folded, tenant: str, counters: int) -> int:
    """Fills the month of another tenant, and closes it; gives the sequence of the close."""
    event = {"stream": "other", "customerRef": "x", "tenantId": tenant}
    assert server.client.post("/v1/events", json=[event]).json()["accepted"] == 1
    server.wait_until_folded(server.head())
    start = parse_rfc3339("2026-03-01T00:00:00Z")
    with server.database.connect_sync() as connection:
        connection.execute(_TENANT, (tenant, start, start, start, counters))
    answer = server.client.post("/v1/periods/close", json={"through": END, "tenantId": tenant})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["ingressSequence"])


def _wait_until_amid(server: Folded, sequence: int) -> None:
    with server.database.connect_sync() as connection:
        until(lambda: _amid(connection) or server.folded() >= sequence, "the fold is amid the close")


def _amid(connection: psycopg.Connection[Any]) -> bool:
    return bool(_one(connection, _AMID)[0])


def _one(connection: psycopg.Connection[Any], query: str) -> tuple[Any, ...]:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return tuple(row)
