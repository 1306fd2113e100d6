"""Short ways to be the fold in tests of triggers: the reference model's changes, written as the fold writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa

from tests.ledgers import write_ledger
from tests.model import Event
from tests.model.fold import apply
from tests.model.tables import Change, State
from tests.model.triggers import Transition
from tests.triggers.histories import DEFINITIONS
from tidelock.definitions import Definitions, parse_definitions
from tidelock.fold.kernel.outcomes import chained, first_versions, row_schema
from tidelock.fold.redefine.catalog import write_catalog_sql
from tidelock.fold.statements import reshape
from tidelock.fold.store import Store
from tidelock.postgres.database import Database
from tidelock.tables import ALWAYS, KEY, SCHEMA, Table, tables_of

TABLES = tables_of(parse_definitions(DEFINITIONS))


class HandFold:
    """Folds a ledger of the model's events range by range."""

    def __init__(
        self, store: Store, database: Database, toml: Mapping[str, Any], events: Sequence[Event], ends: Sequence[int]
    ) -> None:
        self._store = store
        self._toml = toml
        definitions = parse_definitions(toml)
        self.tables = tables_of(definitions)
        self.position = store.position()
        self._define(definitions)
        self._events = events
        self._state = State()
        #: the last sequences of the commits
        self.ends = write_ledger(database, events, ends)

    def fold(self, hi: int) -> None:
        """One range."""
        range_ = [event for event in self._events if self.position < event.ingress_sequence <= hi]
        known = len(self._state.changes)
        for time in dict.fromkeys(event.source_timestamp for event in range_):
            apply(self._state, [event for event in range_ if event.source_timestamp == time], self._toml)
        changes = self._state.changes[known:]
        outcomes = []
        for name in dict.fromkeys(change.table for change in changes):
            table = self.tables[name]
            versions = _versions(table, [change for change in changes if change.table == name])
            outcomes.append(chained(table, versions, self._store.rows(table, first_versions(versions))))
        self._store.apply(self.position, hi, outcomes, changes=True)
        self.position = hi

    def _define(self, definitions: Definitions) -> None:
        for statement in reshape(ALWAYS, self.tables):
            self._store.execute(statement)
        self._store.execute(write_catalog_sql(1, definitions, self.tables.values()))
        self._store.commit()


@contextmanager
def hand_fold(
    database: Database, events: Sequence[Event], ends: Sequence[int], toml: Mapping[str, Any] = DEFINITIONS
) -> Iterator[HandFold]:
    with closing(Store(database, SCHEMA, "fold")) as store:
        yield HandFold(store, database, toml, events, ends)


def _versions(table: Table, changes: list[Change]) -> pa.Table:
    ordered = sorted(changes, key=lambda each: (each.tenant_id, each.key, each.source_timestamp))
    rows = [
        {"tenant_id": each.tenant_id, KEY: each.key, "source_timestamp": each.source_timestamp, **(each.new or {})}
        for each in ordered
    ]
    gone = pa.array([each.new is None for each in ordered], pa.bool_())
    return pa.Table.from_pylist(rows, row_schema(table)).append_column("deleted", gone)


#: what was put into the outbox stays here, whatever becomes of it there
_TOLD = """
CREATE TABLE told (LIKE outbox);
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO told VALUES (NEW.*); RETURN NEW; END';
CREATE TRIGGER tell AFTER INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION tell();
"""


def begin_evaluation(database: Database, sequence: int = 0) -> None:
    """What making the first trigger does."""
    with database.connect_sync() as connection:
        connection.execute(_TOLD)
        connection.execute("INSERT INTO cursors (name, sequence) VALUES ('triggers', %s)", (sequence,))


def told(database: Database) -> list[tuple[Any, ...]]:
    """Everything that was put into the outbox, in its order: id, key, type, time and data."""
    with database.connect_sync() as connection:
        found = connection.execute(
            "SELECT event_id, tenant_id, key, event_type, source_timestamp, data::text FROM told ORDER BY position"
        ).fetchall()
    return [(*row[:5], json.loads(row[5])) for row in found]


def expected(transitions: Sequence[Transition]) -> list[tuple[Any, ...]]:
    """What the model says, in the same form."""
    return [(t.event_id, t.tenant_id, t.key, t.event_type, t.source_timestamp, t.data) for t in transitions]
