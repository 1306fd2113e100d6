"""Control events from a process that does not serve: definition changes, drains, triggers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tidelock.ingest.identity import Salts
from tidelock.instants import SECOND
from tidelock.ledger.losttail import refuse_lost_tail
from tidelock.ledger.salts import open_salts
from tidelock.ledger.sequencedatabase import Breaker, SequenceDatabase
from tidelock.ledger.sequencer import Limits, Sequencer
from tidelock.model import Accepted
from tidelock.postgres.database import Database
from tidelock.postgres.reconnect import database_errors
from tidelock.settings import Settings


def limits_of(settings: Settings) -> Limits:
    """How much the sequencer takes at once."""
    return Limits(
        commit_events_max=settings.commit_events_max,
        commit_bytes_max=settings.commit_bytes_max,
        queue_events_max=settings.queue_events_max,
        queue_bytes_max=settings.queue_bytes_max,
        queue_requests_max=settings.queue_requests_max,
        future_tolerance_ns=settings.future_tolerance,
        lock_timeout_s=settings.lock_timeout_s,
        commit_timeout_s=settings.commit_timeout_s,
    )


def numbers_of(settings: Settings) -> SequenceDatabase | None:
    """The sequence database that the settings name, if they do."""
    url = settings.event_sequence_database_url
    if url is None:
        return None
    breaker = Breaker(settings.event_sequence_failures_max, settings.event_sequence_pause / SECOND)
    database = Database(url, settings.connect_timeout_s)
    return SequenceDatabase(database, settings.event_sequence_timeout / SECOND, breaker)


def record_control(settings: Settings, database: Database, data: Mapping[str, Any]) -> Accepted:
    """Record a control event, beside whoever else writes this ledger."""

    async def record() -> Accepted:
        async with opened_sequencer(settings, database) as sequencer:
            return await sequencer.control(data)

    return asyncio.run(record())


@asynccontextmanager
async def opened_sequencer(settings: Settings, database: Database) -> AsyncIterator[Sequencer]:
    """A sequencer for the time of the block. Raises Difference where the ledger's tail is gone."""
    await refuse_lost_tail(database, settings.anchor_path)
    with database_errors("the ledger"):
        salts = await database.patience.insist(lambda: _salts(settings, database))
    sequencer = Sequencer(database, salts, limits_of(settings), numbers=numbers_of(settings))
    await sequencer.start()
    try:
        yield sequencer
    finally:
        await sequencer.close()


async def _salts(settings: Settings, database: Database) -> Salts:
    async with await database.connect(name="tidelock control") as connection:
        return await open_salts(connection, settings.salt)
