"""The older table: a Postgres table of events, read in the order of (received_at, occurred_at, id)."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tidelock.errors import SettingsError, Unreachable
from tidelock.ledger.outage import reason
from tidelock.ledger.queries import load
from tidelock.ops.backfill.mapping import Column, TableMap, make_map
from tidelock.ops.backfill.statements import Place, Statements

QUERIES = load("tidelock.ops", "sql/oldtable.sql")

#: rows without a place that are named; all are counted
UNPLACED_NAMED = 1_000
# SQLSTATE of a login that will be refused again: wrong password, wrong user, no such database, not allowed from here.
_REFUSED = ("28000", "28P01", "3D000", "42501")
_REFUSED_TEXTS = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied")
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
    try:
        known = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # The vendor's message quotes the text, and with it the password.
        looks = "postgresql://user:password@host:5432/name"
        raise SettingsError(f"--from is no URL of a Postgres; it looks like {looks}") from None
    place = f"{known.get('host') or 'localhost'}:{known.get('port') or 5432}/{known.get('dbname') or ''}"
    parameters: dict[str, Any] = {"connect_timeout": max(1, round(timeout_s)), **known}
    parameters |= {"application_name": "tidelock backfill", "client_encoding": "UTF8"}
    try:
        connection = psycopg.connect(**parameters)
        # One view of the table for the whole run, and texts of instants that can be read again.
        connection.execute(QUERIES["session"])
        connection.commit()
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
    except psycopg.Error as error:
        raise _refusal(place, error, str(known.get("password") or "")) from None
    return place, connection


def _refusal(place: str, error: psycopg.Error, password: str) -> SettingsError | Unreachable:
    told = " ".join(str(error).split())
    if password:
        told = told.replace(password, "***")
    if error.sqlstate in _REFUSED or any(text in told for text in _REFUSED_TEXTS):
        return SettingsError(f"--from: {place} refuses this login; check user, password and database: {told}")
    return Unreachable(f"--from: {place} cannot be reached: {told}")


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
