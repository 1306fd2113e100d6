"""How much of the ledger the fold takes at a time."""

import pytest

from tidelock.fold.ranges import Pace

pytestmark = pytest.mark.check


def test_a_range_takes_twice_as_many_after_each_success_and_few_after_a_failure() -> None:
    pace = Pace(100, 350)
    taken = []
    for _ in range(4):
        taken.append(pace.events)
        pace.succeeded(pace.events, 0.1)
    assert taken == [100, 200, 350, 350]
    pace.failed()
    assert pace.events == 100


def test_a_range_that_took_long_is_followed_by_one_that_does_not() -> None:
    pace = Pace(100, 10_000)
    pace.succeeded(10_000, 4.8)
    assert pace.events == 200
    pace.succeeded(8_000, 4.8)
    assert pace.events == 400
    pace.succeeded(400, 2.0)
    assert pace.events == 480
    pace.succeeded(480, 600.0)
    assert pace.events == 100, "however slow a fold is, it gets on"


def test_where_nobody_waits_a_range_may_take_as_long_as_it_likes() -> None:
    pace = Pace(100, 10_000)
    for _ in range(10):
        pace.succeeded()
    assert pace.events == 10_000
