"""Endpoints: how much one receiver is sent at a time, and when it is left alone. Pure; the clock is given.

Each learns for itself what it can take, so that one that hangs or fails holds up nobody else: it is sent more while it
answers, half as much after a failure, and nothing for a while after several in a row. Then one is sent to see.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

# What an endpoint that nothing is known of is sent at a time.
_START = 4.0
_PAUSE_S = 1.0
_JITTER = 0.2


@dataclass(frozen=True, slots=True)
class Care:
    """How endpoints are treated."""

    concurrency_max: int
    #: failures in a row after which an endpoint is left alone
    failures_max: int
    #: longest time it is left alone at a stretch
    pause_max_s: float


class Endpoint:
    """What is known of one URL. All times are of one monotonic clock, in seconds."""

    def __init__(self, url: str, care: Care, chance: random.Random) -> None:
        self.url = url
        self.in_flight = 0
        #: nothing is sent before
        self.paused_until_s = 0.0
        #: failures since it last answered
        self.failures = 0
        self._care = care
        self._chance = chance
        self._allowance = min(_START, care.concurrency_max)
        self._pauses = 0

    @property
    def open(self) -> bool:
        """The circuit is open: it failed so often that at most one is sent, to see."""
        return self.failures >= self._care.failures_max

    @property
    def allowance(self) -> int:
        """How much it is sent at a time."""
        return 1 if self.open else int(self._allowance)

    def free(self, now_s: float) -> bool:
        """Whether one more may be sent now."""
        return now_s >= self.paused_until_s and self.in_flight < self.allowance

    def started(self) -> None:
        self.in_flight += 1

    def succeeded(self) -> None:
        self.in_flight -= 1
        self.failures = self._pauses = 0
        self._allowance = min(self._allowance + 1, self._care.concurrency_max)

    def failed(self, now_s: float, retry_after_s: float | None = None) -> None:
        """It did not answer, could not, or asked for patience."""
        self.in_flight -= 1
        self.failures += 1
        self._allowance = max(1.0, self._allowance / 2)
        pause_s = retry_after_s or 0.0
        # Those that were sent together fail together: that is one pause, not one for each.
        if self.open and now_s >= self.paused_until_s:
            doubled_s = min(_PAUSE_S * 2 ** min(self._pauses, 30), self._care.pause_max_s)
            pause_s = max(pause_s, doubled_s * self._chance.uniform(1 - _JITTER, 1 + _JITTER))
            self._pauses += 1
        self.paused_until_s = max(self.paused_until_s, now_s + pause_s)

    def left(self) -> None:
        """One was given back without anything learned of the endpoint."""
        self.in_flight -= 1
