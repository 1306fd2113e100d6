"""The hub: creates subscriptions, and knows which exist and which tables they watch."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from tidelock.errors import Closed, DefinitionChanged, NotFound, TidelockError, Unreachable
from tidelock.postgres.database import Database
from tidelock.postgres.pool import Connections
from tidelock.settings import Settings
from tidelock.tables import Table
from tidelock.views.catalog import CatalogReader, TableCatalog
from tidelock.views.follower import Follower
from tidelock.views.snapshots import Catchups, Snapshots
from tidelock.views.subscriptions import Subscription, Supply
from tidelock.views.threads import PAUSE_S, Readers
from tidelock.views.views import FilterCounters, TableViews, of_tenant
from tidelock.where import FALSE, TRUE, Expression
from tidelock.where.expressions import all_of


@dataclass(frozen=True, slots=True)
class HubState:
    """State of the hub, for the metrics."""

    #: distinct filters, over all tables
    views: int
    #: subscriptions that follow changes; one still reading its snapshot may not be included
    view_subscribers: int
    subscriptions: int
    #: queued rows, over all subscriptions
    queue_depth: int
    filter_evaluations: int
    filter_cache_hits: int
    #: source timestamp through which views are up to date; None without subscribers
    through: int | None


class Hub:
    """Follows the tables' changes while there are subscribers; otherwise reads nothing and holds no connection."""

    def __init__(self, database: Database, connections: Connections, settings: Settings) -> None:
        """`connections` are those for short queries."""
        self.sources: dict[str, TableViews] = {}
        self._connections = connections
        self._catalogs = CatalogReader(settings.definitions)
        self._catalog: TableCatalog | None = None
        self._counters = FilterCounters()
        self._subscriptions: set[Subscription] = set()
        #: their number by source
        self._users: Counter[TableViews] = Counter()
        #: which rows have their changes recorded, by table
        self._recorded: dict[str, Expression] = {}
        self._closed = False
        self._readers = Readers(database, size_max=settings.live_snapshots_max, name="tidelock snapshots")
        self._follower = Follower(database, self)
        self._supply = Supply(
            self._follower,
            Snapshots(self._readers, rows_max=settings.live_snapshot_rows_max),
            Catchups(self._readers),
            retention_ns=settings.changes_retention,
            queue_rows_max=settings.live_queue_rows_max,
            check=self._check,
            forget=self._forget,
        )

    async def start(self) -> None:
        await self._follower.start()

    async def close(self) -> None:
        """End every subscription (Closed) and every connection."""
        self._closed = True
        for subscription in tuple(self._subscriptions):
            subscription.end(Closed("the server is stopping"))
        await self._follower.close()
        await self._supply.snapshots.close()
        await self._supply.catchups.close()
        await self._readers.close()

    @property
    def state(self) -> HubState:
        sources, position = self.sources.values(), self._follower.position
        return HubState(
            views=sum(source.views for source in sources),
            view_subscribers=sum(source.view_subscribers for source in sources),
            subscriptions=len(self._subscriptions),
            queue_depth=sum(subscription.queued for subscription in self._subscriptions),
            filter_evaluations=self._counters.filter_evaluations,
            filter_cache_hits=self._counters.filter_cache_hits,
            through=None if position is None else position.source_timestamp,
        )

    async def catalog(self) -> TableCatalog:
        """The current tables and definitions; `version` differs when they have changed. Raises Unreachable."""
        catalog = await self._connections.ask(self._catalogs.read)
        # Of two concurrent reads the later one may have been answered first.
        if self._catalog is None or _newer(catalog, self._catalog):
            self._catalog = catalog
            self._end_changed(catalog)
        return self._catalog

    async def subscribe(
        self, table: Table, expression: Expression = TRUE, tenant_id: str | None = None, after: int | None = None
    ) -> Subscription:
        """Rows of a table that match a filter, of one tenant or of all, and their changes.

        First the current rows; with `after`, instead, every change at or after that source timestamp. The table is one
        of `catalog()`. Raises DefinitionChanged if it no longer is, NotFound if no changes are recorded, Unreachable.
        Everything else is raised by `take`.
        """
        catalog = self._catalog
        if catalog is None or not _same(catalog.tables.get(table.name), table):
            catalog = await self.catalog()
        if not _same(catalog.tables.get(table.name), table):
            raise DefinitionChanged(f"the definition of the table {table.name} has changed")
        recorded = catalog.recorded(table)
        if recorded == FALSE:
            raise NotFound(f"table {table.name} cannot be subscribed to: its definition has live = false")
        if self._closed:
            raise Closed("the server is stopping")
        if (source := self.sources.get(table.name)) is None:
            source = self.sources[table.name] = TableViews(table, self._counters)
            self._recorded[table.name] = recorded
        wanted = of_tenant(all_of([recorded, expression]), tenant_id)
        subscription = Subscription(self._supply, source, wanted, after)
        self._subscriptions.add(subscription)
        self._users[source] += 1
        self._follower.want()
        return subscription

    async def redefined(self) -> None:
        """The follower saw that the definitions have changed."""
        await self.catalog()

    def missed(self, through: int, error: TidelockError) -> None:
        """The follower could not pass on changes."""
        for subscription in tuple(self._subscriptions):
            subscription.missed(through, error)

    async def left(self) -> None:
        """The follower found no subscribers left."""
        await self._readers.rest()

    async def _check(self, version: int | None) -> None:
        while self._catalog is None or version != self._catalog.version:
            try:
                await self.catalog()
                return
            except Unreachable:
                await asyncio.sleep(PAUSE_S)

    def _end_changed(self, catalog: TableCatalog) -> None:
        """End those whose table has changed, or no longer records the changes they need."""
        for name, source in tuple(self.sources.items()):
            if (
                not _same(catalog.tables.get(name), source.table)
                or catalog.recorded(source.table) != self._recorded[name]
            ):
                for subscription in [each for each in self._subscriptions if each.source is source]:
                    subscription.end(DefinitionChanged(f"the definition of the table {name} has changed"))

    def _forget(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)
        source = subscription.source
        self._users[source] -= 1
        if not self._users[source]:
            del self._users[source]
            if self.sources.get(source.table.name) is source:
                del self.sources[source.table.name]
        self._follower.unwant()


def _newer(catalog: TableCatalog, than: TableCatalog) -> bool:
    return catalog.version is not None and (than.version is None or catalog.version > than.version)


def _same(known: Table | None, table: Table) -> bool:
    """Whether rows of one table fit the other."""
    return known is not None and dict(known.columns) == dict(table.columns) and known.key == table.key
