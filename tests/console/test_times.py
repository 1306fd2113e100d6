"""Times on pages: as short as they can be, and never without the year that they are not in."""

from datetime import UTC, datetime, timedelta

from tidelock.console.parts.times import clock_time, period_name


def test_a_time_has_its_day_unless_it_is_today_and_its_year_unless_it_is_this_one() -> None:
    now = datetime.now(UTC)
    assert clock_time(f"{now - timedelta(days=800):%Y-%m-%d}T01:02:03.5Z") == (
        f"{now - timedelta(days=800):%d %b %Y} 01:02:03.500"
    )
    other = datetime(now.year, 1 if now.month > 6 else 12, 15, tzinfo=UTC)
    assert clock_time(f"{other:%Y-%m-%d}T01:02:03Z") == f"{other:%d %b} 01:02:03"
    assert clock_time(None) is None


def test_an_hour_is_called_by_its_year_as_longer_periods_are() -> None:
    assert period_name("hour", "2025-11-16T15:00:00Z") == "16 Nov 2025 15:00"
    assert period_name("day", "2025-11-16T00:00:00Z") == "16 Nov 2025"
