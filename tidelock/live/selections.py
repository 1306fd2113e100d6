"""Selections: what a subscriber wants to see of an event, compiled once and shared by all who select the same."""

from __future__ import annotations

from tidelock.live.views import Event


class Selection:
    """What is shown of a table's events, under which names. Two that show the same are one object.

    So it is compared and hashed by identity, which is what makes looking an encoding up cheap.
    """

    def encode(self, event: Event) -> bytes:
        """The payload `{"data":{"<name>":{...}}}` of an event, without line ends.

        Made once for an event and selection: kept in `event.encoded`.
        """
        raise NotImplementedError
