"""The circuit breaker: how often something that fails is tried."""

from tidelock.ledger.sequencedatabase import Breaker


class Hand:
    """A clock that is moved by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_failures_in_a_row_open_it_and_after_the_pause_one_more_does() -> None:
    clock = Hand()
    breaker = Breaker(3, 5, clock)
    breaker.failed()
    breaker.failed()
    assert breaker.pause_left_s == 0
    breaker.failed()
    assert breaker.pause_left_s == 5
    clock.now += 4
    assert breaker.pause_left_s == 1
    clock.now += 1
    assert breaker.pause_left_s == 0
    breaker.failed()
    assert breaker.pause_left_s == 5, "one try, not three"


def test_a_success_in_between_restarts_the_count() -> None:
    breaker = Breaker(2, 5, Hand())
    for _ in range(5):
        breaker.failed()
        breaker.succeeded()
    assert breaker.pause_left_s == 0
