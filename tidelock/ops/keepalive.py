"""Keep-alive: clients that are written to for long.

One that nothing is sent to hears now and then that the server is there, and one that takes nothing is ended.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from tidelock.errors import Overflowed

#: looks at a client in the time of a keep-alive
LOOKS = 4


class Client(ABC):
    """One that is written to until somebody says that it ends."""

    #: what is written to keep it alive
    still_here: bytes

    def __init__(self) -> None:
        #: has the error that it ends for
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Seen here, where nobody waits for it any more; otherwise asyncio complains of it.
        self.ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        self._saying: asyncio.Task[None] | None = None
        #: writes that wait until the client has read
        self._waiting = 0
        #: looks since something was written, and since a write waits
        self._silent = self._held = 0

    @abstractmethod
    async def give(self, parts: Sequence[bytes]) -> None:
        """Send; waits while the client does not read. Raises OSError when it is gone."""

    async def write(self, parts: Sequence[bytes]) -> None:
        self._waiting += 1
        try:
            await self.give(parts)
        finally:
            self._waiting -= 1
        self._silent = self._held = 0

    def end(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)

    def look(self) -> None:
        """Called LOOKS times in the time of a keep-alive."""
        if self._waiting:
            self._held += 1
            if self._held > 2 * LOOKS:
                self.end(Overflowed("what was sent was not read for too long; subscribe again"))
            return
        self._silent += 1
        if self._silent >= LOOKS:
            # Not waited for: a client that takes nothing must not hold up the look at the next.
            self._saying = asyncio.create_task(self._say())

    async def _say(self) -> None:
        with suppress(OSError):
            await self.write([self.still_here])


class KeepAlive:
    """Looks after all clients of a kind in turn: a timer for each would cost more than what it is for."""

    def __init__(self, period_s: float) -> None:
        self._pause_s = period_s / LOOKS
        self._clients: set[Client] = set()
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def over(self, client: Client) -> Iterator[None]:
        self._clients.add(client)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._go())
        try:
            yield
        finally:
            self._clients.discard(client)

    async def _go(self) -> None:
        while self._clients:
            await asyncio.sleep(self._pause_s)
            for client in list(self._clients):
                client.look()
