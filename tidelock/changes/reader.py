"""Reading changes: what the fold did to the tables, in one order, from where a reader has come to.

A range of the fold is read at a time, and of each table and lane in it one segment: memory does not grow with what
there is to read. Nothing holds a snapshot meanwhile, so what is not there any more is found at each step and raised,
not skipped.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg

from tidelock.errors import ResumeExpired
from tidelock.fold.segments import decode
from tidelock.postgres.queries import load

QUERIES = load("tidelock.changes", "sql/changes.sql")

#: column -> int (instants are nanoseconds), Decimal, str, bool, float, date or None
Row = dict[str, Any]

# Changes made Python values at a time.
_ROWS = 1_000


class Change(NamedTuple):
    """What one collection did to one key of a table."""

    table: str
    source_timestamp: int
    tenant_id: str
    key: str
    #: None: there was none before, or there is none any more
    old: Row | None
    new: Row | None

    @property
    def place(self) -> tuple[int, str, str, str]:
        """Its place in the order of all changes. Keys compare by code point."""
        return self.source_timestamp, self.table, self.key, self.tenant_id


@dataclass(frozen=True, slots=True)
class Batch:
    """The changes of one range of the fold."""

    #: sequence that the range ends with: who has these is complete through it
    last_sequence: int
    #: to be read before the next batch
    changes: Iterator[Change]


class _Range(NamedTuple):
    last_sequence: int
    last_source_timestamp: int
    #: parts by table and lane
    parts: dict[tuple[str, int], int]


def pruned_through(connection: psycopg.Connection[Any]) -> int:
    """The source timestamp from which on every change is there: the earliest that may be given as `after`."""
    return int(_one(connection, "pruned", ()))


def before_last(connection: psycopg.Connection[Any], table: str, count: int) -> int:
    """An `after` with which a reader has a table's last `count` changes, or all that are kept, and few before them."""
    return max(pruned_through(connection), int(_one(connection, "before_last", (table, count))))


def read_changes(
    connection: psycopg.Connection[Any],
    *,
    after: int,
    through: int | None = None,
    tables: Collection[str] | None = None,
) -> Iterator[Change]:
    """Changes with source timestamps above `after`, up to and with `through`, or to the last there is.

    Raises ResumeExpired when some of them are gone, at once or on the way.
    """
    wanted = None if tables is None else list(tables)
    position = after
    while True:
        found = _next(connection, "range_after_time", position, wanted, complete_through=position)
        if found is None:
            return
        for change in _merged(connection, found):
            if through is not None and change.source_timestamp > through:
                return
            # A range may begin before what was asked for.
            if change.source_timestamp > after:
                yield change
        position = found.last_source_timestamp


def changes_after(
    connection: psycopg.Connection[Any], last: Change, *, tables: Collection[str] | None = None
) -> Iterator[Change]:
    """Changes that come after one in their order, for who was interrupted there. Raises ResumeExpired."""
    found = read_changes(connection, after=last.source_timestamp - 1, tables=tables)
    return (change for change in found if change.place > last.place)


def read_batches(
    connection: psycopg.Connection[Any], *, after: int, tables: Collection[str] | None = None
) -> Iterator[Batch]:
    """Changes of the ranges that end after a sequence of the ledger, range by range: for readers with a cursor.

    Ranges that changed none of the tables are left out. Raises ResumeExpired.
    """
    wanted = None if tables is None else list(tables)
    position, time = after, int(_one(connection, "time_of_sequence", (after,)))
    while True:
        found = _next(connection, "range_after_sequence", position, wanted, complete_through=time)
        if found is None:
            return
        yield Batch(found.last_sequence, _merged(connection, found))
        position, time = found.last_sequence, found.last_source_timestamp


def _next(
    connection: psycopg.Connection[Any], query: str, after: int, tables: list[str] | None, *, complete_through: int
) -> _Range | None:
    """The next range, in one look with what was pruned meanwhile."""
    rows = connection.execute(QUERIES[query], {"after": after, "tables": tables}).fetchall()
    pruned, last_sequence, *_ = rows[0]
    if complete_through < pruned:
        raise _expired(complete_through)
    if last_sequence is None:
        return None
    return _Range(last_sequence, max(row[5] for row in rows), {(row[2], row[3]): row[4] for row in rows})


def _merged(connection: psycopg.Connection[Any], found: _Range) -> Iterator[Change]:
    """A range's changes of all tables in one order; those of a table and lane are in order already."""
    each = (_of_lane(connection, found, table, lane) for table, lane in found.parts)
    return heapq.merge(*each, key=lambda change: change.place)


def _of_lane(connection: psycopg.Connection[Any], found: _Range, table: str, lane: int) -> Iterator[Change]:
    for part in range(found.parts[table, lane]):
        row = connection.execute(QUERIES["segment"], (found.last_sequence, table, lane, part), binary=True).fetchone()
        if row is None:
            raise _expired(found.last_source_timestamp)
        for batch in decode(row[0]).to_batches(max_chunksize=_ROWS):
            for values in zip(*(batch.column(name).to_pylist() for name in Change._fields[1:]), strict=True):
                yield Change(table, *values)


def _one(connection: psycopg.Connection[Any], query: str, parameters: tuple[object, ...]) -> Any:
    row = connection.execute(QUERIES[query], parameters).fetchone()
    assert row is not None, "these queries always have a row"
    return row[0]


def _expired(after: int) -> ResumeExpired:
    return ResumeExpired(
        f"changes after {after} are not kept any more (setting changes_retention); begin anew with a snapshot",
        field="after",
    )
