"""The older table: a Postgres table of events, read in the order of (received_at, occurred_at, id)."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg import sql

from tidelock.errors import SettingsError, Unreachable
from tidelock.postgres.queries import load
from tidelock.postgres.reconnect import Patience, lost, reason
from tidelock.sources.backfill.mapping import ID, RECEIVED_AT, OldColumn, TableMap, make_map
from tidelock.sources.foreign import Address, address

QUERIES = load("tidelock.sources", "sql/oldtable.sql")

T = TypeVar("T")

#: rows without a place that are listed; all are counted
UNPLACED_NAMED = 1_000
_FETCH_ROWS = 2_000
#: the order of rows: received_at, occurred_at and id, as strings
SortKey = tuple[str, str, str]

_ALIAS = "old"
_WHOLE = ("smallint", "integer", "bigint")
_ID_TYPES = {
    "smallint": sql.SQL("smallint"), "integer": sql.SQL("integer"), "bigint": sql.SQL("bigint"),
    "numeric": sql.SQL("numeric"), "uuid": sql.SQL("uuid"),
}  # fmt: skip


class OldRow(NamedTuple):
    """A row, as strings, with its place in the order."""

    sort_key: SortKey
    #: in microseconds since 1970; None: not finite
    received_us: int | None
    #: the same; `untimed` if there is none
    occurred_us: int | None
    untimed: bool
    values: tuple[str | None, ...]


class OldTable:
    """One table over one connection, with a snapshot from when it was opened.

    A lost connection is reopened. Rows are then read on from the last one, with a new snapshot: rows added before that
    one meanwhile are counted at the end.
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
        """Find the table and map its columns. Raises SettingsError."""
        with _translated(self.place):
            schema, name, found = self._run(lambda connection: self._find(connection, table))
            self.name = name if schema == "public" else f"{schema}.{name}"
            self.columns = make_map(found, told, self.name, stream=stream, tenant_id=tenant_id)
            self._statements = Statements(schema, name, self.columns)
            return self.columns

    def count(self, after: SortKey | None) -> int:
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

    def rows(self, after: SortKey | None, limit: int | None = None) -> Iterator[OldRow]:
        """Every row after a place, in order, or the first of them up to a number."""
        left = limit

        def read(last: OldRow | None) -> Iterator[OldRow]:
            nonlocal left
            with self._given_up(), _cursor(self._open()) as cursor:
                for row in cursor.execute(self._made.rows(after if last is None else last.sort_key, left)):
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
        """Close a lost connection: the next step opens another."""
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

    def _find(self, connection: psycopg.Connection[Any], table: str) -> tuple[str, str, list[OldColumn]]:
        found = connection.execute(QUERIES["find_table"], {"name": table}).fetchone()
        if found is None:
            names = [row[0] for row in connection.execute(QUERIES["table_names"]).fetchall()]
            near = difflib.get_close_matches(table, names, n=3, cutoff=0.3)
            hint = f"; did you mean {' or '.join(near)}?" if near else "; this user can see no tables there"
            raise SettingsError(f"--table: {self.place} has no table {table!r}{hint}")
        oid, schema, name = found
        columns = connection.execute(QUERIES["columns"], [oid]).fetchall()
        return schema, name, [OldColumn(*row) for row in columns]


def _connected(found: Address) -> psycopg.Connection[Any]:
    try:
        connection = psycopg.connect(**found.parameters)
        # One snapshot of the table for the whole run, and instants in a parseable format.
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
        raise Unreachable(f"{place} was lost ({reason(error)}); run the command again to continue") from error
    except psycopg.Error as error:
        raise SettingsError(f"{place} cannot answer this query: {reason(error)}") from error


class Statements:
    """The statements on one table, of which every column's meaning is known.

    They are generated, because its columns are not ours: every name is quoted here.
    """

    def __init__(self, schema: str, name: str, columns: TableMap) -> None:
        self._table = sql.SQL("{} AS {}").format(sql.Identifier(schema, name), sql.Identifier(_ALIAS))
        self._columns = columns
        received, occurred, row_id = columns.needed(RECEIVED_AT), columns.column("ts"), columns.needed(ID)
        self._received = _instant(received)
        self._occurred = sql.SQL("NULL::timestamptz") if occurred is None else _instant(occurred)
        # An event without its own time occurred when it was received.
        self._happened = sql.SQL("coalesce({}, {})").format(self._occurred, self._received)
        self._id = _ordered_id(row_id)
        self._id_type = _ID_TYPES.get(row_id.type, sql.SQL('text COLLATE "C"'))
        self._placed = sql.SQL("{} IS NOT NULL AND {} IS NOT NULL").format(self._received, _name(row_id))

    def rows(self, after: SortKey | None, limit: int | None = None) -> sql.Composed:
        """Every row after a place, in order: the place, both instants in microseconds, then the event's columns."""
        carried = [_value(each.column, as_json=_is_json(each.target)) for each in self._columns.carried]
        return sql.SQL("SELECT {} FROM {} WHERE {} ORDER BY {}{}").format(
            sql.SQL(", ").join(
                [
                    sql.SQL("{}::text").format(self._received),
                    sql.SQL("{}::text").format(self._happened),
                    sql.SQL("{}::text").format(self._id),
                    _microseconds(self._received),
                    _microseconds(self._occurred),
                    sql.SQL("{} IS NULL").format(self._occurred),
                    *carried,
                ]
            ),
            self._table,
            self._where(after),
            self._order(),
            sql.SQL("") if limit is None else sql.SQL(" LIMIT {}").format(sql.Literal(limit)),
        )

    def count(self, after: SortKey | None) -> sql.Composed:
        """How many rows are after a place."""
        return sql.SQL("SELECT count(*) FROM {} WHERE {}").format(self._table, self._where(after))

    def unplaced(self, limit: int) -> sql.Composed:
        """The rows that have no place in the order, and how many there are."""
        return sql.SQL("SELECT {}::text, count(*) OVER () FROM {} WHERE NOT ({}) LIMIT {}").format(
            self._id, self._table, self._placed, sql.Literal(limit)
        )

    def _where(self, after: SortKey | None) -> sql.Composed:
        if after is None:
            return sql.SQL("{}").format(self._placed)
        received, occurred, row_id = map(sql.Literal, after)
        return sql.SQL("{} AND ({}, {}, {}) > ({}::timestamptz, {}::timestamptz, {}::{})").format(
            self._placed, self._received, self._happened, self._id, received, occurred, row_id, self._id_type
        )

    def _order(self) -> sql.Composed:
        return sql.SQL("{}, {}, {}").format(self._received, self._happened, self._id)


def _name(column: OldColumn) -> sql.Identifier:
    """With its table: a bare name in ORDER BY could be that of a text in the SELECT."""
    return sql.Identifier(_ALIAS, column.name)


def _instant(column: OldColumn) -> sql.Composable:
    """As a timestamp with time zone, exactly."""
    if column.type in _WHOLE:
        return sql.SQL("(timestamptz 'epoch' + {} * interval '1 millisecond')").format(_name(column))
    if column.type == "timestamp without time zone":
        return sql.SQL("({} AT TIME ZONE 'UTC')").format(_name(column))
    return _name(column)


def _ordered_id(column: OldColumn) -> sql.Composable:
    """Strings by code point, as everywhere: the order must not depend on the older server's locale."""
    return sql.SQL('({}::text COLLATE "C")').format(_name(column)) if column.is_text else _name(column)


def _microseconds(instant: sql.Composable) -> sql.Composed:
    return sql.SQL("CASE WHEN isfinite({0}) THEN (extract(epoch FROM {0}) * 1000000)::bigint END").format(instant)


def _value(column: OldColumn, *, as_json: bool) -> sql.Composed:
    if as_json and column.type not in ("json", "jsonb"):
        return sql.SQL("to_json({})::text").format(_name(column))
    return sql.SQL("{}::text").format(_name(column))


def _is_json(target: object) -> bool:
    return bool(getattr(target, "is_member", False))
