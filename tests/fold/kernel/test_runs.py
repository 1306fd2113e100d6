"""Running aggregates within each key, beside the same by one key after another."""

from __future__ import annotations

from itertools import accumulate
from random import Random

import numpy as np
import pytest

from tidelock.fold.kernel.runs import Runs

pytestmark = pytest.mark.check

NONE = -(2**63)


def test_running_extremes_are_those_of_each_key_by_itself_whatever_fits_into_64_bits() -> None:
    chance = Random(7)
    for size in (10, 10**6, 2**40, 2**61, 2**62) * 40:
        rows = chance.randrange(1, 60)
        keys = np.sort(np.array([chance.randrange(chance.randrange(1, 9)) for _ in range(rows)]))
        values = [chance.randrange(-size, size) if chance.random() < 0.8 else NONE for _ in range(rows)]
        runs = Runs(keys)
        highest = np.array(values)
        lowest = np.where(highest == NONE, 2**63 - 1, highest)
        for found, given, choose in ((runs.greatest(highest), highest, max), (runs.least(lowest), lowest, min)):
            wanted = [
                value
                for start, end in zip(runs.starts, runs.ends, strict=True)
                for value in accumulate(given[start : end + 1].tolist(), choose)
            ]
            assert found.tolist() == wanted
