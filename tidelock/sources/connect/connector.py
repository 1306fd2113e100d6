"""The connector interface: the changes of a foreign view, timestamp by timestamp.

A connector knows the system; recording its rows, each once, is the same for all: see `connecting`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple, Protocol

from tidelock.definitions import Stream
from tidelock.errors import SettingsError
from tidelock.model import Op


class RowChange(NamedTuple):
    """A change of one row."""

    op: Op
    #: JSON text: the whole row, or its key columns if it was deleted
    data: bytes


class MomentPart(NamedTuple):
    """Changes of one timestamp, or a part of them, in any order."""

    #: by the foreign system's clock, in milliseconds since 1970
    at_ms: int
    changes: Sequence[RowChange]
    #: where to resume once everything so far is recorded; None: more of this timestamp follows
    position: str | None = None
    #: the changes of this timestamp are all the rows of the view: any other was deleted
    whole: bool = False


class PositionLost(Exception):
    """Changes after a position are no longer available; the text is a sentence for people."""


class Unrecordable(SettingsError):
    """Something in the view cannot be recorded. Once fixed, only a comparison of the whole view finds what
    is missing.
    """


class KeyViolation(Unrecordable):
    """The view has several rows of one key, so its changes do not determine the row."""


class Connector(Protocol):
    """A view of a foreign system.

    The law of `parts`:
    - Timestamps come in order, each once; a key occurs at most once per timestamp.
    - After a position every later timestamp comes, and no earlier one. Raises PositionLost if that is not possible.
    - Without a position the first timestamp is a whole snapshot, and not before `not_before_ms`.
    - From the same position it returns the same timestamps again, whatever happened in between.
    It ends when nothing will ever change again. Raises KeyViolation when one occurs, and Unreachable when the
    connection is lost, after which it can be reopened.
    """

    #: what it follows, as in the identity of an event
    view: str
    #: the source of its events: the kind of connector, and the view
    source: str
    #: where the foreign system is, for people; without a password
    place: str

    async def open(self, stream: Stream) -> None:
        """Connect, and check that the view's rows fit the stream. Raises SettingsError, Unreachable."""

    def parts(self, after: str | None, not_before_ms: int | None = None) -> AsyncGenerator[MomentPart, None]: ...

    async def close(self) -> None: ...
