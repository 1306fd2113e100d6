"""Shapes: the statements that give the tables in Postgres the columns that definitions ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidelock.fold import statements
from tidelock.fold.tables import ALWAYS, SCHEMA, Table


def reshape(before: Mapping[str, Table], after: Mapping[str, Table]) -> Iterator[str]:
    """From the tables there are to those there should be; tables that are gone stay for `drop`."""
    for name, table in after.items():
        if name in ALWAYS:
            continue
        if name in before and table.internal and table != before[name]:
            # Nobody but the fold reads it, and its rows are made anew.
            yield f"DROP TABLE {statements.placed(SCHEMA, name)}"
        elif name in before:
            yield from _columns(before[name], table)
            continue
        yield statements.create_table(SCHEMA, table)
        yield from statements.create_indexes(SCHEMA, table)


def drop(before: Mapping[str, Table], after: Mapping[str, Table]) -> Iterator[str]:
    """Tables that nothing makes any more."""
    for name in before:
        if name not in after:
            yield f"DROP TABLE {statements.placed(SCHEMA, name)}"


def _columns(before: Table, after: Table) -> Iterator[str]:
    target = statements.placed(SCHEMA, after.name)
    for name, type_ in before.stored.items():
        if after.stored.get(name) != type_:
            yield f"ALTER TABLE {target} DROP COLUMN {statements.quoted(name)}"
    for name, type_ in after.stored.items():
        if before.stored.get(name) != type_:
            yield f"ALTER TABLE {target} ADD COLUMN {statements.quoted(name)} {statements.column_type(type_)}"
