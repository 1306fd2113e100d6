"""Shared work: done once for all who ask for the same while it is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class Share(Generic[V]):
    """One's part in what is being done. Everyone leaves once; what the last one leaves is done no further."""

    def __init__(self, work: _Work[V]) -> None:
        self._work: _Work[V] | None = work
        work.shares += 1

    async def result(self) -> V:
        """Waits for it. May be asked again, also after a wait that was cancelled."""
        assert self._work is not None, "nothing is asked for after leaving"
        # Shielded: one that goes must not take it from the others.
        return await asyncio.shield(self._work.task)

    def leave(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.shares -= 1
            if not work.shares:
                work.task.cancel()


class _Work(Generic[V]):
    def __init__(self, task: asyncio.Task[V]) -> None:
        self.task = task
        self.shares = 0


class Shared(Generic[V]):
    """What is under way, by what it is."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, _Work[V]] = {}
        self._tasks: set[asyncio.Task[V]] = set()

    def join(self, key: Hashable, begin: Callable[[], Coroutine[Any, Any, V]]) -> Share[V]:
        """A share of the work with that key; begun, if it is not under way."""
        work = self._under_way.get(key)
        if work is None or not work.shares:
            work = self._under_way[key] = _Work(asyncio.create_task(begin()))
            self._tasks.add(work.task)
            work.task.add_done_callback(lambda task: self._done(key, task))
        return Share(work)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, key: Hashable, task: asyncio.Task[V]) -> None:
        self._tasks.discard(task)
        if (work := self._under_way.get(key)) is not None and work.task is task:
            del self._under_way[key]
        if not task.cancelled():
            # Seen here even if nobody waits any more; otherwise asyncio complains of it.
            task.exception()
