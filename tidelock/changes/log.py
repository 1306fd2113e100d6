"""The log of changes: read in pages of Arrow, and kept for a while.

Everyone reads it by these pages: the follower once for all subscribers, those who catch up for themselves, and
`reader`, which makes Python values of them. Changes of a table come by source timestamp, key and tenant, whatever lanes
and parts they lie in.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from tidelock.changes.segments import decode
from tidelock.errors import ResumeExpired
from tidelock.postgres.queries import load

QUERIES = load("tidelock.changes", "sql/changes.sql")

Connection = psycopg.Connection[Any]

# What is in memory at a time: a segment has at most this many changes, and many small ones form a page.
_PAGE_ROWS = 20_000
_PAGE_PARTS = 500
# The order of a table's changes.
_ORDER = ("source_timestamp", "key", "tenant_id")

# Segments removed per statement, so that none holds its locks for long.
_BATCH = 1_000
#: no sequence and no source timestamp in the log is greater
SEQUENCE_MAX = 2**63 - 2

#: the source timestamp, key and tenant of a change
Position = tuple[int, str, str]
#: which of a table's changes a reader wants; None: none of them
Seen = Callable[[str, pa.Table], pa.Table | None]


class Frontier(NamedTuple):
    """How far the fold is."""

    sequence: int
    #: of the last collection up to there
    source_timestamp: int


class LogState(NamedTuple):
    """What one read of the database returns."""

    frontier: Frontier
    #: of the definitions; None before the fold has ever run
    version: int | None
    #: changes through this source timestamp may have expired
    pruned: int


class LogCursor(NamedTuple):
    """How far the log was read: through some of a range's changes of a table, and all that come before."""

    last_sequence: int
    table_name: str
    #: by lane, the first part not read to its end
    parts: tuple[int, ...]
    #: the last change read, if lanes have further ones in parts already read; None: they have none
    last: Position | None
    #: source timestamp through which nothing was skipped
    complete_through: int


class TableChanges(NamedTuple):
    """Changes of a range and table, in order."""

    #: the sequence that the range ends with
    last_sequence: int
    table_name: str
    #: by `change_schema`
    changes: pa.Table


class LogPage(NamedTuple):
    """Consecutive changes of the log."""

    #: ranges one after another, and tables within a range
    changes: Sequence[TableChanges]
    #: where the next page begins; None: this is the last
    cursor: LogCursor | None


class _Part(NamedTuple):
    """A segment as stored."""

    last_sequence: int
    table_name: str
    lane: int
    part: int
    last_source_timestamp: int
    #: of the unread parts of its lane, and their number
    turn: int
    turns: int
    segment: bytes


def _everything(_: str, changes: pa.Table) -> pa.Table:
    return changes


def beginning(after: int, *, last_sequence: int = 0) -> LogCursor:
    """The cursor of one who has everything through a source timestamp, or all ranges through a sequence."""
    return LogCursor(last_sequence + 1, "", (), None, after)


def read_state(connection: Connection) -> LogState:
    row = connection.execute(QUERIES["read_state"]).fetchone()
    assert row is not None, "this query always has a row"
    sequence, source_timestamp, version, pruned = row
    return LogState(Frontier(sequence, source_timestamp), version, pruned)


def read_page(
    connection: Connection,
    tables: Collection[str] | None,
    cursor: LogCursor,
    *,
    after: int = -1,
    until: int = SEQUENCE_MAX,
    through: int = SEQUENCE_MAX,
    seen: Seen = _everything,
) -> LogPage:
    """The next changes of some tables, or all, behind a cursor.

    Of segments that end after one source timestamp and begin until another, and of ranges through a sequence.

    Raises ResumeExpired when some of them are gone. Ranges are removed as a whole, from the oldest on: as long as
    nothing is gone that is later than the last range that was read to its end, nothing is missing.
    """
    wanted = {"last_sequence": cursor.last_sequence, "table_name": cursor.table_name, "parts": list(cursor.parts)}
    wanted |= {"tables": None if tables is None else list(tables), "after": after, "until": until, "through": through}
    wanted |= {"rows_max": _PAGE_ROWS, "parts_max": _PAGE_PARTS}
    rows = connection.execute(QUERIES["page"], wanted, binary=True).fetchall()
    ensure_kept(cursor.complete_through, pruned=rows[0][0])
    more = rows[0][1]
    if more is None:
        return LogPage((), None)
    parts = [_Part(*row[2:]) for row in rows]
    changes: list[TableChanges] = []
    for (last_sequence, name), found in groupby(parts, key=lambda part: part[:2]):
        read = _Lanes(list(found), cursor)
        changes += (TableChanges(last_sequence, name, each) for each in read.changes(partial(seen, name)))
    if not more:
        return LogPage(changes, None)
    # The last range may continue in the next page.
    ended = [part.last_source_timestamp for part in parts if part.last_sequence < parts[-1].last_sequence]
    return LogPage(changes, read.cursor(max([cursor.complete_through, *ended])))


def ensure_kept(complete_through: int, *, pruned: int) -> None:
    """Raises ResumeExpired if changes after a source timestamp may have expired."""
    if complete_through < pruned:
        raise expired(complete_through)


def expired(after: int) -> ResumeExpired:
    return ResumeExpired(
        f"changes after {after} have expired (setting changes_retention); take a new snapshot",
        field="after",
    )


def prune(connection: Connection, retention_ns: int, keep_after_sequence: int | None = None) -> int:
    """Remove segments older than the retention; returns how many.

    Never changes that a durable reader, whose cursors are checked here, has not read, nor ranges that end after
    `keep_after_sequence`.
    """
    keep_after = SEQUENCE_MAX if keep_after_sequence is None else keep_after_sequence
    wanted = {"retention_us": retention_ns // 1_000, "keep_after": keep_after, "limit": _BATCH}
    removed = 0
    while True:
        row = connection.execute(QUERIES["prune"], wanted).fetchone()
        assert row is not None, "a count always has a row"
        if not row[0]:
            return removed
        removed += row[0]


class _Lanes:
    """Changes of one table and range that are read together, from all its lanes.

    Among lanes that continue in the next page, the one that ends first limits how far they can be returned: the next
    part of a lane may come before changes of another.
    """

    def __init__(self, parts: Sequence[_Part], cursor: LogCursor) -> None:
        self._parts = parts
        self._decoded = [decode(part.segment) for part in parts]
        same = (cursor.last_sequence, cursor.table_name) == parts[0][:2]
        self._before = cursor.parts if same else ()
        self._after = cursor.last if same else None
        lasts = {part.lane: (part, changes) for part, changes in zip(parts, self._decoded, strict=True)}
        going_on = [_position(changes, -1) for part, changes in lasts.values() if part.turn < part.turns]
        # A single lane is returned as far as it was read.
        self._through = min(going_on) if going_on and len(lasts) > 1 else None

    def changes(self, seen: Callable[[pa.Table], pa.Table | None]) -> list[pa.Table]:
        told = [seen(self._told(changes)) for changes in self._decoded]
        found = [changes for changes in told if changes is not None and changes.num_rows]
        if len(found) < 2 or len({part.lane for part in self._parts}) == 1:
            return found
        merged = pa.concat_tables(found)
        order = pc.sort_indices(merged, sort_keys=[(name, "ascending") for name in _ORDER])
        return [merged.take(order)]

    def cursor(self, complete_through: int) -> LogCursor:
        """Where the next page begins, if there is one."""
        lanes = max(part.lane for part in self._parts) + 1
        firsts = [*self._before, *([0] * (lanes - len(self._before)))]
        for part, changes in zip(self._parts, self._decoded, strict=True):
            if self._through is None or _position(changes, -1) <= self._through:
                firsts[part.lane] = part.part + 1
        last_sequence, table_name, *_ = self._parts[0]
        return LogCursor(last_sequence, table_name, tuple(firsts), self._through, complete_through)

    def _told(self, changes: pa.Table) -> pa.Table:
        """Those after the ones already returned and before those that must wait."""
        start = 0 if self._after is None else _count(changes, self._after)
        stop = changes.num_rows if self._through is None else _count(changes, self._through)
        return changes.slice(start, stop - start)


def _count(changes: pa.Table, last: Position) -> int:
    """How many changes there are up to and including one."""
    return bisect_right(range(changes.num_rows), last, key=lambda number: _position(changes, number))


def _position(changes: pa.Table, number: int) -> Position:
    time, key, tenant = (changes[name][number].as_py() for name in _ORDER)
    return time, key, tenant
