"""Periods of meters: half-open stretches of UTC, by calendar."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tidelock.instants import SECOND

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LENGTHS = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(weeks=1)}


def period_start(period: str, instant: int) -> int:
    """Start of the period that an instant lies in."""
    hour = (_EPOCH + timedelta(seconds=instant // SECOND)).replace(minute=0, second=0)
    day = hour.replace(hour=0)
    match period:
        case "hour":
            return _instant(hour)
        case "day":
            return _instant(day)
        case "week":  # ISO: from Monday on
            return _instant(day - timedelta(days=day.weekday()))
        case _:
            return _instant(day.replace(day=1))


def period_end(period: str, start: int) -> int:
    """Where the period that starts there ends, and the next begins."""
    began = _EPOCH + timedelta(seconds=start // SECOND)
    if period in _LENGTHS:
        return _instant(began + _LENGTHS[period])
    return _instant((began + timedelta(days=31)).replace(day=1))


def _instant(moment: datetime) -> int:
    passed = moment - _EPOCH
    return (passed.days * 86_400 + passed.seconds) * SECOND
