"""Instants: RFC 3339 and epoch milliseconds to nanoseconds since 1970 UTC, and back."""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache

SECOND = 1_000_000_000
MILLISECOND = 1_000_000

_EPOCH_DAY = date(1970, 1, 1).toordinal()
# Whole years inside what 64-bit nanoseconds can hold.
EARLIEST = (date(1678, 1, 1).toordinal() - _EPOCH_DAY) * 86_400 * SECOND
LATEST = (date(2262, 1, 1).toordinal() - _EPOCH_DAY) * 86_400 * SECOND - 1

_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt ](?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d", re.ASCII)
_RFC3339 = re.compile(rf"({_MOMENT.pattern})(?:\.(\d+))?(?:[Zz]|([+-])([01]\d|2[0-3]):([0-5]\d))", re.ASCII)
_MILLISECONDS = re.compile(r"-?[0-9]{1,19}", re.ASCII)
# In a query string an unescaped `+` becomes a space; between time and offset it can mean nothing else.
_LOST_PLUS = re.compile(r"(:[0-9]{2}(?:\.[0-9]+)?) ([0-9]{2}:[0-9]{2})", re.ASCII)


def parse_rfc3339(text: str) -> int:
    """Nanoseconds of an RFC 3339 timestamp. Raises ValueError with a message for people."""
    fraction = text[20:-1]
    # The common form, `2026-01-31T23:59:59.5Z`, at half the cost of a regular expression's groups.
    if text[-1:] == "Z" and text[19:20] == "." and len(fraction) <= 9 and fraction.isascii() and fraction.isdigit():
        instant = _seconds(text[:19]) * SECOND + int(fraction.ljust(9, "0"))
    else:
        instant = _parse_any(text)
    return instant if EARLIEST <= instant <= LATEST else _in_range(instant, text)


def _parse_any(text: str) -> int:
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(_why_not(text))
    moment, fraction, sign, offset_hour, offset_minute = match.groups()
    seconds = _seconds(moment)
    if sign:
        offset = int(offset_hour) * 3600 + int(offset_minute) * 60
        seconds += offset if sign == "-" else -offset
    if fraction and len(fraction) > 9:
        raise ValueError(f"{_shown(text)} has more than nine fraction digits")
    return seconds * SECOND + int((fraction or "").ljust(9, "0"))


def nine_digits(text: str, instant: int) -> str:
    """`format_nine` of an instant, made from the text it was parsed from if that only needs zeros appended."""
    if text[-1] == "Z" and text[10] == "T" and text[19] == ".":
        return text[:-1].ljust(29, "0") + "Z"
    return format_nine(instant)


def parse_instant(text: str) -> int:
    """An instant in a request: RFC 3339, or integer epoch milliseconds. Raises ValueError."""
    if _MILLISECONDS.fullmatch(text):
        return parse_epoch_ms(int(text))
    return parse_rfc3339(_LOST_PLUS.sub(r"\1+\2", text))


def parse_epoch_ms(milliseconds: int) -> int:
    return _in_range(milliseconds * MILLISECOND, milliseconds)


def format_instant(instant: int) -> str:
    """RFC 3339 in UTC with `Z`, the fraction without trailing zeros."""
    seconds, nanoseconds = divmod(instant, SECOND)
    if nanoseconds:
        return f"{_second_text(seconds)}.{nanoseconds:09d}".rstrip("0") + "Z"
    return _second_text(seconds) + "Z"


def format_nine(instant: int) -> str:
    """RFC 3339 in UTC with exactly nine fraction digits: the form that identity keys derive from."""
    seconds, nanoseconds = divmod(instant, SECOND)
    return f"{_second_text(seconds)}.{nanoseconds:09d}Z"


@lru_cache(maxsize=65_536)
def _seconds(moment: str) -> int:
    """Seconds of `YYYY-MM-DDThh:mm:ss`; the events of a batch share many."""
    if _MOMENT.fullmatch(moment) is None:
        raise ValueError(_why_not(moment))
    try:
        days = date.fromisoformat(moment[:10]).toordinal() - _EPOCH_DAY
    except ValueError:
        raise ValueError(f"there is no day {moment[:10]}") from None
    return days * 86_400 + int(moment[11:13]) * 3600 + int(moment[14:16]) * 60 + int(moment[17:19])


@lru_cache(maxsize=65_536)
def _second_text(seconds: int) -> str:
    days, second = divmod(seconds, 86_400)
    return f"{_day_text(days)}T{_time_text(second)}"


@lru_cache(maxsize=4_096)
def _day_text(days: int) -> str:
    return date.fromordinal(_EPOCH_DAY + days).isoformat()


@lru_cache(maxsize=86_400)
def _time_text(second: int) -> str:
    """Of a day. Events far apart have few days, and no more times of day than there are seconds in a day."""
    return f"{second // 3_600:02}:{second // 60 % 60:02}:{second % 60:02}"


def _in_range(instant: int, given: str | int) -> int:
    if EARLIEST <= instant <= LATEST:
        return instant
    raise ValueError(f"{_shown(given)} is outside the years 1678 to 2261")


def _why_not(text: str) -> str:
    if re.fullmatch(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:60.*", text, re.ASCII):
        return f"{_shown(text)} is a leap second, which cannot be represented; send the second before or after it"
    return f"{_shown(text)} is not an RFC 3339 timestamp such as 2026-01-31T23:59:59.5Z"


def _shown(given: str | int) -> str:
    if isinstance(given, int):
        return str(given) if -(10**30) < given < 10**30 else "a number of that size"
    return repr(given if len(given) <= 40 else given[:40] + "...")
