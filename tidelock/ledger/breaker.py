"""A circuit breaker: after some failures in a row, what fails is left alone for a while, then tried once."""

from __future__ import annotations

import time
from collections.abc import Callable


class Breaker:
    """Closed at first. `failures_max` failures in a row open it; after the pause one more failure opens it again."""

    def __init__(self, failures_max: int, pause_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._failures_max = failures_max
        self._pause_s = pause_s
        self._clock = clock
        self._failures = 0
        self._open_until = 0.0

    @property
    def pause_left_s(self) -> float:
        """How long it is to be left alone yet; 0: it may be tried."""
        return max(0.0, self._open_until - self._clock())

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        self._failures += 1
        if self._failures >= self._failures_max:
            self._open_until = self._clock() + self._pause_s
