"""Queues: what waits for one subscriber, at most one event for each row.

A subscriber who reads slowly is told what became of a row, not every step. An event that came later takes the place at
the end, so the times of what is taken never go back.
"""

from __future__ import annotations

from tidelock.live.views import Event


class Queue:
    """A subscriber's events. Used on one event loop."""

    def __init__(self, keys_max: int, *, held: bool = False) -> None:
        """`held`: nothing can be taken, and nothing is combined, until `drop_through` says where the snapshot ends.

        An INSERT and a DELETE are nothing together, but not where the snapshot was taken between them.
        """
        self.overflowed = False

    def __len__(self) -> int:
        raise NotImplementedError

    def put(self, event: Event) -> None:
        """Events come in the order of their source timestamps."""
        raise NotImplementedError

    def take(self, most: int) -> list[Event]:
        """The first so many of what waits."""
        raise NotImplementedError

    def drop_through(self, source_timestamp: int) -> None:
        """Leave out everything up to this time, now and later: the subscriber has it already. Ends being held."""
        raise NotImplementedError

    async def wait(self) -> None:
        """Until there is something to take, the queue has overflowed, or the owner woke it."""
        raise NotImplementedError

    def wake(self) -> None:
        """Let `wait` return: the owner has something else to tell."""
        raise NotImplementedError
