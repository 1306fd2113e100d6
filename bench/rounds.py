"""Rounds: other ways to the same, timed before, between and after what is measured: the machine may change."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

Say = Callable[[str], None]


class Rounds:
    """Ways by their names, each of which says how many seconds it took. Medians count."""

    def __init__(self, heading: str, ways: Mapping[str, Callable[[], float]], say: Say) -> None:
        self._heading = heading
        self._ways = ways
        self._say = say
        self._seconds: dict[str, list[float]] = {name: [] for name in ways}

    def run(self) -> None:
        for name, way in self._ways.items():
            self._seconds[name].append(way())
        told = ", ".join(f"{name} {seconds[-1]:.2f} s" for name, seconds in self._seconds.items())
        self._say(f"  {self._heading}: {told}")

    def median_s(self, name: str) -> float:
        return statistics.median(self._seconds[name])
