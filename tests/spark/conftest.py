"""What the proofs on random ledgers share."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from tests.conftest import Copies, Databases
from tests.ledgers import write_ledger
from tests.spark.definition_changes import BASE, fold_all, ledger
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark

_CI_SEED = 4242


@pytest.fixture(scope="module")
def number() -> int:
    """Decides every ledger that a proof draws; `LAW_SEED` repeats one."""
    # In CI always the same ledgers: whether a change lands is not a matter of luck. Everywhere else new ones.
    usual = _CI_SEED if os.environ.get("CI") == "true" else random.randrange(10**6)
    found = int(os.environ.get("LAW_SEED", usual))
    print(f"LAW_SEED={found}")
    return found


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
