"""What the proofs on random ledgers share."""

from __future__ import annotations

import os
import random

import pytest

_CI_SEED = 4242


@pytest.fixture(scope="module")
def number() -> int:
    """Decides every ledger that a proof draws; `LAW_SEED` repeats one."""
    # In CI always the same ledgers: whether a change lands is not a matter of luck. Everywhere else new ones.
    usual = _CI_SEED if os.environ.get("CI") == "true" else random.randrange(10**6)
    found = int(os.environ.get("LAW_SEED", usual))
    print(f"LAW_SEED={found}")
    return found
