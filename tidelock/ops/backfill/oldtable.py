"""The older table: a Postgres table of events, read in the order of (received_at, occurred_at, id)."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg

from tidelock.errors import SettingsError, Unreachable
from tidelock.ledger.outage import reason
from tidelock.ledger.queries import load
from tidelock.ops.backfill.mapping import Column, TableMap, make_map
from tidelock.ops.backfill.statements import Place, Statements
from tidelock.ops.foreign import address

QUERIES = load("tidelock.ops", "sql/oldtable.sql")

#: rows without a place that are named; all are counted
UNPLACED_NAMED = 1_000
_FETCH_ROWS = 2_000


class OldRow(NamedTuple):
    """A row, as texts, with its place in the order."""

    place: Place
    #: in microseconds since 1970; None: not finite
    received_us: int | None
    #: the same; `untimed` where there is none at all
    occurred_us: int | None
    untimed: bool
    values: tuple[str | None, ...]


class OldTable:
    """One table behind one connection, which sees it as it was when it was opened."""

    def __init__(self, url: str, connect_timeout_s: float) -> None:
        self.place, self._connection = _connected(url, connect_timeout_s)
        self.name = ""
        self.columns: TableMap | None = None
        self._statements: Statements | None = None

    def choose(
        self, table: str, told: Mapping[str, tuple[str, str]], *, stream: str | None, tenant_id: str | None
    ) -> TableMap:
        """Find the table and what its columns mean. Raises SettingsError."""
        with _translated(self.place):
            schema, name, found = self._find(table)
            self.name = name if schema == "public" else f"{schema}.{name}"
            self.columns = make_map(found, told, self.name, stream=stream, tenant_id=tenant_id)
            self._statements = Statements(schema, name, self.columns)
            return self.columns

    def count(self, after: Place | None) -> int:
        with _translated(self.place):
            row = self._connection.execute(self._made.count(after)).fetchone()
            assert row is not None
            return int(row[0])

    def unplaced(self) -> tuple[int, list[str | None]]:
        """How many rows have no place in the order, and the ids of the first of them."""
        with _translated(self.place):
            found = self._connection.execute(self._made.unplaced(UNPLACED_NAMED)).fetchall()
        return (found[0][1] if found else 0), [row[0] for row in found]

    def rows(self, after: Place | None, limit: int | None = None) -> Iterator[OldRow]:
        with _translated(self.place), self._connection.cursor(name="tidelock_backfill") as cursor:
            cursor.itersize = _FETCH_ROWS
            for row in cursor.execute(self._made.rows(after, limit)):
                yield OldRow((row[0], row[1], row[2]), row[3], row[4], row[5], row[6:])

    def close(self) -> None:
        self._connection.close()

    @property
    def _made(self) -> Statements:
        assert self._statements is not None, "a table is chosen first"
        return self._statements

    def _find(self, table: str) -> tuple[str, str, list[Column]]:
        found = self._connection.execute(QUERIES["find_table"], {"name": table}).fetchone()
        if found is None:
            names = [row[0] for row in self._connection.execute(QUERIES["table_names"]).fetchall()]
            near = difflib.get_close_matches(table, names, n=3, cutoff=0.3)
            hint = f"; did you mean {' or '.join(near)}?" if near else "; the user sees no table there"
            raise SettingsError(f"--table: {self.place} has no table {table!r}{hint}")
        oid, schema, name = found
        columns = self._connection.execute(QUERIES["columns"], [oid]).fetchall()
        return schema, name, [Column(*row) for row in columns]


def _connected(url: str, timeout_s: float) -> tuple[str, psycopg.Connection[Any]]:
    found = address(url, "Postgres", "tidelock backfill", timeout_s)
    try:
        connection = psycopg.connect(**found.parameters)
        # One view of the table for the whole run, and texts of instants that can be read again.
        connection.execute(QUERIES["session"])
        connection.commit()
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
    except psycopg.Error as error:
        raise found.refusal(error) from None
    return found.place, connection


@contextmanager
def _translated(place: str) -> Iterator[None]:
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise SettingsError(f"--from: at {place}: {reason(error)}; grant SELECT to this user") from error
    except (psycopg.OperationalError, psycopg.InterfaceError) as error:
        raise Unreachable(f"{place} went away ({reason(error)}); run it again to go on") from error
    except psycopg.Error as error:
        raise SettingsError(f"{place} cannot be asked this: {reason(error)}") from error
