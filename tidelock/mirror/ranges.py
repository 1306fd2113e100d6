"""Ranges: what is in Kafka and where, recorded together with the cursor that says how far."""

from __future__ import annotations

from typing import Any

import psycopg

from tidelock.mirror.batches import Range
from tidelock.postgres.queries import load

QUERIES = load("tidelock.mirror", "sql/ranges.sql")

CURSOR = "kafka"
#: ranges are joined up to so many events: single events must not leave a row each for ever
_JOINED_EVENTS = 10_000

_Connection = psycopg.Connection[Any]


class CursorMoved(Exception):
    """Another has moved the cursor: a second mirror, or a repair."""


class Ranges:
    """What one mirror records."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        connection.execute(QUERIES["begin"])
        self.position = read_position(connection)
        #: the last one recorded, while it is small
        self._last: Range | None = None

    def record(self, found: Range) -> None:
        """Raises CursorMoved when this is not the next one."""
        before, joined = self._last, found
        with self._connection.transaction():
            moved = self._connection.execute(QUERIES["move"], {"before": self.position, "after": found.last_sequence})
            if moved.rowcount != 1:
                raise CursorMoved
            if before is not None and before.before(found):
                self._connection.execute(QUERIES["forget"], (before.last_sequence,))
                joined = before.joined(found)
            self._write(joined)
        self.position = found.last_sequence
        self._last = joined if joined.events < _JOINED_EVENTS else None

    def _write(self, found: Range) -> None:
        places, spans = list(found.spans), list(found.spans.values())
        given = {
            "first": found.first_sequence,
            "last": found.last_sequence,
            "topics": [place.topic for place in places],
            "partitions": [place.partition for place in places],
            "firsts": [span.first_offset for span in spans],
            "lasts": [span.last_offset for span in spans],
        }
        self._connection.execute(QUERIES["record"], given)


def read_position(connection: _Connection) -> int:
    row = connection.execute(QUERIES["position"]).fetchone()
    return 0 if row is None else int(row[0])


def read_ledger_end(connection: _Connection) -> int:
    row = connection.execute(QUERIES["ledger_end"]).fetchone()
    assert row is not None, "the head is always there"
    return int(row[0])
