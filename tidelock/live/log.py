"""The log of changes, read page by page: by the follower for all, and by those who have some way to catch up."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import pyarrow as pa

from tidelock.columns import STRING
from tidelock.errors import ResumeExpired
from tidelock.ledger.queries import load
from tidelock.live.readers import Reader
from tidelock.where.sql import literal

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
    segments: Sequence[tuple[str, pa.Buffer]]
    #: where the next page begins; None: there is none
    place: Place | None


def beginning(after: int) -> Place:
    """The place of one who has everything through a source timestamp."""
    return Place(0, "", -1, after)


def look(reader: Reader) -> Look:
    (row,) = reader.rows(_QUERIES.text("look")).to_pylist()
    return Look(Frontier(row["sequence"], row["source_timestamp"]), row["version"], row["pruned"])


def read_page(reader: Reader, tables: Collection[str], place: Place, *, after: int, through: int) -> Page:
    """The next changes of some tables behind a place, of segments that end after a time and through a sequence.

    Raises ResumeExpired when some of them are gone. Ranges are removed as a whole, from the oldest on: as long as
    everything through the last one that was read to its end may be gone, but nothing later, none is missing.
    """
    found = reader.rows(
        _QUERIES.text("page").format(
            tables=", ".join(literal(STRING, name) for name in tables),
            after=after,
            through=through,
            last_sequence=place.last_sequence,
            table_name=literal(STRING, place.table_name),
            part=place.part,
            rows_max=_PAGE_ROWS,
            parts_max=_PAGE_PARTS,
        )
    )
    if place.complete_through < found["pruned"][0].as_py():
        raise expired(place.complete_through)
    rows = found.select(["last_sequence", "table_name", "part", "last_source_timestamp", "more"]).to_pylist()
    if rows[0]["part"] is None:
        return Page((), None)
    segments = [(row["table_name"], data.as_buffer()) for row, data in zip(rows, found["segment"], strict=True)]
    last = rows[-1]
    if not last["more"]:
        return Page(segments, None)
    # The last range may go on in the next page.
    ended = [row["last_source_timestamp"] for row in rows if row["last_sequence"] < last["last_sequence"]]
    complete_through = max([place.complete_through, *ended])
    return Page(segments, Place(last["last_sequence"], last["table_name"], last["part"], complete_through))


def expired(after: int) -> ResumeExpired:
    return ResumeExpired(
        f"changes after {after} are not kept any more (setting changes_retention); begin anew with a snapshot",
        field="after",
    )
