"""Messages: the Kafka form of an event, and the ledger in pages of them, read ahead."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import psycopg

from tidelock.instants import MILLISECOND, format_instant
from tidelock.postgres.database import Database
from tidelock.postgres.queries import load

SEQUENCE, KEY, DIGEST = "ingress-sequence", "idempotency-key", "commit-digest"

Headers = dict[str, str | bytes | None]

QUERIES = load("tidelock.mirror", "sql/source.sql")

_AHEAD = QUERIES["messages"] + b" WHERE ingress_sequence > %s ORDER BY ingress_sequence LIMIT %s"
_SOME = QUERIES["messages"] + b" WHERE ingress_sequence = ANY(%s) ORDER BY ingress_sequence"
_SEQUENCE, _COMMIT, _MEMBERS = 0, 1, -1
# Rows fetched from the driver at a time: with events of a MiB they are a page, not a thousand pages.
_CHUNK_ROWS = 256
# While a page is sent, about as much as sockets hold is in transit from Postgres; a page should not be larger.
_PAGE_ROWS = 2_000
_AHEAD_PAGES = 20
# An open query holds a lock that a new partition of the events has to wait for, and its writers with it.
_OPEN_S = 1.0

_Connection = psycopg.Connection[Any]
_Rows = Generator[Any, None, None]


#: how the value ends of an event that neither is a correction nor names a batch; messages of the first form lack it
_NO_CORRECTION = b',"target":null,"targetSequence":null,"reason":null,"batchId":null}'


class Message(NamedTuple):
    """An event as it is sent. Equal messages come from the same event of the same commit."""

    sequence: int
    stream: str
    #: what belongs together lies in one partition: a run's events, a row's, else each on its own
    key: bytes
    #: the flat shape that every reader outside gets, as JSON
    value: bytes
    #: when it was received, in milliseconds
    timestamp: int
    #: None: it has none
    idempotency_key: str | None
    #: of its commit, in hexadecimal digits
    digest: bytes

    @property
    def earlier_value(self) -> bytes:
        """The value in the first form, which a topic keeps: it lacked the members of corrections, which are null."""
        without = self.value.removesuffix(_NO_CORRECTION)
        return self.value if without == self.value else without + b"}"

    # Built when needed: stored, they would be four more objects per message for the garbage collector.
    @property
    def headers(self) -> Headers:
        identity = self.idempotency_key
        return {
            SEQUENCE: b"%d" % self.sequence,
            KEY: None if identity is None else identity.encode(),
            DIGEST: self.digest,
        }


def messages_of(rows: Iterable[Sequence[Any]], digests: Mapping[int, bytes]) -> list[Message]:
    """The messages of rows of `messages`; `digests` are those of commits, as hexadecimal digits."""
    found = []
    before, received = None, ""
    for sequence, commit_id, source_timestamp, received_at, occurred_at, stream, key, identity, members in rows:
        # The events of a request were received at one moment, and many occurred at it.
        if received_at != before:
            before, received = received_at, format_instant(received_at)
        occurred = received if occurred_at == received_at else format_instant(occurred_at)
        first = (
            f'{{"ingressSequence":{sequence},"commitId":{commit_id},"sourceTimestamp":"{source_timestamp}",'
            f'"receivedAt":"{received}","occurredAt":"{occurred}",'
        )
        found.append(
            Message(
                sequence,
                stream,
                b"%d" % sequence if key is None else key.encode(),
                # It goes on behind the brace that the others begin with.
                first.encode() + members[1:],
                # Kafka's client takes 0 for now.
                received_at // MILLISECOND or 1,
                idempotency_key=identity,
                digest=digests[commit_id],
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages in ledger order."""

    messages: Sequence[Message]
    #: how many of them, from the first on, are whole commits
    whole: int


class LedgerPages:
    """Pages of one query that continues while they are sent: Postgres produces the next rows meanwhile.

    Not on a thread: two threads working in Python wait for each other at every answer of the database.
    """

    def __init__(self, database: Database, rows_max: int, bytes_max: int) -> None:
        self._rows_max = min(rows_max, _PAGE_ROWS)
        self._bytes_max = bytes_max
        # Where the second cannot be opened, the first is closed again.
        with ExitStack() as opened:
            self._events = opened.enter_context(closing(database.connect_sync(name="tidelock mirror source")))
            # A connection that is free while the other has an open query.
            self._commits = opened.enter_context(closing(database.connect_sync(name="tidelock mirror commits")))
            self._connections = opened.pop_all()
        #: the open query, since when, and rows already read for the next page
        self._ahead: _Rows | None = None
        self._opened_at = 0.0
        self._left: list[Any] = []
        self._sequence = 0

    def read(self, after: int) -> MessagePage:
        """The next page after a sequence: up to a number of events and bytes, but at least one event, whatever its
        size; no messages at the end of the ledger.
        """
        if self._sequence != after:
            self.rest()
        rows = self._rows() if self._ahead is not None else []
        if not rows:
            # Nothing was left when that query began; there may be now.
            self.rest()
            found = self._events.cursor().stream(
                _AHEAD, (after, _AHEAD_PAGES * self._rows_max), binary=True, size=_CHUNK_ROWS
            )
            self._ahead, self._opened_at = cast("_Rows", found), time.monotonic()
            rows = self._rows()
        if rows:
            self._sequence = rows[-1][_SEQUENCE]
        return _page(self._commits, rows)

    def tend(self) -> None:
        """Called while waiting: a query that has been open for long is closed."""
        if self._ahead is not None and time.monotonic() - self._opened_at > _OPEN_S:
            self.rest()

    def rest(self) -> None:
        """Close the open query, and drop what was read ahead."""
        if self._ahead is not None:
            self._ahead.close()
        self._ahead, self._left = None, []

    def close(self) -> None:
        with self._connections:
            self.rest()

    def _rows(self) -> list[Any]:
        """A page of the query that is open, which ends with its last."""
        assert self._ahead is not None
        rows, self._left = self._left, []
        size = sum(len(row[_MEMBERS]) for row in rows)
        while len(rows) < self._rows_max:
            row = next(self._ahead, None)
            if row is None:
                self._ahead = None
                break
            size += len(row[_MEMBERS])
            if rows and size > self._bytes_max:
                self._left = [row]
                break
            rows.append(row)
        return rows


def read_some(connection: _Connection, sequences: Sequence[int]) -> Iterator[Message]:
    """The events of some sequences, those that there are."""
    rows = connection.cursor(binary=True).execute(_SOME, (list(sequences),)).fetchall()
    yield from _page(connection, rows).messages


def _page(connection: _Connection, rows: Sequence[Any]) -> MessagePage:
    if not rows:
        return MessagePage([], 0)
    commits = connection.cursor(binary=True).execute(QUERIES["digests"], (rows[0][_COMMIT], rows[-1][_COMMIT]))
    digests, ends = {}, set()
    for commit_id, last, digest in commits:
        digests[commit_id] = digest
        ends.add(last)
    whole = next((count for count in range(len(rows), 0, -1) if rows[count - 1][_SEQUENCE] in ends), 0)
    return MessagePage(messages_of(rows, digests), whole)
