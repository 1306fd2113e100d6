"""Processes with eight writers each on one ledger, and a reader that follows: one order for all of them."""

import asyncio
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.recording import rows
from tidelock.ledger.reader import Slice, read_events
from tidelock.postgres.database import Database

PROCESSES = 3
REQUESTS = 10
ROOT = Path(__file__).parent.parent.parent


async def start_writer(database: Database, number: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.faults.writer", database.url, str(number), str(REQUESTS),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def follow(database: Database, stop: asyncio.Event) -> list[int]:
    """A plain reader: everything above the last sequence it saw, over and over."""
    seen: list[int] = []
    async with await database.connect() as connection:
        while True:
            last_round = stop.is_set()
            events = await read_events(connection, Slice(after=seen[-1] if seen else 0), limit=500)
            seen += [event.ingress_sequence for event in events]
            if last_round and not events:
                return seen


async def test_many_writers_on_one_ledger_leave_one_dense_order_that_a_reader_never_misses(database: Database) -> None:
    stop = asyncio.Event()
    reader = asyncio.create_task(follow(database, stop))
    writers = [await start_writer(database, number) for number in range(PROCESSES)]
    outputs = await asyncio.gather(*(writer.communicate() for writer in writers))
    assert [writer.returncode for writer in writers] == [0] * PROCESSES
    stop.set()
    seen = await reader
    acknowledged: list[dict[str, Any]] = [answer for output, _ in outputs for answer in json.loads(output)]

    assert seen == list(range(1, len(seen) + 1)), "no gap, no repeat, nothing missed"
    stored = await rows(
        database, "SELECT ingress_sequence, idempotency_key, source_timestamp, commit_id FROM events ORDER BY 1"
    )
    assert [row[0] for row in stored] == seen
    by_key = {row[1]: row for row in stored}
    assert len(by_key) == len(stored), "each key once"
    for answer in acknowledged:
        found = [by_key[key] for key in answer["keys"]]
        assert [row[0] for row in found] == answer["sequences"]
        assert all(later == earlier + 1 for earlier, later in pairwise(answer["sequences"])), "array order"
        assert len({row[2] for row in found}) == 1, "one source timestamp per request"
    assert {key for answer in acknowledged for key in answer["keys"]} == set(by_key)
    assert all(earlier[2] <= later[2] for earlier, later in pairwise(stored)), "source timestamps never decrease"
    assert len({row[2] for row in stored}) == PROCESSES * 8 * REQUESTS, "each request has a time of its own"
    commits = await rows(database, "SELECT commit_id, first_sequence, last_sequence FROM commits ORDER BY 1")
    assert [commit[0] for commit in commits] == list(range(1, len(commits) + 1))
    assert all(later[1] == earlier[2] + 1 for earlier, later in pairwise(commits))
