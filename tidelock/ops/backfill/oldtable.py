"""The older table: a Postgres table of events, read in the order of (received_at, occurred_at, id)."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

import psycopg

from tidelock.errors import SettingsError, Unreachable
from tidelock.ops.backfill.mapping import Column, TableMap, make_map
from tidelock.ops.backfill.statements import Place, Statements
from tidelock.ops.foreign import Address, address
from tidelock.postgres.queries import load
from tidelock.postgres.reconnect import Patience, lost, reason

QUERIES = load("tidelock.ops", "sql/oldtable.sql")

T = TypeVar("T")

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
    """One table behind one connection, which sees it as it was when it was opened.

    A connection that is lost is made again. Rows are then read on from the last one, as the table is then: what was
    added before that one meanwhile is counted at the end as rows that came behind.
    """

    def __init__(self, url: str, connect_timeout_s: float, patience: Patience) -> None:
        self._address = address(url, "Postgres", "tidelock backfill", connect_timeout_s)
        self.place = self._address.place
        self._patience = patience
        self._connection: psycopg.Connection[Any] | None = None
        self.name = ""
        self.columns: TableMap | None = None
        self._statements: Statements | None = None

    def choose(
        self, table: str, told: Mapping[str, tuple[str, str]], *, stream: str | None, tenant_id: str | None
    ) -> TableMap:
        """Find the table and what its columns mean. Raises SettingsError."""
        with _translated(self.place):
            schema, name, found = self._run(lambda connection: self._find(connection, table))
            self.name = name if schema == "public" else f"{schema}.{name}"
            self.columns = make_map(found, told, self.name, stream=stream, tenant_id=tenant_id)
            self._statements = Statements(schema, name, self.columns)
            return self.columns

    def count(self, after: Place | None) -> int:
        with _translated(self.place):
            row = self._run(lambda connection: connection.execute(self._made.count(after)).fetchone())
            assert row is not None
            return int(row[0])

    def unplaced(self) -> tuple[int, list[str | None]]:
        """How many rows have no place in the order, and the ids of the first of them."""
        with _translated(self.place):
            unplaced = self._made.unplaced(UNPLACED_NAMED)
            found = self._run(lambda connection: connection.execute(unplaced).fetchall())
        return (found[0][1] if found else 0), [row[0] for row in found]

    def rows(self, after: Place | None, limit: int | None = None) -> Iterator[OldRow]:
        """Every row behind a place, in order, or the first so many of them."""
        left = limit

        def read(last: OldRow | None) -> Iterator[OldRow]:
            nonlocal left
            with self._given_up(), _cursor(self._open()) as cursor:
                for row in cursor.execute(self._made.rows(after if last is None else last.place, left)):
                    left = None if left is None else left - 1
                    yield OldRow((row[0], row[1], row[2]), row[3], row[4], row[5], row[6:])

        with _translated(self.place):
            yield from self._patience.read_on(read)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def _run(self, step: Callable[[psycopg.Connection[Any]], T]) -> T:
        def once() -> T:
            with self._given_up():
                return step(self._open())

        return self._patience.insist_sync(once)

    def _open(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            self._connection = _connected(self._address)
        return self._connection

    @contextmanager
    def _given_up(self) -> Iterator[None]:
        """The connection is, when it is lost: the next step makes another."""
        try:
            yield
        except psycopg.Error as error:
            if lost(error):
                self.close()
            raise

    @property
    def _made(self) -> Statements:
        assert self._statements is not None, "a table is chosen first"
        return self._statements

    def _find(self, connection: psycopg.Connection[Any], table: str) -> tuple[str, str, list[Column]]:
        found = connection.execute(QUERIES["find_table"], {"name": table}).fetchone()
        if found is None:
            names = [row[0] for row in connection.execute(QUERIES["table_names"]).fetchall()]
            near = difflib.get_close_matches(table, names, n=3, cutoff=0.3)
            hint = f"; did you mean {' or '.join(near)}?" if near else "; the user sees no table there"
            raise SettingsError(f"--table: {self.place} has no table {table!r}{hint}")
        oid, schema, name = found
        columns = connection.execute(QUERIES["columns"], [oid]).fetchall()
        return schema, name, [Column(*row) for row in columns]


def _connected(found: Address) -> psycopg.Connection[Any]:
    try:
        connection = psycopg.connect(**found.parameters)
        # One view of the table for the whole run, and texts of instants that can be read again.
        connection.execute(QUERIES["session"])
        connection.commit()
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
    except psycopg.Error as error:
        raise found.refusal(error) from None
    return connection


@contextmanager
def _cursor(connection: psycopg.Connection[Any]) -> Iterator[psycopg.ServerCursor[Any]]:
    cursor = connection.cursor(name="tidelock_backfill")
    cursor.itersize = _FETCH_ROWS
    try:
        yield cursor
    finally:
        # Where the connection is lost, the driver has to find that out before it closes the cursor on its side.
        with suppress(psycopg.OperationalError):
            cursor.close()
        cursor.close()


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
