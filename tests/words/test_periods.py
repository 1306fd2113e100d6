"""Periods: where one begins and ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model.meters import period_start as expected_start
from tidelock.definitions.meters import PERIODS
from tidelock.instants import EARLIEST, LATEST, format_instant, parse_rfc3339
from tidelock.periods import period_end, period_start


@pytest.mark.parametrize(
    ("period", "start", "end"),
    [
        ("hour", "2024-02-29T23:00:00Z", "2024-03-01T00:00:00Z"),
        ("day", "2024-02-29T00:00:00Z", "2024-03-01T00:00:00Z"),
        ("week", "2024-02-26T00:00:00Z", "2024-03-04T00:00:00Z"),
        ("month", "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"),
    ],
)
def test_the_last_nanosecond_of_a_leap_day_lies_in_its_periods(period: str, start: str, end: str) -> None:
    found = period_start(period, parse_rfc3339("2024-02-29T23:59:59.999999999Z"))
    assert (format_instant(found), format_instant(period_end(period, found))) == (start, end)


@given(st.sampled_from(PERIODS), st.integers(EARLIEST, LATEST))
def test_an_instant_lies_in_its_period_and_the_next_one_begins_where_it_ends(period: str, instant: int) -> None:
    start = period_start(period, instant)
    end = period_end(period, start)
    assert start == expected_start(period, instant)
    assert start <= instant < end
    assert period_start(period, end - 1) == start
    if end <= LATEST:
        assert period_start(period, end) == end
