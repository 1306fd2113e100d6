"""Short ways to be the fold in tests of what follows it: tables and changes written as it writes them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tests.budgets import HANG_S
from tests.views.histories import TABLE, Client, State, comparable
from tests.where.filters import COLUMN_TYPES
from tidelock.changes.reader import Change
from tidelock.definitions import Definitions, parse_definitions
from tidelock.fold.kernel.outcomes import chained, first_versions, row_schema
from tidelock.fold.redefine.catalog import write_catalog_sql
from tidelock.fold.statements import drop, reshape
from tidelock.fold.store import Store
from tidelock.postgres.database import Database
from tidelock.postgres.pool import Connections
from tidelock.settings import Settings
from tidelock.tables import ALWAYS, KEY, SCHEMA, Table, tables_of
from tidelock.views.hub import Hub
from tidelock.views.subscriptions import Subscription
from tidelock.views.views import ViewEvent

#: the table of random histories, and another one
STREAMS: dict[str, Any] = {
    TABLE.name: {"key": "k", "columns": {"k": "string", **COLUMN_TYPES}},
    "others": {"key": "k", "columns": {"k": "string", "n": "bigint"}},
}
DEFINITIONS = parse_definitions({"streams": STREAMS})
OTHERS = tables_of(DEFINITIONS)["others"]
#: source timestamps of collections are so far apart
TICK = 10


class Folding:
    """Applies collections in ranges, and remembers what the tables were at each of their times."""

    def __init__(self, store: Store, definitions: Definitions = DEFINITIONS) -> None:
        self.store = store
        self.tables: Mapping[str, Table] = ALWAYS
        self.version = 0
        self.sequence = store.position()
        self.time = self.begun = 1_000
        #: rows by table and source timestamp
        self.states: dict[str, dict[int, State]] = {}
        self.define(definitions)

    def define(self, definitions: Definitions) -> None:
        """Give the tables another shape, as a swap does, with nothing else in it."""
        made = tables_of(definitions)
        self._record()
        self.store.move(self.sequence - 1, self.sequence)
        for statement in (*drop(self.tables, made), *reshape(self.tables, made)):
            self.store.execute(statement)
        self.version += 1
        self.tables = made
        self.store.execute(write_catalog_sql(self.version, definitions, made.values()))
        self.store.finish(self.sequence)
        self._remember([])

    def fold(self, *collections: Sequence[Change]) -> list[int]:
        """One range: collections of changes, which get times of their own. Their old rows are those that there are."""
        lo, times, changes = self.sequence, [], []
        for given in collections:
            collection = [change for change in given if self._new(change)]
            times.append(self._record())
            changes += [change._replace(source_timestamp=self.time) for change in collection]
            self._remember(collection)
        outcomes = []
        for name in dict.fromkeys(change.table for change in changes):
            table = self.tables[name]
            versions = _versions(table, [change for change in changes if change.table == name])
            outcomes.append(chained(table, versions, self.store.rows(table, first_versions(versions))))
        self.store.apply(lo, self.sequence, outcomes, changes=True)
        return times

    def clear(self) -> None:
        """Remove all rows: what comes is a history of its own, of the times behind."""
        self.fold([gone(key, tenant, table=self.tables[name]) for name, known in self.states.items()
                   for tenant, key in known[self.time]])  # fmt: skip
        self.begun = self.time

    def rows(self, time: int, table: str = TABLE.name) -> State:
        return self.states[table][time]

    def _new(self, change: Change) -> bool:
        """Whether a change is one. The fold takes an equal row for another where it has a NaN."""
        known = self.states[change.table]
        place = change.tenant_id, change.key
        old = known[max(known)].get(place)
        return comparable({place: old or {}}) != comparable({place: change.new or {}})

    @property
    def times(self) -> list[int]:
        """The source timestamps of all collections since it was cleared."""
        return [time for time in self.states[TABLE.name] if time >= self.begun]

    def _record(self) -> int:
        """A commit of one collection."""
        self.sequence, self.time = self.sequence + 1, self.time + TICK
        number = self.sequence
        self.store.execute(f"INSERT INTO commits VALUES ({number}, {number}, {number}, {self.time}, false, '')")
        return self.time

    def _remember(self, collection: Iterable[Change]) -> None:
        for name in self.tables:
            known = self.states.setdefault(name, {})
            state = dict(known[max(known)]) if known else {}
            for change in collection:
                if change.table == name:
                    state.pop((change.tenant_id, change.key), None)
                    state |= {} if change.new is None else {(change.tenant_id, change.key): change.new}
            known[self.time] = state


def _versions(table: Table, changes: list[Change]) -> pa.Table:
    rows = [
        {"tenant_id": each.tenant_id, KEY: each.key, "source_timestamp": each.source_timestamp, **(each.new or {})}
        for each in sorted(changes, key=lambda each: (each.tenant_id, each.key, each.source_timestamp))
    ]
    gone = [each.new is None for each in sorted(changes, key=lambda each: (each.tenant_id, each.key, each.place))]
    return pa.Table.from_pylist(rows, row_schema(table)).append_column("deleted", pa.array(gone, pa.bool_()))


@contextmanager
def folding(database: Database, definitions: Definitions = DEFINITIONS) -> Iterator[Folding]:
    with closing(Store(database, SCHEMA, "fold")) as store:
        yield Folding(store, definitions)


@asynccontextmanager
async def hub_of(database: Database, **settings: Any) -> AsyncIterator[Hub]:
    """A hub as a server has it."""
    connections = Connections(database, size_max=2, name="tidelock looks")
    hub = Hub(database, connections, replace(Settings(definitions=DEFINITIONS), **settings))
    await hub.start()
    try:
        yield hub
    finally:
        await hub.close()
        await connections.close()


def put(key: str, tenant: str = "t", *, table: Table = TABLE, **values: Any) -> Change:
    """A row with some values."""
    row = {**dict.fromkeys(table.columns), "k": key, **values}
    return Change(table.name, 0, tenant, key, old=None, new=row)


def gone(key: str, tenant: str = "t", *, table: Table = TABLE) -> Change:
    return Change(table.name, 0, tenant, key, old=None, new=None)


async def until(true: Callable[[], bool], seconds: float = HANG_S) -> None:
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110  (nobody tells)
            await asyncio.sleep(0.001)


async def taken(subscription: Subscription, through: int, limit: int = 200) -> list[ViewEvent]:
    """Events up to one with that source timestamp or a later one."""
    events: list[ViewEvent] = []
    async with asyncio.timeout(HANG_S):
        while not events or events[-1].source_timestamp < through:
            events += await subscription.take(limit)
    return events


@asynccontextmanager
async def following(subscription: Subscription, client: Client, chance: random.Random) -> AsyncIterator[None]:
    """Take, sometimes slowly, sometimes little, and be interrupted now and then."""

    async def run() -> None:
        while True:
            try:
                async with asyncio.timeout(chance.choice([None, None, 0.001, 0.02])):
                    events = await subscription.take(chance.choice([1, 2, 200]))
            except TimeoutError:
                continue
            for event in events:
                client.put(event)

    task = asyncio.create_task(run())
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
