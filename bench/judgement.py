"""Judgement: which events of a backlog are late, and what its windows and its order must be. Plain SQL tells.

What the fold has made is compared with it: what is wrong is not fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg

from bench.backlog import QUERIES as BACKLOG
from bench.backlog import Backlog, only_row
from tidelock.errors import Difference
from tidelock.postgres.queries import load

QUERIES = load("bench", "windows.sql")


class Made(NamedTuple):
    """What lies in the tables of windows, or of ordered output."""

    #: closed windows, or released rows
    done: int
    #: open windows, or rows that are held back
    waiting: int
    late: int
    changes: int
    #: of all segments
    change_bytes: int


class Judgement:
    """Over one connection, which has judged every event."""

    def __init__(self, connection: psycopg.Connection[Any], tolerance_ns: int, size_ns: int) -> None:
        self._connection = connection
        self._given = {"tolerance": tolerance_ns, "size": size_ns}
        connection.execute(QUERIES["make_judged"])
        connection.execute(QUERIES["judge"], self._given)
        (latest,) = self._row("latest")
        self._given["reached"] = latest - tolerance_ns

    def windows(self) -> Made:
        """Raises Difference where closed windows are not those of a GROUP BY over the events that are not late."""
        made = self._made("windows", "open")
        if made.changes != made.done + made.late:
            raise Difference(f"the fold recorded {made.changes} changes of {made.done} windows, {made.late} late rows")
        return made

    def ordered(self) -> Made:
        """Raises Difference where released rows are not in the order of their time."""
        return self._made("ordered", "held")

    def check_streamed(self, events: int) -> None:
        """Spark judges by batch and by window, so it takes some of our late rows, and never fewer than we take."""
        least, most = self._row("within")
        if not least <= events <= most:
            raise Difference(f"Spark's windows hold {events} events; from {least} to {most} were to be expected")

    def _made(self, done: str, waiting: str) -> Made:
        late = self._compared("late")
        counted = self._compared(done)
        found, wanted = self._row(waiting)
        if found != wanted:
            raise Difference(f"{waiting}: the fold has {found}, SQL says {wanted}")
        changes, change_bytes = only_row(self._connection.execute(BACKLOG["changes"]).fetchone())
        return Made(counted, found, late, changes, change_bytes)

    def _compared(self, name: str) -> int:
        wrong, count = self._row(name)
        if wrong:
            raise Difference(f"{name}: {wrong} rows are not what SQL says; the fold has {count}")
        return int(count)

    def _row(self, name: str) -> tuple[Any, ...]:
        return only_row(self._connection.execute(QUERIES[name], self._given).fetchone())


@contextmanager
def judged(backlog: Backlog, tolerance_ns: int, size_ns: int) -> Iterator[Judgement]:
    """The judgement of a backlog with such a tolerance, in windows of such a size."""
    with backlog.database.connect_sync() as connection:
        yield Judgement(connection, tolerance_ns, size_ns)
