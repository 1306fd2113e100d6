"""Instants: RFC 3339 and epoch milliseconds, to the nanosecond."""

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.instants import EARLIEST, LATEST, format_instant, format_nine, nine_digits, parse_epoch_ms, parse_rfc3339

instants = st.integers(EARLIEST, LATEST)


@given(instants)
def test_what_is_formatted_parses_back_to_the_same_nanosecond(instant: int) -> None:
    assert parse_rfc3339(format_instant(instant)) == instant
    assert parse_rfc3339(format_nine(instant)) == instant


@given(instants)
def test_the_fraction_has_no_trailing_zeros_and_the_other_form_has_nine_digits(instant: int) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{0,8}[1-9])?Z", format_instant(instant))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", format_nine(instant))


@given(instants, st.integers(0, 9))
def test_nine_digits_can_be_had_from_the_text_that_was_parsed(instant: int, digits: int) -> None:
    text = format_nine(instant)[: 20 + digits] + "Z" if digits else format_nine(instant)[:19] + "Z"
    for spelling in (text, text.replace("T", "t"), text.replace("T", " "), text[:-1] + "+00:00", text.lower()):
        assert nine_digits(spelling, parse_rfc3339(spelling)) == format_nine(parse_rfc3339(spelling))


@given(
    st.datetimes(datetime(1679, 1, 1), datetime(2261, 1, 1)),
    st.integers(-1439, 1439),
)
def test_an_offset_names_the_same_instant_as_utc(moment: datetime, minutes: int) -> None:
    aware = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    elapsed = aware - datetime(1970, 1, 1, tzinfo=UTC)
    assert parse_rfc3339(aware.isoformat()) == elapsed // timedelta(microseconds=1) * 1000


@pytest.mark.parametrize("text", ["2026-01-31t23:59:59z", "2026-01-31 23:59:59Z", "2026-01-31T23:59:59-00:00"])
def test_the_spellings_rfc_3339_allows_are_taken(text: str) -> None:
    assert format_instant(parse_rfc3339(text)) == "2026-01-31T23:59:59Z"


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("", "not an RFC 3339"),
        ("2026-01-31", "not an RFC 3339"),
        ("2026-01-31T23:59:59", "not an RFC 3339"),
        ("2026-01-31T24:00:00Z", "not an RFC 3339"),
        ("2026-02-30T00:00:00Z", "no day 2026-02-30"),
        ("2026-12-31T23:59:60Z", "leap second"),
        ("2026-01-31T23:59:59.1234567890Z", "nine fraction digits"),
        ("1677-12-31T23:59:59.999999999Z", "outside the years"),
        ("2262-01-01T00:00:00Z", "outside the years"),
        ("0000-01-01T00:00:00Z", "no day"),
        ("２０２６-01-31T23:59:59Z", "not an RFC 3339"),
        ("2026-01-31T23:59:59Z\n", "not an RFC 3339"),
    ],
)
def test_what_is_not_an_instant_is_refused_with_a_reason(text: str, because: str) -> None:
    with pytest.raises(ValueError, match=because):
        parse_rfc3339(text)


def test_epoch_milliseconds_are_milliseconds() -> None:
    assert format_instant(parse_epoch_ms(1769903999500)) == "2026-01-31T23:59:59.5Z"
    with pytest.raises(ValueError, match="outside the years"):
        parse_epoch_ms(10**40)
