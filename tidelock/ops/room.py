"""Room for the bodies of requests: bounded in bytes, whatever number of clients sends at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidelock.errors import Overloaded


class Held:
    """What one request holds of the room."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.bytes = 0

    def add(self, size: int) -> None:
        """Raises Overloaded when there is no room. One request alone always has it, or it would never be taken."""
        room = self._room
        if room.bytes + size > room.bytes_max and room.bytes > self.bytes:
            raise Overloaded(f"{room.bytes} bytes of other requests are under way; send the request again later")
        room.bytes += size
        self.bytes += size


class Room:
    """All the bytes that requests may hold together, from the first chunk to the answer."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0

    @contextmanager
    def hold(self) -> Iterator[Held]:
        held = Held(self)
        try:
            yield held
        finally:
            self.bytes -= held.bytes
