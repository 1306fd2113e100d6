"""A stopwatch for the steps of a fold, held from outside: the fold itself knows nothing of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


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

    @contextmanager
    def watching(self, owner: object, steps: dict[str, str | Callable[[], str]]) -> Iterator[None]:
        """Time the calls of an object's or module's functions, each as a step or as what a function names now."""
        before = {name: getattr(owner, name) for name in steps}
        own = {name for name in steps if name in vars(owner)}
        for name, step in steps.items():
            setattr(owner, name, self._timed(before[name], step))
        try:
            yield
        finally:
            for name in steps:
                if name in own:
                    setattr(owner, name, before[name])
                else:
                    delattr(owner, name)

    def _timed(self, function: Callable[..., Any], step: str | Callable[[], str]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            with self.running(step if isinstance(step, str) else step()):
                return function(*arguments, **named)

        return timed

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._within:
            self.seconds[self._within[-1]] = self.seconds.get(self._within[-1], 0.0) + now - self._since
        self._since = now
