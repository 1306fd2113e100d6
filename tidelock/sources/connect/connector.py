"""The seam of connectors: what a foreign system tells of the rows of a view, moment by moment.

A connector knows the system; how its rows are recorded, each once, is the same for all: see `connecting`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple, Protocol

from tidelock.definitions import Stream
from tidelock.errors import SettingsError
from tidelock.model import Op


class RowChange(NamedTuple):
    """What became of one row."""

    op: Op
    #: JSON text: the whole row, or its key columns where it was deleted
    data: bytes


class MomentPart(NamedTuple):
    """Changes of one moment, or a part of them, in any order."""

    #: by the foreign system's clock, in milliseconds since 1970
    at_ms: int
    changes: Sequence[RowChange]
    #: where to go on once all that was told so far is recorded; None: more of this moment follows
    position: str | None = None
    #: the changes of this moment are all the rows that there are: any other was deleted
    whole: bool = False


class PositionLost(Exception):
    """It cannot be told any more what came after a position; the text is a sentence for people."""


class Unrecordable(SettingsError):
    """Something in the view cannot be recorded. Once it is changed, only the whole view tells what is missing."""


class KeyViolation(Unrecordable):
    """The view has several rows of one key, so that its changes do not tell what the row is."""


class Connector(Protocol):
    """A view of a foreign system.

    The law of `parts`:
    - Moments come in the order of their time, each once; a key is in one moment at most once.
    - After a position every later moment comes, and no earlier one. Raises PositionLost where that cannot be had.
    - Without a position the first moment is whole, and not before `not_before_ms`.
    - Asked again from the same position it tells the same moments, whatever happened in between.
    It ends when nothing will ever change any more. Raises KeyViolation at the moment of one, Unreachable when the
    connection is lost: then it can be opened again.
    """

    #: what it follows, as it is in the identity of an event
    view: str
    #: the source of its events: the kind of connector, and the view
    source: str
    #: where the foreign system is, for people; without a password
    place: str

    async def open(self, stream: Stream) -> None:
        """Connect, and see that the view's rows can be rows of the stream. Raises SettingsError, Unreachable."""

    def parts(self, after: str | None, not_before_ms: int | None = None) -> AsyncGenerator[MomentPart, None]: ...

    async def close(self) -> None: ...
