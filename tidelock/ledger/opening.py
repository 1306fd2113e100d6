"""Opening the ledger named by the settings: its database, what recording needs, and a sequencer besides the server's.

A command that only reads never creates a ledger. One that changes definitions, drains or manages triggers records
control events with its own sequencer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from tidelock.clock import Clock, database_clock
from tidelock.errors import Unreachable
from tidelock.ingest.identity import Salts
from tidelock.ingest.intake import Intake
from tidelock.instants import SECOND
from tidelock.ledger.losttail import accept, find_lost_tail, refuse_lost_tail
from tidelock.ledger.salts import open_salts
from tidelock.ledger.sequencedatabase import Breaker, SequenceDatabase
from tidelock.ledger.sequencer import Limits, Sequencer
from tidelock.ledger.writer import ensure_partitions
from tidelock.model import Accepted
from tidelock.postgres.database import Database
from tidelock.postgres.migrate import migrate, status
from tidelock.postgres.reconnect import database_errors
from tidelock.settings import Settings


def open_database(settings: Settings) -> Database:
    """The server named by the settings, else the embedded one, running."""
    postgres = settings.postgres
    config = {"shared_buffers": postgres.shared_buffers, "max_wal_size": postgres.max_wal_size, **postgres.config}
    return Database.open(
        settings.database_url,
        settings.data,
        postgres.binaries,
        config,
        connect_timeout_s=settings.connect_timeout_s,
        outage_patience_s=settings.outage_patience / SECOND,
    )


def migrate_ledger(database: Database) -> None:
    """Create the ledger in the database or bring it up to date."""
    database.patience.insist_sync(lambda: _migrate(database))


def _migrate(database: Database) -> None:
    with database.connect_sync(name="tidelock migrate") as connection:
        migrate(connection)


async def prepare_ledger(database: Database, settings: Settings) -> Salts:
    """What recording needs besides the tables: salts, which it returns, and partitions."""
    return await database.patience.insist(lambda: _prepare(database, settings))


async def _prepare(database: Database, settings: Settings) -> Salts:
    async with await database.connect(name="tidelock start") as connection:
        salts = await open_salts(connection, settings.salt)
        await ensure_partitions(connection, settings.partition_events)
    return salts


@dataclass(frozen=True, slots=True)
class Ledger:
    """An open ledger: everything needed to record events and to read them."""

    settings: Settings
    database: Database
    sequencer: Sequencer
    intake: Intake


@asynccontextmanager
async def open_ledger(
    settings: Settings, *, streams_open: bool, clock: Clock = database_clock, accept_lost_tail: bool = False
) -> AsyncIterator[Ledger]:
    """The ledger, migrated and ready to record. Raises Difference if its tail is gone, unless the loss is accepted."""
    async with AsyncExitStack() as stack:
        database = await asyncio.to_thread(open_database, settings)
        stack.callback(database.close)
        await asyncio.to_thread(migrate_ledger, database)
        lost = await database.patience.insist(lambda: find_lost_tail(database, settings.anchor_path))
        if lost is not None and not accept_lost_tail:
            raise lost.refusal()
        salts = await prepare_ledger(database, settings)
        sequencer = Sequencer(database, salts, limits_of(settings), clock, numbers=numbers_of(settings))
        await sequencer.start()
        stack.push_async_callback(sequencer.close)
        if lost is not None:
            await accept(lost, sequencer, settings.anchor_interval)
        opened = settings.streams_open if settings.streams_open is not None else streams_open
        intake = Intake(sequencer, settings.definitions, settings, streams_open=opened)
        yield Ledger(settings, database, sequencer, intake)


@contextmanager
def made_ledger(settings: Settings) -> Iterator[Database]:
    """The database, with a ledger, which is created if missing."""
    with open_database(settings) as database, database_errors("the ledger"):
        migrate_ledger(database)
        yield database


@contextmanager
def found_ledger(settings: Settings) -> Iterator[Database]:
    """The database of an existing ledger: reading must not create one."""
    if settings.database_url is None and not (settings.data / "postgres").exists():
        raise Unreachable(
            f"there is no ledger in {settings.data} yet; create one with `tidelock up`, or name another directory "
            "with --data"
        )
    with open_database(settings) as database, database_errors("the ledger"):
        missing = database.patience.insist_sync(lambda: _missing(database))
        if missing:
            raise Unreachable(
                f"{database.place} has no ledger of this version: {', '.join(missing)} is missing; "
                "`tidelock migrate` brings it up to date"
            )
        yield database


def _missing(database: Database) -> list[str]:
    with database.connect_sync(name="tidelock start") as connection:
        return [known.title for known in status(connection) if known.state == "missing"]


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
    """The sequence database named by the settings, if any."""
    url = settings.event_sequence_database_url
    if url is None:
        return None
    breaker = Breaker(settings.event_sequence_failures_max, settings.event_sequence_pause / SECOND)
    database = Database(url, settings.connect_timeout_s)
    return SequenceDatabase(database, settings.event_sequence_timeout / SECOND, breaker)


def record_control(settings: Settings, database: Database, data: Mapping[str, Any]) -> Accepted:
    """Record a control event, alongside other processes that write this ledger."""

    async def record() -> Accepted:
        async with opened_sequencer(settings, database) as sequencer:
            return await sequencer.control(data)

    return asyncio.run(record())


@asynccontextmanager
async def opened_sequencer(settings: Settings, database: Database) -> AsyncIterator[Sequencer]:
    """A sequencer for the duration of the block. Raises Difference if the ledger's tail is gone."""
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
