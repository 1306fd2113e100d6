"""The past of a table: its rows as of a sequence of the ledger, even if the fold is further by now.

What the fold did since is in the changes: the first change of a key has the row from before.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg

from tidelock.changes.reader import Row, read_batches
from tidelock.columns import ColumnType
from tidelock.fold.statements import placed, quoted
from tidelock.postgres.queries import load
from tidelock.tables import KEY, SCHEMA, Table, read_tables
from tidelock.triggers.watches import Watch, whole
from tidelock.where import POSTGRES, TRUE, Expression, where_sql

QUERIES = load("tidelock.triggers", "sql/evaluation.sql")

_ROWS = 1_000


@contextmanager
def one_moment(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """A transaction in which tables, changes and the fold's cursor are consistent."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


def matching_at(connection: psycopg.Connection[Any], watch: Watch, sequence: int) -> Iterator[tuple[str, Row]]:
    """Key and row of everything that matched a trigger at a sequence, in the order of keys, however many.

    For use in `one_moment`. Raises ResumeExpired if later changes have expired.
    """
    trigger = watch.trigger
    columns = trigger.columns or {}
    row = connection.execute(QUERIES["frontier"]).fetchone()
    assert row is not None, "this query always has a row"
    frontier, forms = row
    #: keys that have changed since, with the row they had if it matched
    before: dict[str, Row | None] = {}
    if frontier > sequence:
        for batch in read_batches(connection, after=sequence, tables=[trigger.table]):
            for change in batch.changes:
                if change.tenant_id == trigger.tenant_id and change.key not in before:
                    old = whole(change.old, change.tenant_id)
                    before[change.key] = change.old if old is not None and watch.matches(old) else None
    table = read_tables(forms or ()).get(trigger.table)
    present = () if table is None else _present(connection, table, columns, watch)
    unchanged = (
        (key, found) for key, found in present if key not in before and watch.matches(_whole(found, trigger.tenant_id))
    )
    # As in the table then, in the shape known to the trigger.
    changed = (
        (key, {name: old.get(name) for name in columns}) for key, old in sorted(before.items()) if old is not None
    )
    yield from heapq.merge(unchanged, changed, key=lambda pair: pair[0])


def _present(
    connection: psycopg.Connection[Any], table: Table, columns: Mapping[str, ColumnType], watch: Watch
) -> Iterator[tuple[str, Row]]:
    """The current rows that may match, in the shape known to the trigger, by key."""
    names = [name for name, type_ in columns.items() if table.columns.get(name) == type_]
    usable = all(name in names or name == "tenant_id" for name in watch.entering.used_columns)
    condition: Expression = watch.entering if usable else TRUE
    shown = "".join(f", {_shown(name, columns[name])}" for name in names)
    tenant = "" if usable else " AND tenant_id = %(tenant)s"
    sql = (
        f"SELECT {quoted(KEY)}{shown} FROM {placed(SCHEMA, table.name)}"
        f" WHERE {where_sql(condition, POSTGRES)}{tenant} ORDER BY {quoted(KEY)}"
    )
    with connection.cursor(name="tidelock_past") as cursor:
        cursor.itersize = _ROWS
        cursor.execute(sql.encode(), None if usable else {"tenant": watch.trigger.tenant_id})
        for key, *values in cursor:
            known = dict(zip(names, values, strict=True))
            yield key, {name: known.get(name) for name in columns}


def _shown(name: str, type_: ColumnType) -> str:
    """JSON as text, as in changes."""
    return f"{quoted(name)}::text" if type_.name == "json" else quoted(name)


def _whole(row: Row, tenant_id: str) -> Mapping[str, Any]:
    found = whole(row, tenant_id)
    assert found is not None
    return found
