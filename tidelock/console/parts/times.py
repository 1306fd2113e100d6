"""Times for people: in UTC, as short as possible."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tidelock.instants import format_instant, parse_rfc3339


def clock_time(instant: str | None) -> str | None:
    """The time of day, with milliseconds if it has a fraction, and the date and year if not today's."""
    if instant is None:
        return None
    moment = _moment(instant)
    text = f"{moment:%H:%M:%S}" + (f".{moment.microsecond // 1000:03d}" if "." in instant else "")
    today = datetime.now(UTC).date()
    if moment.date() == today:
        return text
    return f"{moment:%d %b} {text}" if moment.year == today.year else f"{moment:%d %b %Y} {text}"


def whole_time(nanoseconds: str | int) -> str:
    """A source timestamp as an instant."""
    return format_instant(int(nanoseconds))


def period_name(period: str, start: str) -> str:
    """The name of a period: Nov 2026, 16 Nov 2026, week of 16 Nov 2026, 16 Nov 2026 15:00."""
    moment = _moment(start)
    match period:
        case "month":
            return f"{moment:%b %Y}"
        case "day":
            return f"{moment.day} {moment:%b %Y}"
        case "week":
            return f"week of {moment.day} {moment:%b %Y}"
        case _:
            return f"{moment.day} {moment:%b %Y %H:%M}"


def ago(seconds: float) -> str:
    """A duration in its largest useful unit."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s" if abs(seconds) < 10 else f"{seconds:.0f} s"


def since(instant: str, now: datetime | None = None) -> float:
    """Seconds that have passed."""
    return ((now or datetime.now(UTC)) - _moment(instant)) / timedelta(seconds=1)


def ended(run: Mapping[str, Any]) -> str:
    """When a run in the background ended, and how long it took."""
    seconds = (milliseconds(run["finishedAt"]) - milliseconds(run["startedAt"])) / 1000
    return f"{clock_time(run['finishedAt'])} UTC, after {seconds:.1f} s"


def milliseconds(instant: str | int) -> float:
    """For charts: from an RFC 3339 string, or from nanoseconds as a number or digits."""
    text = str(instant)
    nanoseconds = int(text) if text.lstrip("-").isdigit() else parse_rfc3339(text)
    return nanoseconds / 1_000_000


def _moment(instant: str) -> datetime:
    return datetime.fromtimestamp(parse_rfc3339(instant) // 1000 / 1_000_000, UTC)
