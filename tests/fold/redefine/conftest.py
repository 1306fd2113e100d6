"""A ledger that definitions change under."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import Copies, Databases
from tests.fold.redefine.definition_changes import BASE, fold_all, ledger
from tests.ledgers import write_ledger
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark


@pytest.fixture(scope="session")
def folded_once(spark: Spark, databases: Databases) -> Iterator[Database]:
    """A ledger, folded by the first definitions: to be copied, not to be changed."""
    with databases() as database:
        write_ledger(database, ledger())
        fold_all(spark, database, BASE)
        yield database


@pytest.fixture
def folded(folded_once: Database, copies: Copies) -> Iterator[Database]:
    """The same, of this test's own."""
    with copies(folded_once) as database:
        yield database
