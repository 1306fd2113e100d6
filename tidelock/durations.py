"""Durations: an integer with its unit, `10s` or `48h`, as nanoseconds."""

from __future__ import annotations

import re

UNITS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
#: what a bigint of nanoseconds holds: about 292 years
DURATION_MAX = 2**63 - 1
ALLOWED = 'a whole number with its unit (ns us ms s m h d), such as "10s" or "48h"'

# Nineteen digits cover every legal duration; more would only cost time.
_DURATION = re.compile(r"([0-9]{1,19})(ns|us|ms|s|m|h|d)")


def parse_duration(text: str) -> int:
    """Nanoseconds of a duration. Raises ValueError with what is allowed."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(ALLOWED)
    nanoseconds = int(match[1]) * UNITS[match[2]]
    if nanoseconds > DURATION_MAX:
        raise ValueError(f"at most {DURATION_MAX}ns, about 292 years")
    return nanoseconds


def format_duration(nanoseconds: int) -> str:
    """The canonical spelling: the largest unit without a fraction (`60s` is `1m`)."""
    if nanoseconds == 0:
        return "0s"
    unit, size = max(
        ((unit, size) for unit, size in UNITS.items() if nanoseconds % size == 0), key=lambda pair: pair[1]
    )
    return f"{nanoseconds // size}{unit}"
