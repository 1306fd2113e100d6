"""Changes as Python values: what the fold did to the tables, in one order, from where a reader has come to.

This is for triggers and the `changes` command, who want all tables in one order: by source timestamp, table, key and
tenant. A page of the log is read at a time, and where a range does not fit in one, a page of each of its tables: memory
does not grow with what there is to read. Nothing holds a snapshot meanwhile, so what is not there any more is found at
each page and raised, not skipped.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from typing import Any, NamedTuple

import psycopg
import pyarrow as pa

from tidelock.changes.log import (
    QUERIES,
    SEQUENCE_MAX,
    LogCursor,
    TableChanges,
    beginning,
    ensure_kept,
    read_page,
)
from tidelock.columns import ColumnType, Form, decimal_form, forms_of, row_form

#: column -> int (instants are nanoseconds), Decimal, str, bool, float, date or None
Row = dict[str, Any]

# Converting this many to Python values takes a millisecond or two, and little memory even if rows are large.
_ROWS = 250
_BYTES = 2**20

# The Python types of values inside.
_INSIDE = {"decimal": Decimal, "timestamp": int, "json": str}


class Change(NamedTuple):
    """What one collection did to one key of a table."""

    table: str
    source_timestamp: int
    tenant_id: str
    key: str
    #: None: there was none before, or there is none now
    old: Row | None
    new: Row | None

    @property
    def place(self) -> tuple[int, str, str, str]:
        """Its place in the order of all changes. Keys compare by code point."""
        return self.source_timestamp, self.table, self.key, self.tenant_id


@dataclass(frozen=True, slots=True)
class ChangedRange:
    """The changes of one range of the fold."""

    #: last sequence of the range: a reader that has these is complete through it
    last_sequence: int
    #: to be read before the next batch
    changes: Iterator[Change]


def pruned_through(connection: psycopg.Connection[Any]) -> int:
    """The source timestamp from which every change is retained: the earliest valid `after`."""
    return int(_one(connection, "pruned", ()))


def before_last(connection: psycopg.Connection[Any], table: str, count: int) -> int:
    """An `after` with which a reader gets a table's last `count` changes, or all that are retained, and few before
    them.
    """
    return max(pruned_through(connection), int(_one(connection, "before_last", (table, count))))


def read_changes(
    connection: psycopg.Connection[Any],
    *,
    after: int,
    through: int | None = None,
    tables: Collection[str] | None = None,
) -> Iterator[Change]:
    """Changes with source timestamps above `after`, up to and including `through`, or to the end.

    Raises ResumeExpired if some have expired, at once or on the way.
    """
    until = SEQUENCE_MAX if through is None else through
    for found in _ranges(connection, beginning(after), tables, after=after, until=until):
        # Segments may begin before and end after what was asked for.
        yield from (change for change in found.changes if after < change.source_timestamp <= until)


def changes_after(
    connection: psycopg.Connection[Any], last: Change, *, tables: Collection[str] | None = None
) -> Iterator[Change]:
    """Changes after one of them, for a reader that was interrupted there. Raises ResumeExpired."""
    found = read_changes(connection, after=last.source_timestamp - 1, tables=tables)
    return (change for change in found if change.place > last.place)


def read_batches(
    connection: psycopg.Connection[Any],
    *,
    after: int,
    through: int = SEQUENCE_MAX,
    tables: Collection[str] | None = None,
) -> Iterator[ChangedRange]:
    """Changes of the ranges that end after a sequence of the ledger, range by range: for readers with a cursor.

    Ranges that changed none of the tables are omitted. Raises ResumeExpired.
    """
    time = int(_one(connection, "time_of_sequence", (after,)))
    return _ranges(connection, beginning(time, last_sequence=after), tables, through=through)


def _ranges(
    connection: psycopg.Connection[Any],
    cursor: LogCursor | None,
    tables: Collection[str] | None,
    *,
    after: int = -1,
    until: int = SEQUENCE_MAX,
    through: int = SEQUENCE_MAX,
) -> Iterator[ChangedRange]:
    wanted = None if tables is None else list(tables)
    while cursor is not None:
        page = read_page(connection, wanted, cursor, after=after, until=until, through=through)
        cursor = page.cursor
        for last_sequence, found in groupby(page.changes, key=lambda each: each.last_sequence):
            # The last one of a page may go on in the next.
            if cursor is None or last_sequence < cursor.last_sequence:
                by_table = [list(own) for _, own in groupby(found, key=lambda each: each.table_name)]
                yield ChangedRange(last_sequence, _merged(by_table))
        if cursor is not None:
            names, end = _extent(connection, cursor, wanted)
            yield ChangedRange(
                cursor.last_sequence,
                _merged(_paged(connection, cursor, name, after=after, until=until) for name in names),
            )
            cursor = beginning(end, last_sequence=cursor.last_sequence)


def _extent(connection: psycopg.Connection[Any], cursor: LogCursor, tables: list[str] | None) -> tuple[list[str], int]:
    """What the range of a cursor has of some tables: which have changes, and when the last is."""
    asked = {"last_sequence": cursor.last_sequence, "tables": tables}
    pruned, names, end = connection.execute(QUERIES["range"], asked).fetchall()[0]
    ensure_kept(cursor.complete_through, pruned=pruned)
    return names, end


def _paged(
    connection: psycopg.Connection[Any], range_: LogCursor, name: str, *, after: int, until: int
) -> Iterator[TableChanges]:
    """All changes of a table in a range."""
    cursor: LogCursor | None = range_._replace(table_name=name, parts=(), last=None)
    while cursor is not None:
        page = read_page(connection, [name], cursor, after=after, until=until, through=range_.last_sequence)
        yield from page.changes
        cursor = page.cursor


def _merged(tables: Iterable[Iterable[TableChanges]]) -> Iterator[Change]:
    """Changes of all tables of a range in one order; those of a table are in order already."""
    return heapq.merge(*map(_changes, tables), key=lambda change: change.place)


def _changes(found: Iterable[TableChanges]) -> Iterator[Change]:
    for each in found:
        for batch in slices(each.changes):
            yield from changes_of(each.table_name, batch)


def slices(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Parts that are quickly converted to Python values."""
    for batch in rows.combine_chunks().to_batches():
        # At most this many, and fewer if they are large.
        step = max(1, min(_ROWS, _BYTES * int(batch.num_rows) // max(1, int(batch.nbytes))))
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)


def changes_of(table: str, batch: pa.RecordBatch) -> list[Change]:
    """Changes of a table, column by column."""
    meta = [batch.column(name).to_pylist() for name in ("source_timestamp", "tenant_id", "key")]
    sides = [_structs(batch.column(name)) for name in ("old", "new")]
    return [Change(table, *values) for values in zip(*meta, *sides, strict=True)]


def decimals_of(texts: list[str | None]) -> list[Decimal | None]:
    return [None if text is None else Decimal(text) for text in texts]


def change_forms(columns: Mapping[str, ColumnType]) -> Callable[[Change], dict[str, object]]:
    """The function that formats a table's changes for encoding: `{"sourceTimestamp", "key", "old", "new"}`."""
    forms = column_forms(columns)

    def row(values: Row | None, tenant_id: str) -> dict[str, object] | None:
        return None if values is None else row_form(values, forms, tenant_id)

    def form(change: Change) -> dict[str, object]:
        return {
            "sourceTimestamp": str(change.source_timestamp),
            "key": change.key,
            "old": row(change.old, change.tenant_id),
            "new": row(change.new, change.tenant_id),
        }

    return form


def column_forms(columns: Mapping[str, ColumnType]) -> dict[str, Form]:
    """The formats of the columns of changes, some of which may be older than the table's current definition."""
    return {name: _tolerant(_INSIDE[columns[name].name], form) for name, form in forms_of(columns).items()}


def _one(connection: psycopg.Connection[Any], query: str, parameters: tuple[object, ...]) -> Any:
    row = connection.execute(QUERIES[query], parameters).fetchone()
    assert row is not None, "these queries always have a row"
    return row[0]


def _structs(rows: pa.StructArray) -> list[Row | None]:
    if rows.null_count == len(rows):
        return [None] * len(rows)
    names = [field.name for field in rows.type]
    columns = [_values(values) for values in rows.flatten()]
    made: list[Row | None] = [dict(zip(names, each, strict=True)) for each in zip(*columns, strict=True)]
    if rows.null_count:
        return [row if exists else None for row, exists in zip(made, rows.is_valid().to_pylist(), strict=True)]
    return made


def _values(values: pa.Array) -> list[Any]:
    # Via strings, decimals take a fifth of the time.
    return decimals_of(values.cast(pa.string()).to_pylist()) if pa.types.is_decimal(values.type) else values.to_pylist()


def _tolerant(inside: type, form: Form) -> Form:
    """A change from before the definition changed may have values of another type, which have no format here."""

    def shown(value: object) -> object:
        if isinstance(value, inside):
            return form(value)
        return decimal_form(value) if isinstance(value, Decimal) else value

    return shown
