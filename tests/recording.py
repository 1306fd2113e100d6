"""Short ways to record events in tests: wire events as dictionaries, a sequencer on a database."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tests.budgets import HANG_S
from tidelock.clock import Clock, database_clock
from tidelock.definitions import Definitions
from tidelock.ingest.admit import Admission
from tidelock.ingest.body import JSON, decode
from tidelock.ingest.identity import Salts
from tidelock.ledger.salts import open_salts
from tidelock.ledger.sequencer import Limits, Sequencer
from tidelock.ledger.writer import ensure_partitions
from tidelock.model import Event, Rejected, Verdict
from tidelock.postgres.database import Database

HOUR = 3600 * 1_000_000_000
LIMITS = Limits(
    commit_events_max=10_000, commit_bytes_max=2**25, queue_events_max=100_000, queue_bytes_max=2**28,
    queue_requests_max=1000, future_tolerance_ns=HOUR, lock_timeout_s=10, commit_timeout_s=30,
)  # fmt: skip


def judged(
    events: Sequence[Mapping[str, Any]], salts: Salts, definitions: Definitions | None = None
) -> list[Event | Rejected]:
    """Events as a request would bring them, admitted."""
    body = decode(msgspec.json.encode([{"stream": "s"} | dict(event) for event in events]), JSON, 10_000)
    admission = Admission(definitions or Definitions(), salts, True, 1 << 20, 64)
    return [wire if isinstance(wire, Rejected) else admission.admit(wire) for wire in body.events]


@asynccontextmanager
async def sequencing(
    database: Database, *, clock: Clock = database_clock, limits: Limits = LIMITS, salt: str | None = None
) -> AsyncIterator[Sequencer]:
    async with await database.connect() as connection:
        salts = await open_salts(connection, salt)
        await ensure_partitions(connection, 1_000_000)
    sequencer = Sequencer(database, salts, limits, clock)
    await sequencer.start()
    try:
        yield sequencer
    finally:
        await sequencer.close()


async def record(
    sequencer: Sequencer, *events: Mapping[str, Any], definitions: Definitions | None = None
) -> list[Verdict]:
    """Record one request."""
    return await sequencer.record(judged(events, sequencer.salts, definitions), sequencer.salts.version)


async def rows(database: Database, query: str) -> list[tuple[Any, ...]]:
    async with await database.connect() as connection:
        return await (await connection.execute(query.encode())).fetchall()


async def until_waited_for(database: Database) -> None:
    """Until somebody waits for a lock."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(HANG_S):
        while await rows(database, waiting) == [(0,)]:  # noqa: ASYNC110  # a test may poll
            await asyncio.sleep(0.01)
