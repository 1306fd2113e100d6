"""The catalog as readers see it: the tables and their definitions, as last written by the fold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from tidelock.columns import STRING
from tidelock.definitions import Definitions, parse_definitions
from tidelock.errors import NotFound
from tidelock.postgres.queries import load
from tidelock.sections import shown
from tidelock.tables import ADJUSTMENTS, COUNTER_GROUPS, COUNTERS, Table, read_tables, tables_of
from tidelock.where import FALSE, TRUE, Expression
from tidelock.where.expressions import negation, one_of

QUERIES = load("tidelock.views", "sql/catalog.sql")

_OF_METERS = {table.name for table in (COUNTERS, COUNTER_GROUPS, ADJUSTMENTS)}


@dataclass(frozen=True, slots=True)
class TableCatalog:
    """Tables and definitions of one version."""

    #: None: the fold has never run, so tables of streams do not exist yet
    version: int | None
    definitions: Definitions
    tables: Mapping[str, Table]

    def table(self, name: str) -> Table:
        """Raises NotFound, also for internal tables."""
        readable = {known: table for known, table in self.tables.items() if not table.internal}
        if name not in readable:
            raise NotFound(f"there is no table {shown(name)}; available: {', '.join(readable)}")
        return readable[name]

    def recorded(self, table: Table) -> Expression:
        """Which rows of a table have their changes recorded (`live`)."""
        streams, windows = self.definitions.streams.values(), self.definitions.windows
        silent = {name for stream in streams if not stream.live for name in stream.tables}
        if table.internal or table.name in silent or (table.name in windows and not windows[table.name].live):
            return FALSE
        unwatched = [name for name, meter in self.definitions.meters.items() if not meter.live]
        if table.name in _OF_METERS and unwatched:
            return negation(one_of("metric", STRING, unwatched))
        return TRUE


class CatalogReader:
    """The current catalog, read again when its version has changed. Before the fold's first run: the declared
    definitions.
    """

    def __init__(self, declared: Definitions) -> None:
        self._declared = TableCatalog(None, declared, tables_of(declared))
        self._known = self._declared

    async def read(self, connection: psycopg.AsyncConnection[Any]) -> TableCatalog:
        """The catalog as the connection's transaction sees them."""
        row = await (await connection.execute(QUERIES["read_version"])).fetchone()
        if row is None:
            return self._declared
        if row[0] != self._known.version:
            row = await (await connection.execute(QUERIES["read_definitions"])).fetchone()
            assert row is not None, "the row is changed, never removed"
            version, definitions, tables = row
            # Any type: those of plugins were checked when the fold accepted the definitions.
            parsed = parse_definitions(definitions, eventtime_types=None)
            self._known = TableCatalog(version, parsed, read_tables(tables))
        return self._known


def silent_tables(catalog: TableCatalog) -> frozenset[str]:
    """Tables whose changes are not recorded (`live = false`), which cannot be subscribed to."""
    found = {name for name, table in catalog.tables.items() if catalog.recorded(table) == FALSE}
    meters = catalog.definitions.meters.values()
    if meters and not any(meter.live for meter in meters):
        found |= {table.name for table in (COUNTERS, COUNTER_GROUPS, ADJUSTMENTS)}
    return frozenset(found)
