"""One who evaluates triggers, and is killed now and then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

from tidelock.postgres.database import Database
from tidelock.triggers import evaluate as evaluation
from tidelock.triggers import outbox
from tidelock.triggers.evaluate import Evaluation


class Killed(BaseException):
    """As if the process had been ended there."""


class Reader:
    """An evaluator that is killed and begins anew now and then."""

    def __init__(self, database: Database, chance: Random, monkeypatch: pytest.MonkeyPatch) -> None:
        self._database = database
        self._chance = chance
        self._monkeypatch = monkeypatch
        self._connection = database.connect_sync()
        self._evaluation = self._begin()

    def read(self) -> None:
        """All there is, or some of it."""
        while True:
            try:
                with self._killed_perhaps():
                    if not self._evaluation.step() or self._chance.random() < 0.1:
                        return
            except Killed:
                self._evaluation = self._begin()

    def finish(self, position: int) -> None:
        """All there is, through a sequence that the fold has come to."""
        for _ in range(1_000):
            self.read()
            row = self._connection.execute("SELECT sequence FROM cursors WHERE name = 'triggers'").fetchone()
            if row == (position,):
                return
        raise AssertionError(f"triggers are at {row}, not at {position}")

    def _begin(self) -> Evaluation:
        if self._chance.random() < 0.5:
            self._connection.close()
            self._connection = self._database.connect_sync()
        return Evaluation(
            self._connection, self._database.connect_sync, changes_max=self._chance.choice([1, 3, 10_000])
        )

    @contextmanager
    def _killed_perhaps(self) -> Iterator[None]:
        if self._chance.random() < 0.8:
            yield
            return

        def append(*given: Any) -> int:
            outbox.append(*given)
            raise Killed

        with self._monkeypatch.context() as patched:
            patched.setattr(evaluation, "append", append)
            yield

    def close(self) -> None:
        self._connection.close()
