"""Opening the ledger: the database that the settings name, and whether a ledger is in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidelock.errors import Unreachable
from tidelock.ingest.identity import Salts
from tidelock.instants import SECOND
from tidelock.ledger.database import Database
from tidelock.ledger.migrate import migrate, status
from tidelock.ledger.outage import outage
from tidelock.ledger.partitions import ensure_partitions
from tidelock.ledger.salts import open_salts
from tidelock.settings import Settings


def open_database(settings: Settings) -> Database:
    """The server that the settings name, else the embedded one, running."""
    postgres = settings.postgres
    config = {"shared_buffers": postgres.shared_buffers, "max_wal_size": postgres.max_wal_size, **postgres.config}
    return Database.open(
        settings.database_url,
        settings.data,
        postgres.binaries,
        config,
        settings.connect_timeout_s,
        settings.outage_patience / SECOND,
    )


def migrate_ledger(database: Database) -> None:
    """Bring the ledger in the database up to date, or make it."""
    database.patience.insist_sync(lambda: _migrate(database))


def _migrate(database: Database) -> None:
    with database.connect_sync(name="tidelock migrate") as connection:
        migrate(connection)


async def prepare_ledger(database: Database, settings: Settings) -> Salts:
    """What recording needs beside the tables: salts, which it gives, and partitions."""
    return await database.patience.insist(lambda: _prepare(database, settings))


async def _prepare(database: Database, settings: Settings) -> Salts:
    async with await database.connect(name="tidelock start") as connection:
        salts = await open_salts(connection, settings.salt)
        await ensure_partitions(connection, settings.partition_events)
    return salts


@contextmanager
def made_ledger(settings: Settings) -> Iterator[Database]:
    """The database, with a ledger in it when there was none."""
    with open_database(settings) as database, outage("the ledger"):
        migrate_ledger(database)
        yield database


@contextmanager
def found_ledger(settings: Settings) -> Iterator[Database]:
    """The database of a ledger that is there: looking at one must not make it."""
    if settings.database_url is None and not (settings.data / "postgres").exists():
        raise Unreachable(
            f"there is no ledger in {settings.data} yet; `tidelock up` makes one, --data names another directory"
        )
    with open_database(settings) as database, outage("the ledger"):
        missing = database.patience.insist_sync(lambda: _missing(database))
        if missing:
            raise Unreachable(
                f"{database.place} has no ledger of this version, {', '.join(missing)} is missing; "
                "`tidelock migrate` brings it up to date"
            )
        yield database


def _missing(database: Database) -> list[str]:
    with database.connect_sync(name="tidelock start") as connection:
        return [known.title for known in status(connection) if known.state == "missing"]
