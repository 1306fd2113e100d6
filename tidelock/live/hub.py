"""The hub: where subscriptions are had."""

from __future__ import annotations

from dataclasses import dataclass

from tidelock.fold.tables import Table
from tidelock.ledger.connections import Connections
from tidelock.ledger.database import Database
from tidelock.live.shapes import Shape
from tidelock.live.subscriptions import Subscription
from tidelock.settings import Settings
from tidelock.where import TRUE, Expression


@dataclass(frozen=True, slots=True)
class HubState:
    """How the hub does, for the metrics."""

    #: distinct filters, over all tables
    views: int
    #: subscriptions that follow changes; one that still gets its snapshot may not be among them
    view_subscribers: int
    subscriptions: int
    #: rows that wait to be taken, over all subscriptions
    queue_depth: int
    filter_evaluations: int
    filter_cache_hits: int


class Hub:
    """Follows the tables' changes while somebody subscribes; reads nothing and holds no connection otherwise."""

    def __init__(self, database: Database, connections: Connections, settings: Settings) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """End every subscription (Closed) and every connection."""
        raise NotImplementedError

    @property
    def state(self) -> HubState:
        raise NotImplementedError

    async def shape(self) -> Shape:
        """Tables and definitions as they are now; another `version` when they have changed. Raises Unreachable."""
        raise NotImplementedError

    async def subscribe(
        self, table: Table, expression: Expression = TRUE, tenant_id: str | None = None, after: int | None = None
    ) -> Subscription:
        """Rows of a table that a filter is true for, of one tenant or of all, and their changes.

        First the rows of now; with `after`, instead, every change with that source timestamp or a later one. The table
        is one of `shape()`. Raises DefinitionChanged when it is so no more. Everything else is raised by `take`.
        """
        raise NotImplementedError
