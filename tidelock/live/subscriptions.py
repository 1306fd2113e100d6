"""Subscriptions: one subscriber's way through a table, from its rows of now, or a time, to its changes."""

from __future__ import annotations

from tidelock.live.views import Event

#: events of one `take` where the caller does not say
TAKE_EVENTS = 200


class Subscription:
    """The rows of a filter and what becomes of them, in the order of their source timestamps.

    Made by `Hub.subscribe`. One caller takes; whoever has the object may close it. Nothing is lost when a `take` that
    waits is cancelled: the next one goes on where it was.
    """

    async def take(self, limit: int = TAKE_EVENTS) -> list[Event]:
        """The next events, at least one; waits for it. First the snapshot as INSERTs, then changes.

        Raises Ended (`Closed`, `DefinitionChanged`, `Overflowed`), ResumeExpired, SnapshotTooLarge: then it is over,
        and everything it had is free.
        """
        raise NotImplementedError

    async def wait_ended(self) -> Exception:
        """Waits until it is over, and gives why.

        For who is held up sending what it took: it cannot take, and so would not hear that too much waits.
        """
        raise NotImplementedError

    @property
    def queued(self) -> int:
        """Rows that wait to be taken, beside the snapshot."""
        raise NotImplementedError

    def close(self) -> None:
        """Free everything. A `take` that waits raises Closed. Doing it again does nothing."""
        raise NotImplementedError
