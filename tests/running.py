"""What runs on a thread: a fold over the Spark that all tests share, and whatever else has a loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from tidelock.definitions import Definitions
from tidelock.fold.runner import Runner
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark

#: how often the folds of tests look for commits that nobody announced
POLL_S = 0.1


class Running:
    """The product's own loop on a thread; whatever it ended with is its `error`."""

    def __init__(self, name: str, told: list[str], runner: Any) -> None:
        #: what it said
        self.told = told
        self.error: BaseException | None = None
        self.runner = runner
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "it stops when it is told to"

    def wait(self, sequence: int, seconds: float = 120) -> None:
        """Until it has done everything through a sequence."""
        self.until(lambda: self.runner.position >= sequence, f"done through {sequence}", seconds)

    def until_told(self, words: str, seconds: float = 60) -> None:
        self.until(lambda: any(words in text for text in self.told), f"it says {words!r}", seconds)

    def until(self, true: Callable[[], object], what: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert self.error is None, f"{what}: it ended with {self.error!r}"
            assert time.monotonic() < deadline, f"{what}: not within {seconds} s; it said {self.told}"
            time.sleep(0.01)

    def until_ended(self) -> None:
        """Until it has ended by itself, as one does whose `error` nothing mends."""
        self._thread.join(120)
        assert not self._thread.is_alive(), f"it goes on; it said {self.told}"

    def _run(self) -> None:
        try:
            self.runner.run(self._stop)
        except BaseException as error:
            self.error = error


class RunningFold(Running):
    """One at a time: those of one Spark share its views."""

    def __init__(self, spark: Spark, database: Database, definitions: Definitions, **options: Any) -> None:
        told: list[str] = []
        given: dict[str, Any] = {
            "range_events_max": 100_000,
            "rebuild": False,
            "control": _no_control,
            "tidy": lambda _: None,
            "poll_s": POLL_S,
        }
        super().__init__("fold", told, Runner(spark, database, definitions, tell=told.append, **(given | options)))


@contextmanager
def folding(spark: Spark, database: Database, definitions: Definitions, **options: Any) -> Iterator[RunningFold]:
    """A fold that has begun and ends with the block, without an error."""
    fold = RunningFold(spark, database, definitions, **options)
    fold.start()
    try:
        fold.until_told("folding from", 120)
        yield fold
    finally:
        fold.stop()
    assert fold.error is None, repr(fold.error)


@asynccontextmanager
async def folding_beside(*given: Any, **options: Any) -> AsyncIterator[RunningFold]:
    """The same for tests whose event loop has to go on meanwhile."""
    opened = folding(*given, **options)
    fold = await asyncio.to_thread(opened.__enter__)
    try:
        yield fold
    finally:
        await asyncio.to_thread(opened.__exit__, None, None, None)


def _no_control(_: Mapping[str, Any]) -> int:
    raise AssertionError("this fold has nothing to propose")
