"""Looks: a question that many ask at a time is put to the database once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Look(Generic[T]):
    """Whoever asks gets an answer that was looked up after it asked; all who wait for it get the same one.

    So a thousand clients that come back at once put the question twice: once for who came first, and once for the rest.
    """

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._running: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        following = self._next
        if following is None:
            following = self._next = asyncio.create_task(self._look(self._running))
            # Seen here even if whoever asked has hung up meanwhile; otherwise asyncio complains of it.
            following.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Shielded: one that hangs up must not take the answer from the others.
        return await asyncio.shield(following)

    async def _look(self, running: asyncio.Task[T] | None) -> T:
        waited = running is not None and not running.done()
        if running is not None and waited:
            await asyncio.wait([running])
        # Who asks from here on may want to know of what happens from here on.
        self._running, self._next = self._next, None
        if running is not None and waited and (error := running.exception()) is not None:
            # It was away a moment ago: waiting for as long again would be too long.
            raise error
        return await self._ask()
