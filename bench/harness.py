"""The harness of all measurements: rounds beside a limit, a stopwatch, and peers in processes of their own."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tidelock.errors import Unreachable

Say = Callable[[str], None]


class Rounds:
    """Ways by their names, each of which says how many seconds it took. Medians count.

    Other ways to the same are timed before, between and after what is measured, for the machine may change.
    """

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


class Stopwatch:
    """Seconds by step. Time counts for the innermost step, so the steps' times add up to the whole."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._within: list[str] = []
        self._since = 0.0

    @contextmanager
    def running(self, step: str) -> Iterator[None]:
        self._turn()
        self._within.append(step)
        try:
            yield
        finally:
            self._turn()
            self._within.pop()

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._within:
            self.seconds[self._within[-1]] = self.seconds.get(self._within[-1], 0.0) + now - self._since
        self._since = now


def peer(module: str, *arguments: object) -> Any:
    """What a program of ours tells, in JSON, once it has ended. In a process of its own, its memory is its own, too."""
    command = [sys.executable, "-m", f"bench.{module}", *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise Unreachable(f"{module} did not do its part: {ran.stderr.strip()[-500:]}")
    return json.loads(ran.stdout)
