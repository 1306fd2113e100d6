"""Starting Spark while somebody kills its JVMs."""

from __future__ import annotations

import pytest

from tidelock.spark.jvm import JvmKilled
from tidelock.spark.runtime import Spark

pytestmark = pytest.mark.check


class Killed(Spark):
    """A Spark whose first JVMs are killed while they start."""

    def __init__(self, kills: int) -> None:
        self.kills = kills
        self.starts = 0

    def _start_once(self) -> None:
        self.starts += 1
        if self.starts <= self.kills:
            raise JvmKilled("somebody killed it")


def test_a_jvm_that_is_killed_while_it_starts_is_followed_by_another_at_once() -> None:
    spark = Killed(3)
    spark._start()
    assert spark.starts == 4


def test_one_that_never_lives_is_given_up() -> None:
    with pytest.raises(JvmKilled):
        Killed(100)._start()
