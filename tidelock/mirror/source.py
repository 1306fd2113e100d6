"""The source: the ledger in pages of messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast

import psycopg
from psycopg import sql

from tidelock.ledger.database import Database
from tidelock.ledger.queries import load
from tidelock.ledger.reader import COLUMNS
from tidelock.mirror.messages import Message, message

QUERIES = load("tidelock.mirror", "sql/source.sql")

_PAGE = sql.SQL("SELECT {}, row_key FROM events WHERE ingress_sequence > %s ORDER BY ingress_sequence LIMIT %s").format(
    COLUMNS
)
_SOME = sql.SQL("SELECT {}, row_key FROM events WHERE ingress_sequence = ANY(%s) ORDER BY ingress_sequence").format(
    COLUMNS
)
_SEQUENCE, _COMMIT, _DATA = 0, 1, 10
# Rows the driver hands over at a time: with events of a MiB they are a page, not a thousand pages.
_CHUNK_ROWS = 256

_Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class Page:
    """Messages in ledger order."""

    messages: Sequence[Message]
    #: how many of them, from the first on, are whole commits
    whole: int


class Source:
    """Reads on a connection of its own.

    Not on a thread: two that work in Python at once wait for each other at every answer of the database, and sending
    goes on meanwhile in threads that are not Python's.
    """

    def __init__(self, database: Database, rows_max: int, bytes_max: int) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._connection = database.connect_sync(name="tidelock mirror source")

    def read(self, after: int) -> Page:
        """What comes after a sequence; no messages where the ledger ends there."""
        return read_page(self._connection, after, self._rows_max, self._bytes_max)

    def close(self) -> None:
        self._connection.close()


def read_page(connection: _Connection, after: int, rows_max: int, bytes_max: int) -> Page:
    """At most so many events and bytes of data, but one event at least, whatever its size."""
    rows: list[Any] = []
    size = 0
    found = connection.cursor().stream(_PAGE, (after, rows_max), binary=True, size=_CHUNK_ROWS)
    # Closed at once when it is left early, and the query with it.
    with closing(cast("Any", found)) as stream:
        for row in stream:
            size += len(row[_DATA] or "")
            if rows and size > bytes_max:
                break
            rows.append(row)
    return _page(connection, rows)


def read_some(connection: _Connection, sequences: Sequence[int]) -> Iterator[Message]:
    """The events of some sequences, those that there are."""
    rows = connection.cursor(binary=True).execute(_SOME, (list(sequences),)).fetchall()
    yield from _page(connection, rows).messages


def _page(connection: _Connection, rows: Sequence[Any]) -> Page:
    if not rows:
        return Page([], 0)
    commits = connection.cursor(binary=True).execute(QUERIES["digests"], (rows[0][_COMMIT], rows[-1][_COMMIT]))
    digests, ends = {}, set()
    for commit_id, last, digest in commits:
        digests[commit_id] = digest
        ends.add(last)
    whole = next((count for count in range(len(rows), 0, -1) if rows[count - 1][_SEQUENCE] in ends), 0)
    return Page([message(row, digests) for row in rows], whole)
