"""The log of changes, read page by page: by the follower for all, and by those who have some way to catch up."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from tidelock.errors import ResumeExpired
from tidelock.ledger.queries import load
from tidelock.live.readers import Connection

_QUERIES = load("tidelock.live", "sql/log.sql")

# What is in memory at a time: segments have at most so many changes, and many small ones make a page.
_PAGE_ROWS = 20_000
_PAGE_PARTS = 500


class Frontier(NamedTuple):
    """How far the fold is."""

    sequence: int
    #: of the last collection up to there
    source_timestamp: int


class Look(NamedTuple):
    """What a look at the database tells."""

    frontier: Frontier
    #: of the definitions; None before the fold has ever run
    version: int | None
    #: changes through this source timestamp may be gone
    pruned: int


class Place(NamedTuple):
    """A segment of the log, and which ranges before it were read to their ends."""

    last_sequence: int
    table_name: str
    part: int
    #: source timestamp through which nothing before was left out
    complete_through: int


class Page(NamedTuple):
    """Segments that follow each other, as they are stored."""

    #: table, data
    segments: Sequence[tuple[str, bytes]]
    #: where the next page begins; None: there is none
    place: Place | None


def beginning(after: int) -> Place:
    """The place of one who has everything through a source timestamp."""
    return Place(0, "", -1, after)


def look(connection: Connection) -> Look:
    row = connection.execute(_QUERIES["look"]).fetchone()
    assert row is not None, "this query always has a row"
    sequence, source_timestamp, version, pruned = row
    return Look(Frontier(sequence, source_timestamp), version, pruned)


def read_page(connection: Connection, tables: Collection[str], place: Place, *, after: int, through: int) -> Page:
    """The next changes of some tables behind a place, of segments that end after a time and through a sequence.

    Raises ResumeExpired when some of them are gone. Ranges are removed as a whole, from the oldest on: as long as
    nothing is gone that is later than the last range that was read to its end, nothing is missing.
    """
    wanted = {**place._asdict(), "tables": list(tables), "after": after, "through": through}
    wanted |= {"rows_max": _PAGE_ROWS, "parts_max": _PAGE_PARTS}
    rows = connection.execute(_QUERIES["page"], wanted, binary=True).fetchall()
    if place.complete_through < rows[0][0]:
        raise expired(place.complete_through)
    if rows[0][1] is None:
        return Page((), None)
    segments = [(row[2], row[6]) for row in rows]
    _, last_sequence, table_name, part, _, more, _ = rows[-1]
    if not more:
        return Page(segments, None)
    # The last range may go on in the next page.
    ended = [row[4] for row in rows if row[1] < last_sequence]
    return Page(segments, Place(last_sequence, table_name, part, max([place.complete_through, *ended])))


def expired(after: int) -> ResumeExpired:
    return ResumeExpired(
        f"changes after {after} are not kept any more (setting changes_retention); begin anew with a snapshot",
        field="after",
    )
