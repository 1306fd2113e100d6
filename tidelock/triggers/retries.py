"""Retries: when to try again after a failure, and when to give up. Pure; the clock and the chance are given."""

from __future__ import annotations

import email.utils
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC

# How far a delay may be off its schedule: what failed together shall not come back together.
_JITTER = 0.2
_DIGITS_MAX = 9


@dataclass(frozen=True, slots=True)
class Schedule:
    """Delays after the first failure, the second and so on; the failure after the last delay is final."""

    delays_s: Sequence[float]
    #: most that a receiver can have us wait
    retry_after_max_s: float = 86_400.0

    @property
    def horizon_s(self) -> float:
        """How long all of it takes: who waited longer than this without being sent is given up as well."""
        return sum(self.delays_s)

    def delay_s(self, failures: int, retry_after_s: float | None, chance: random.Random) -> float | None:
        """How long to wait after so many failures; None: give up. A receiver may ask for more, not for less."""
        if failures > len(self.delays_s):
            return None
        delay_s = self.delays_s[failures - 1] * chance.uniform(1 - _JITTER, 1 + _JITTER)
        return max(delay_s, min(retry_after_s or 0.0, self.retry_after_max_s))


def parse_retry_after(header: str | None, now_s: float) -> float | None:
    """Seconds that `Retry-After` asks for, as a number or as a date; None where it asks for nothing readable."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:_DIGITS_MAX]) if len(text) <= _DIGITS_MAX else float(10**_DIGITS_MAX)
    try:
        moment = email.utils.parsedate_to_datetime(text)
        # A date without a zone means UTC, as all dates of HTTP do.
        at_s = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return max(0.0, at_s - now_s)
