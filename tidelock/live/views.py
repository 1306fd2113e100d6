"""Views: filters over a table's changes, each shared by all who look through it.

A row's change concerns a view when the row was seen through it before, or is seen now:

    was seen and is         UPDATE
    was seen, is not        DELETE with the last row that was seen
    was not seen, is        INSERT
    neither                 nothing

With the old and the new row in the change nothing has to be remembered of any row.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

from tidelock.changes.reader import Change, Row
from tidelock.columns import STRING
from tidelock.fold.tables import Table
from tidelock.live.rowevents import Operation
from tidelock.where import Expression
from tidelock.where.expressions import all_of, one_of


@dataclass(slots=True, eq=False)
class Event:
    """A row event of a view, with its time: one object for all who get it."""

    tenant_id: str
    #: text of the row's key
    key: str
    operation: Operation
    #: INSERT: all columns, UPDATE: those that changed, DELETE: those of the key; never `tenant_id`
    fields: tuple[str, ...]
    #: values as changes have them, and `tenant_id`; of a DELETE the last that were seen. Not to be changed
    row: Row
    source_timestamp: int
    #: its encodings by what was selected of it: each is made once, by the first who needs it
    encoded: dict[Hashable, bytes] = field(default_factory=dict, repr=False)


class Subscriber(Protocol):
    """Who looks through a view. Must neither raise nor wait."""

    def put(self, event: Event) -> None: ...


@dataclass(slots=True)
class Counters:
    """What is counted over all sources, for metrics."""

    filter_evaluations: int = 0
    #: evaluations that were spared because no column of the filter had changed
    filter_cache_hits: int = 0


class View:
    """One filter over a table."""

    def __init__(self, table: Table, expression: Expression) -> None:
        self.table = table
        #: with the tenant's condition, if there is one: what SQL selects a snapshot's rows by
        self.expression = expression
        self.subscribers: set[Subscriber] = set()

    def event_of(self, change: Change) -> Event | None:
        """What a change is to this view, whoever looks: for those who read the log by themselves."""
        raise NotImplementedError


class Source:
    """The views of one table, and the changes that pass them."""

    def __init__(self, table: Table, counters: Counters | None = None) -> None:
        self.table = table
        self.counters = counters or Counters()
        self._views: dict[str, View] = {}

    @property
    def views(self) -> int:
        """How many there are."""
        return len(self._views)

    @property
    def view_subscribers(self) -> int:
        return sum(len(view.subscribers) for view in self._views.values())

    def subscribe(self, subscriber: Subscriber, expression: Expression, tenant_id: str | None = None) -> View:
        """The view of a filter, and of one tenant where one is given, which tells the subscriber from now on."""
        raise NotImplementedError

    def unsubscribe(self, subscriber: Subscriber, view: View) -> None:
        """The view is gone with its last subscriber. Doing it again does nothing."""
        raise NotImplementedError

    def apply(self, change: Change) -> None:
        """Tell the subscribers of every view that the change concerns. Changes come in their order."""
        raise NotImplementedError


def of_tenant(expression: Expression, tenant_id: str | None) -> Expression:
    """The filter, and of one tenant only where one is given."""
    return expression if tenant_id is None else all_of([one_of("tenant_id", STRING, [tenant_id]), expression])
