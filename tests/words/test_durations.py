"""Durations: an integer with its unit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.durations import DURATION_MAX, UNITS, format_duration, parse_duration


@given(st.integers(0, DURATION_MAX))
def test_a_formatted_duration_parses_to_itself(nanoseconds: int) -> None:
    assert parse_duration(format_duration(nanoseconds)) == nanoseconds


@given(st.integers(0, 10_000), st.sampled_from(sorted(UNITS)))
def test_every_spelling_of_a_duration_has_one_canonical_form(number: int, unit: str) -> None:
    nanoseconds = parse_duration(f"{number}{unit}")
    assert nanoseconds == number * UNITS[unit]
    assert format_duration(nanoseconds) == format_duration(parse_duration(f"{nanoseconds}ns"))


@pytest.mark.parametrize(
    ("text", "canonical"), [("60s", "1m"), ("48h", "2d"), ("1500ms", "1500ms"), ("0d", "0s"), ("007s", "7s")]
)
def test_the_canonical_form_is_the_largest_unit_that_needs_no_fraction(text: str, canonical: str) -> None:
    assert format_duration(parse_duration(text)) == canonical


@pytest.mark.parametrize(
    "text", ["", "10", "s", "1.5s", "-1s", "+1s", "1 s", "1w", "1S", "１s", "1s1m", "1s\n", "9" * 30]
)
def test_anything_else_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="a whole number with its unit"):
        parse_duration(text)


def test_a_duration_that_no_bigint_holds_is_refused() -> None:
    assert parse_duration(f"{DURATION_MAX}ns") == DURATION_MAX
    with pytest.raises(ValueError, match="292 years"):
        parse_duration("106752d")
