"""The shadow: tables of changed definitions, built from sequence 1 beside those that are read, until they take over.

It lives in a schema of its own with a cursor of its own, so it survives a crash, and any process may go on with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidelock.canonical import canonical_hash
from tidelock.columns import STRING
from tidelock.definitions import Definitions
from tidelock.fold import statements
from tidelock.fold.folder import Folder
from tidelock.fold.ranges import Range, next_range
from tidelock.fold.session import Spark
from tidelock.fold.store import Store
from tidelock.fold.tables import (
    ADJUSTMENTS,
    ALWAYS,
    COUNTER_GROUPS,
    COUNTERS,
    ERROR_ROWS,
    KEY,
    SCHEMA,
    Table,
)
from tidelock.fold.versions import Outcome, chained, row_schema
from tidelock.ledger.database import Database
from tidelock.where.sql import literal

SHADOW_SCHEMA = "tidelock_shadow"
#: cursors of shadows; no reader of changes waits for them
SHADOW_CURSORS = "fold:"

#: codes of the error rows that streams make; the others are made by meters
_STREAM_CODES = ("invalid_column", "invalid_event_time", "future_event_time")


@dataclass(frozen=True, slots=True)
class Plan:
    """A change of definitions."""

    definitions: Definitions
    #: paths of those whose rows are made anew or removed
    units: tuple[str, ...]

    @property
    def name(self) -> str:
        """Names the shadow that is built for it."""
        return canonical_hash({"definitions": self.definitions.canonical(), "units": list(self.units)})[:16]

    def names(self, kind: str) -> list[str]:
        return [path.removeprefix(f"{kind}.") for path in self.units if path.startswith(f"{kind}.")]

    def subset(self) -> Definitions:
        """What has to be folded for it."""
        meters = {name: m for name in self.names("meters") if (m := self.definitions.meters.get(name)) is not None}
        wanted = {*self.names("streams"), *(meter.stream for meter in meters.values())}
        streams = {name: stream for name, stream in self.definitions.streams.items() if name in wanted}
        return Definitions(streams, meters)


class Shadow:
    """The shadow of one plan."""

    def __init__(self, spark: Spark, database: Database, plan: Plan) -> None:
        self.plan = plan
        self.store = Store(database, SHADOW_SCHEMA, f"{SHADOW_CURSORS}{plan.name}")
        self._folder = Folder(spark, self.store, database, plan.subset(), changes=False)
        self.tables: Mapping[str, Table] = self._folder.tables
        self._prepare()
        self.position = self.store.position()

    def step(self, events_max: int, through: int | None = None) -> Range | None:
        """Fold one more range; None: there is nothing left to fold."""
        found = next_range(self.store, self.position, events_max, through)
        if found is None:
            self.store.rollback()
            return None
        if found.control is None:
            self._folder.fold(found.lo, found.hi)
        else:
            self.store.apply(found.lo, found.hi, (), changes=False)
        self.position = found.hi
        return found

    def close(self) -> None:
        self.store.close()

    def _prepare(self) -> None:
        """Make the tables, unless a shadow of this very plan is there already."""
        name = literal(STRING, self.store.cursor)
        if self.store.query(f"SELECT 1 FROM cursors WHERE name = {name}").num_rows:
            self.store.rollback()
            return
        for statement in drop_shadow():
            self.store.execute(statement)
        self.store.execute(f"CREATE SCHEMA {SHADOW_SCHEMA}")
        for table in self.tables.values():
            if table.name in ALWAYS:
                source = statements.placed(SCHEMA, table.name)
                self.store.execute(
                    f"CREATE TABLE {statements.placed(SHADOW_SCHEMA, table.name)} (LIKE {source} INCLUDING ALL)"
                )
            else:
                self.store.execute(statements.create_table(SHADOW_SCHEMA, table))
        self.store.execute(f"INSERT INTO cursors (name, sequence) VALUES ({name}, 0)")
        self.store.commit()


def drop_shadow() -> list[str]:
    return [
        f"DROP SCHEMA IF EXISTS {SHADOW_SCHEMA} CASCADE",
        f"DELETE FROM cursors WHERE starts_with(name, '{SHADOW_CURSORS}')",
    ]


def differences(store: Store, shadow: Shadow, before: Mapping[str, Table], source_timestamp: int) -> list[Outcome]:
    """What the tables lack to be the shadow, all of it at one source timestamp.

    Tables must have their new shape already. Of removed streams, whose tables are not in the shadow, every row goes.
    """
    meters, streams = shadow.plan.names("meters"), shadow.plan.names("streams")
    scopes = [(table, _either("metric", meters)) for table in (COUNTERS, COUNTER_GROUPS, ADJUSTMENTS)]
    codes = _either("code", _STREAM_CODES)
    scopes.append(
        (
            ERROR_ROWS,
            f"({_either('source', meters)} AND NOT {codes}) OR ({_either('source', streams)} AND {codes})",
        )
    )
    tables = {**before, **shadow.tables}
    scopes += [(tables[name], "TRUE") for name in streams if name in tables]
    return [_difference(store, table, scope, table.name in shadow.tables, source_timestamp) for table, scope in scopes]


def _difference(store: Store, table: Table, scope: str, built: bool, source_timestamp: int) -> Outcome:
    columns = ", ".join(map(statements.quoted, ("tenant_id", KEY, *table.stored)))
    sides = f"SELECT {columns} FROM {{}} WHERE {scope}"
    main = sides.format(statements.placed(SCHEMA, table.name))
    other = sides.format(statements.placed(SHADOW_SCHEMA, table.name)) if built else f"{main} AND FALSE"
    rows = ", ".join(
        f"{statements.quoted(name)}{'::text' if type_.name == 'json' else ''}" for name, type_ in table.stored.items()
    )
    digest = f"md5(ROW({rows})::text)"
    keys = store.query(f"""
        SELECT coalesce(main.tenant_id, other.tenant_id) AS tenant_id, coalesce(main.key, other.key) AS "$key"
        FROM (SELECT tenant_id, "$key" AS key, {digest} AS digest FROM ({main}) AS rows) AS main
        FULL JOIN (SELECT tenant_id, "$key" AS key, {digest} AS digest FROM ({other}) AS rows) AS other
            ON main.tenant_id = other.tenant_id AND main.key = other.key
        WHERE main.digest IS DISTINCT FROM other.digest""")
    stored = store.rows(table, keys)
    new = store.rows(table, keys, SHADOW_SCHEMA) if built else row_schema(table).empty_table()
    return chained(table, _versions(table, keys, new, source_timestamp), stored)


def _versions(table: Table, keys: pa.Table, new: pa.Table, source_timestamp: int) -> pa.Table:
    """One version per key: the new row, or its end."""
    found = keys.join(
        new.drop_columns(["source_timestamp"]).append_column("found", pa.repeat(True, new.num_rows)),
        keys=["tenant_id", KEY],
        join_type="left outer",
    )
    deleted = pc.invert(pc.fill_null(found["found"], False))
    times = pa.repeat(pa.scalar(source_timestamp, pa.int64()), found.num_rows)
    return found.append_column("deleted", deleted).append_column("source_timestamp", times)


def _either(column: str, names: Sequence[str]) -> str:
    return f"{column} IN ({', '.join(literal(STRING, name) for name in names)})" if names else "FALSE"
