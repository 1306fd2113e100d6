"""The backlog: a ledger of so many events that waits to be folded, again and again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tidelock.errors import Difference
from tidelock.fold.statements import drop, reshape
from tidelock.instants import SECOND, parse_rfc3339
from tidelock.postgres.database import Database
from tidelock.postgres.queries import load
from tidelock.tables import ALWAYS, Table

QUERIES = load("bench", "backlog.sql")

_STEP_EVENTS = 500_000
# The third of a month: events that lie a day behind stay in it.
_START = parse_rfc3339("2026-03-03T00:00:00Z")
_DAY = 86_400 * SECOND


@dataclass(frozen=True, slots=True)
class Pace:
    """When events occur. In nanoseconds."""

    #: from one to the next
    step: int
    #: how far behind its time any may be, at random; at most two seconds
    disorder: int
    #: every so many, one lies far behind
    far_every: int
    far_behind: int


@dataclass(frozen=True, slots=True)
class Folded:
    """What lies in the tables."""

    counters: int
    adjustments: int
    changes: int
    #: of all segments
    change_bytes: int


class Backlog:
    """Events of as many customers in an empty, migrated ledger; over 20 days of one month, if nothing else is said."""

    def __init__(
        self, database: Database, events: int, customers: int, partition_events: int, pace: Pace | None = None
    ) -> None:
        self.database = database
        self.events = events
        self._tables: Mapping[str, Table] = ALWAYS
        pace = pace or Pace(20 * _DAY // events, 1, 50, _DAY)
        given = {"start": _START, "customers": customers, **asdict(pace)}
        with database.connect_sync() as connection:
            for sequence in range(0, events + partition_events, partition_events):
                connection.execute("SELECT ensure_events_partition(%s, %s)", [sequence, partition_events])
            for first in range(1, events + 1, _STEP_EVENTS):
                last = min(first + _STEP_EVENTS - 1, events)
                connection.execute(QUERIES["events"], {**given, "first": first, "last": last})
            connection.execute(QUERIES["commits"])
            connection.execute(QUERIES["head"])
            # What the first reader would do, and what would be written while the first fold runs.
            connection.execute("VACUUM ANALYZE events, commits")
            connection.execute("CHECKPOINT")

    def forget(self, tables: Mapping[str, Table]) -> None:
        """Empty tables, these and no others, and everything still to be folded."""
        with self.database.connect_sync() as connection:
            for statement in (*drop(self._tables, ALWAYS), *reshape(ALWAYS, tables)):
                connection.execute(statement.encode())
            self._tables = tables
            connection.execute(QUERIES["forget"])
            connection.execute(QUERIES["forget_cursor"])
            connection.execute("CHECKPOINT")

    def record_another(self) -> None:
        """One event more, in a commit of its own."""
        with self.database.connect_sync() as connection:
            for name in ("another", "another_commit", "head"):
                connection.execute(QUERIES[name])
        self.events += 1

    def folded(self) -> Folded:
        """Raises Difference where the tables do not count every event: what is wrong is not fast."""
        with self.database.connect_sync() as connection:
            events, counters, adjustments, total = only_row(connection.execute(QUERIES["counted"]).fetchone())
            expected = only_row(connection.execute(QUERIES["quantities"]).fetchone())
            changes, change_bytes = only_row(connection.execute(QUERIES["changes"]).fetchone())
        if (events, total) != expected:
            raise Difference(f"the fold counted {events} events worth {total}; the ledger has {expected}")
        return Folded(counters, adjustments, changes, change_bytes)


def only_row(row: tuple[Any, ...] | None) -> tuple[Any, ...]:
    """That of an aggregate."""
    assert row is not None, "an aggregate has one row"
    return row
