"""The composition: opens the stages in the order events flow through them, closes them in reverse.

The one place that sees all of them; nothing here decides anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from tidelock.clock import Clock, database_clock
from tidelock.ingest.intake import Intake
from tidelock.ledger.database import Database
from tidelock.ledger.migrate import migrate
from tidelock.ledger.partitions import ensure_partitions
from tidelock.ledger.salts import open_salts
from tidelock.ledger.sequencer import Limits, Sequencer
from tidelock.settings import Settings


@dataclass(frozen=True, slots=True)
class Ledger:
    """An open ledger: everything needed to record events and to read them."""

    settings: Settings
    database: Database
    sequencer: Sequencer
    intake: Intake


def open_database(settings: Settings) -> Database:
    postgres = settings.postgres
    config = {"shared_buffers": postgres.shared_buffers, "max_wal_size": postgres.max_wal_size, **postgres.config}
    return Database.open(settings.database_url, settings.data, postgres.binaries, config)


@asynccontextmanager
async def open_ledger(
    settings: Settings, *, streams_open: bool, clock: Clock = database_clock
) -> AsyncIterator[Ledger]:
    """The ledger, migrated and ready to record."""
    async with AsyncExitStack() as stack:
        database = await asyncio.to_thread(open_database, settings)
        stack.callback(database.close)
        await asyncio.to_thread(_migrate, database)
        async with await database.connect(name="tidelock start") as connection:
            salts = await open_salts(connection, settings.salt)
            await ensure_partitions(connection, settings.partition_events)
        sequencer = Sequencer(database, salts, _limits(settings), clock)
        await sequencer.start()
        stack.push_async_callback(sequencer.close)
        opened = settings.streams_open if settings.streams_open is not None else streams_open
        intake = Intake(sequencer, settings.definitions, settings, streams_open=opened)
        yield Ledger(settings, database, sequencer, intake)


def _migrate(database: Database) -> None:
    with database.connect_sync(name="tidelock migrate") as connection:
        migrate(connection)


def _limits(settings: Settings) -> Limits:
    return Limits(
        commit_events_max=settings.commit_events_max,
        queue_events_max=settings.queue_events_max,
        queue_requests_max=settings.queue_requests_max,
        future_tolerance_ns=settings.future_tolerance,
        lock_timeout_s=settings.lock_timeout_s,
    )
