"""The place of the ledger: the database that the settings name, and whether a ledger is in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidelock.errors import Unreachable
from tidelock.ledger.database import Database
from tidelock.ledger.migrate import migrate, status
from tidelock.ledger.outage import outage
from tidelock.settings import Settings


def open_database(settings: Settings) -> Database:
    """The server that the settings name, else the embedded one, running."""
    postgres = settings.postgres
    config = {"shared_buffers": postgres.shared_buffers, "max_wal_size": postgres.max_wal_size, **postgres.config}
    return Database.open(settings.database_url, settings.data, postgres.binaries, config, settings.connect_timeout_s)


def migrate_ledger(database: Database) -> None:
    """Bring the ledger in the database up to date, or make it."""
    with database.connect_sync(name="tidelock migrate") as connection:
        migrate(connection)


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
        with database.connect_sync(name="tidelock start") as connection:
            missing = [known.title for known in status(connection) if known.state == "missing"]
        if missing:
            raise Unreachable(
                f"{database.place} has no ledger of this version, {', '.join(missing)} is missing; "
                "`tidelock migrate` brings it up to date"
            )
        yield database
