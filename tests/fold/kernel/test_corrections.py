"""What corrections need of the kernel beside counters, which `test_counters` has with corrections in them."""

from __future__ import annotations

import numpy as np
import pytest

from tidelock.fold.kernel.corrections import covering

pytestmark = pytest.mark.check


@pytest.mark.parametrize("count", [1, 2, 7, 64, 100])
def test_the_greatest_of_what_covers_a_place_is_found_for_all_places(count: int) -> None:
    chance = np.random.default_rng(count)
    starts, lengths = chance.integers(0, count, 50), chance.integers(0, count + 1, 50)
    ends, ranks = np.minimum(starts + lengths, count), chance.permutation(50)
    wanted = [
        max((rank for start, end, rank in zip(starts, ends, ranks, strict=True) if start <= at < end), default=-1)
        for at in range(count)
    ]
    assert covering(starts, ends, ranks, count).tolist() == wanted
