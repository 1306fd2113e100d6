"""The kept ledger, brought to the current schema."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import Databases
from tidelock.postgres.database import Database
from tidelock.postgres.migrate import migrate


@pytest.fixture
def upgraded(kept: Database) -> Database:
    return _migrated(kept)


@pytest.fixture(scope="module")
def unchanged(kept_databases: Databases) -> Iterator[Database]:
    """The same for tests that only read it."""
    with kept_databases() as made:
        yield _migrated(made)


def _migrated(database: Database) -> Database:
    with database.connect_sync() as connection:
        migrate(connection)
    return database
