"""Retries and endpoints: when to try again, when to give up, and how much a receiver is sent meanwhile."""

import random
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.triggers.attempts import Result, Schedule, outcome_of, parse_retry_after
from tidelock.triggers.lanes import Care, Endpoint

pytestmark = pytest.mark.check

SCHEDULE = Schedule([5, 300, 1800], retry_after_max_s=3600)
CARE = Care(concurrency_max=8, failures_max=3, pause_max_s=60)


@given(st.integers(1, 3), st.integers(0, 2**32))
def test_a_delay_is_that_of_the_schedule_more_or_less(failures: int, seed: int) -> None:
    delay_s = SCHEDULE.delay_s(failures, None, random.Random(seed))
    assert delay_s == pytest.approx(SCHEDULE.delays_s[failures - 1], rel=0.2)


def test_what_failed_together_does_not_come_back_together() -> None:
    chance = random.Random(1)
    assert len({SCHEDULE.delay_s(2, None, chance) for _ in range(100)}) > 90


def test_the_failure_after_the_last_delay_is_final() -> None:
    assert SCHEDULE.delay_s(4, None, random.Random()) is None
    assert Schedule([]).delay_s(1, None, random.Random()) is None
    assert SCHEDULE.horizon_s == 2105


def test_a_receiver_may_ask_for_more_patience_not_for_less_nor_for_ever() -> None:
    chance = random.Random(1)
    assert SCHEDULE.delay_s(1, 120, chance) == 120
    assert (SCHEDULE.delay_s(3, 1, chance) or 0) > 1000
    assert SCHEDULE.delay_s(1, 10**9, chance) == 3600


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120), (" 7 ", 7), ("0", 0), ("9" * 30, 10**9), (formatdate(1_000_090, usegmt=True), 90),
        (formatdate(999_000, usegmt=True), 0), ("Mon, 12 Jan 1970 13:48:10 -0000", 90),
        (None, None), ("", None), ("soon", None), ("-5", None), ("1.5", None), ("²", None), ("Mon, 99 Foo 2026", None),
        ("Mon, 12 Jan 99999 13:48:10 GMT", None),
    ],
)  # fmt: skip
def test_retry_after_is_a_number_or_a_date_or_nothing(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after(header, 1_000_000) == seconds


@given(st.text())
def test_whatever_retry_after_says_it_is_read_or_left(header: str) -> None:
    seconds = parse_retry_after(header, 1_000_000)
    assert seconds is None or seconds >= 0


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(200, "delivered"), (204, "delivered"), (299, "delivered"), (301, "redirected"), (308, "redirected"),
     (400, "refused"), (404, "refused"), (410, "gone"), (429, "throttled"), (408, "failed"), (425, "failed"),
     (500, "failed"), (503, "failed"), (100, "failed"), (600, "failed")],
)  # fmt: skip
def test_only_2xx_is_a_delivery(status: int, outcome: str) -> None:
    assert outcome_of(status) == outcome
    assert Result(outcome_of(status), status, "", 0).healthy == (outcome in ("delivered", "refused", "gone"))


def endpoint() -> Endpoint:
    return Endpoint("http://r", CARE, random.Random(1))


def send(receiver: Endpoint, now_s: float = 0) -> int:
    """Send as much as is allowed."""
    sent = 0
    while receiver.free(now_s):
        receiver.started()
        sent += 1
    return sent


def test_an_endpoint_that_answers_is_sent_more_and_more_up_to_the_limit() -> None:
    receiver = endpoint()
    assert send(receiver) == 4
    for _ in range(10):
        receiver.succeeded()
        send(receiver)
    assert receiver.in_flight == 8


def test_an_endpoint_that_fails_is_sent_less_and_after_several_in_a_row_nothing() -> None:
    receiver = endpoint()
    send(receiver)
    receiver.failed(0)
    assert not receiver.free(0)
    receiver.failed(0)
    receiver.failed(0)
    receiver.failed(0)
    assert receiver.open
    assert receiver.in_flight == 0
    assert not receiver.free(0.7)
    assert send(receiver, 1.3) == 1, "one is sent to see"


def test_those_that_fail_together_make_one_pause() -> None:
    several = endpoint()
    send(several)
    for _ in range(4):
        several.failed(0)
    assert several.paused_until_s < 1.3


def test_pauses_double_up_to_the_longest_and_end_with_the_first_answer() -> None:
    receiver = endpoint()
    now_s, pauses = 0.0, []
    for _ in range(12):
        receiver.started()
        receiver.failed(now_s)
        if receiver.open:
            pauses.append(receiver.paused_until_s - now_s)
        now_s = receiver.paused_until_s
    assert pauses[:7] == [pytest.approx(expected, rel=0.2) for expected in (1, 2, 4, 8, 16, 32, 60)]
    assert max(pauses) <= 72
    receiver.started()
    receiver.succeeded()
    assert not receiver.open
    assert receiver.free(now_s)


def test_a_client_that_asks_for_patience_is_left_alone_so_long() -> None:
    receiver = endpoint()
    receiver.started()
    receiver.failed(10, retry_after_s=30)
    assert not receiver.free(39.9)
    assert receiver.free(40)
