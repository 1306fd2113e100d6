"""Closing and exporting: how long many counters take, what memory, and what ingest's latency is meanwhile."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bench import scratch
from bench.harness import Say
from bench.memory import peak_mb
from tidelock.definitions import parse_definitions
from tidelock.errors import Difference, Unreachable
from tidelock.fold.redefine.catalog import write_catalog_sql
from tidelock.instants import parse_rfc3339
from tidelock.postgres.database import Database
from tidelock.postgres.queries import load
from tidelock.tables import tables_of

QUERIES = load("bench", "closing.sql")

METERS = parse_definitions({"meters": {"calls": {"period": "month"}}})
_START, _END = "2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z"
#: ingest is measured for so long before the close
_BEFORE_S = 10.0
#: between two requests of one event
_PAUSE_S = 0.01
#: as what the tables are made by is stored
_VERSION = 1


@dataclass
class Latencies:
    """Of requests of one event, in seconds."""

    before: list[float] = field(default_factory=list)
    during: list[float] = field(default_factory=list)


def measure(counters: int, say: Say, *, config: Path | None = None, place: Path | None = None) -> dict[str, Any]:
    """Figures of one close and one export of so many counters, made in `place`."""
    alone = {"TIDELOCK_FOLD_ENABLED": "false"}
    with scratch.directory(place) as data, scratch.server(data, config, alone) as served:
        database = Database.open(None, data, None, {})
        try:
            return _measured(database, data, f"http://{served.host}:{served.port}", counters, say)
        finally:
            database.close()


def _measured(database: Database, data: Path, url: str, counters: int, say: Say) -> dict[str, Any]:
    _fill(database, counters)
    say(f"  {counters:,} counters of last March")
    latencies = Latencies()
    seconds, driver_mb = asyncio.run(_closed(database, url, latencies))
    _check(database, counters)
    say(f"  closed in {seconds:.1f} s")
    export_s, export_mb = _exported(data, counters)
    before, during = _p99(latencies.before), _p99(latencies.during)
    return {
        "counters": counters,
        "closeSeconds": round(seconds, 2),
        "closeCountersPerSecond": round(counters / seconds),
        "closeDriverMb": driver_mb,
        "ingestP99BeforeMs": round(before * 1000, 2),
        "ingestP99DuringMs": round(during * 1000, 2),
        "ingestP99Ratio": round(during / before, 2),
        "exportRowsPerSecond": round(counters / export_s),
        "exportMb": export_mb,
    }


def _fill(database: Database, counters: int) -> None:
    with database.connect_sync() as connection:
        tables = tables_of(METERS).values()
        connection.execute(write_catalog_sql(_VERSION, METERS, tables).encode())
        connection.execute(QUERIES["cursor"])
        connection.execute(QUERIES["counters"], {"counters": counters, "start": parse_rfc3339(_START)})
        connection.execute("VACUUM ANALYZE tidelock_tables.counters")
        connection.execute("CHECKPOINT")


async def _closed(database: Database, url: str, latencies: Latencies) -> tuple[float, int | None]:
    """How long the fold takes over the close, in a process of its own, and its peak memory."""
    async with httpx.AsyncClient(base_url=url) as client:
        done = asyncio.Event()
        ingesting = asyncio.create_task(_ingest(client, latencies.before, done))
        await asyncio.sleep(_BEFORE_S)
        done.set()
        await ingesting
        answer = await client.post("/v1/periods/close", json={"through": _END})
        if answer.json().get("ingressSequence") is None:
            raise Difference(f"nothing was closed: {answer.text}")
        done = asyncio.Event()
        ingesting = asyncio.create_task(_ingest(client, latencies.during, done))
        command = [sys.executable, "-m", "bench.closing", database.url, str(answer.json()["ingressSequence"])]
        folding = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        told, _ = await folding.communicate()
        done.set()
        await ingesting
    if folding.returncode:
        raise Unreachable("the fold of the close failed; see above")
    seconds, peak = told.decode().split()
    return float(seconds), int(peak)


async def _ingest(client: httpx.AsyncClient, latencies: list[float], done: asyncio.Event) -> None:
    """One small request after another."""
    while not done.is_set():
        begun = time.perf_counter()
        answer = await client.post("/v1/events", json={"stream": "other", "customerRef": "c"})
        latencies.append(time.perf_counter() - begun)
        if answer.status_code != 200:
            raise Difference(f"an event was not taken: {answer.text}")
        await asyncio.sleep(_PAUSE_S)


def _check(database: Database, counters: int) -> None:
    with database.connect_sync() as connection:
        row = connection.execute(QUERIES["stated"]).fetchone()
    if row != (counters, counters):
        raise Difference(f"of {counters} counters {row} were stated and told")


def _exported(data: Path, counters: int) -> tuple[float, int]:
    """Seconds and peak memory of `tidelock usage --format csv`."""
    command = [sys.executable, "-m", "tidelock", "usage", "calls", "--format", "csv", "--data", str(data)]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as exporting:
        assert exporting.stdout is not None
        lines = 0
        while chunk := exporting.stdout.read(1 << 20):
            lines += chunk.count(b"\n")
        _, status, used = os.wait4(exporting.pid, 0)
        exporting.returncode = os.waitstatus_to_exitcode(status)
    if lines != counters + 1:
        raise Difference(f"{lines} lines were exported of {counters} counters")
    return time.perf_counter() - begun, used.ru_maxrss // 1024


def _p99(latencies: list[float]) -> float:
    return sorted(latencies)[len(latencies) * 99 // 100]


def fold_close(url: str, sequence: int) -> None:
    """What the fold does with a close, but for Spark, which has no part in it; tells seconds and peak memory."""
    from tidelock.fold.closing import Closings
    from tidelock.fold.ranges import next_range
    from tidelock.fold.store import Store
    from tidelock.tables import SCHEMA

    database = Database(url)
    store = Store(database, SCHEMA, "fold")
    with database.connect_sync() as connection:
        connection.execute("UPDATE cursors SET sequence = %s WHERE name = 'fold'", (sequence - 1,))
    closings = Closings(store, METERS, due=True)
    event = next_range(store, sequence - 1, 1, sequence)
    assert event is not None
    assert event.control is not None
    store.rollback()
    begun = time.perf_counter()
    due = closings.due(event.control)
    store.apply(event.lo, event.hi, closings.outcomes(event), changes=True, afterwards=due)
    print(time.perf_counter() - begun, peak_mb(os.getpid()))
    store.close()


if __name__ == "__main__":
    fold_close(sys.argv[1], int(sys.argv[2]))
