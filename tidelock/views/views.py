"""Views: filters over a table's changes, each shared by all who look through it.

A row's change concerns a view when the row was seen through it before, or is seen now:

    was seen and is         UPDATE
    was seen, is not        DELETE with the last row that was seen
    was not seen, is        INSERT
    neither                 nothing

With the old and the new row in the change nothing has to be remembered of any row.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from itertools import compress
from operator import ne
from typing import Literal, NamedTuple, Protocol

from tidelock.changes.reader import Change, Row
from tidelock.columns import STRING
from tidelock.tables import Table
from tidelock.views.branches import Branch
from tidelock.views.index import PredicateIndex
from tidelock.where import Expression, compile_where
from tidelock.where.expressions import all_of, one_of

Operation = Literal["INSERT", "UPDATE", "DELETE"]


@dataclass(slots=True, eq=False)
class ViewEvent:
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

    def put(self, event: ViewEvent) -> None: ...


@dataclass(slots=True)
class FilterCounters:
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
        #: whether a row, which has its tenant too, is seen
        self.matches = compile_where(expression)
        #: columns that decide it
        self.used = expression.used_columns

    def event_of(self, change: Change) -> ViewEvent | None:
        """What a change is to this view, whoever looks: for those who read the log by themselves.

        The change must be one of the table as it is now: of another type a value could not be compared.
        """
        passing = _Passing(self.table, change)
        return passing.event(*passing.seen_through(self, FilterCounters()))


class TableViews:
    """The views of one table, and the changes that pass them."""

    def __init__(self, table: Table, counters: FilterCounters | None = None) -> None:
        self.table = table
        self.counters = counters or FilterCounters()
        #: by the canonical text of their filters
        self._views: dict[str, View] = {}
        self._index: PredicateIndex[View] = PredicateIndex()
        #: another number whenever a view has come or gone
        self.edition = 0

    @property
    def expressions(self) -> list[Expression]:
        """The filters of all views."""
        return [view.expression for view in self._views.values()]

    @property
    def branches(self) -> list[Branch]:
        """The branches of all filters."""
        return list(self._index.branches)

    @property
    def views(self) -> int:
        """How many there are."""
        return len(self._views)

    @property
    def view_subscribers(self) -> int:
        return sum(len(view.subscribers) for view in self._views.values())

    def subscribe(self, subscriber: Subscriber, expression: Expression, tenant_id: str | None = None) -> View:
        """The view of a filter, and of one tenant where one is given, which tells the subscriber from now on."""
        expression = of_tenant(expression, tenant_id)
        if (view := self._views.get(expression.text)) is None:
            view = self._views[expression.text] = View(self.table, expression)
            self._index.add(view, expression)
            self.edition += 1
        view.subscribers.add(subscriber)
        return view

    def unsubscribe(self, subscriber: Subscriber, view: View) -> None:
        """The view is gone with its last subscriber. Doing it again does nothing."""
        view.subscribers.discard(subscriber)
        if not view.subscribers and self._views.get(view.expression.text) is view:
            del self._views[view.expression.text]
            self._index.remove(view)
            self.edition += 1

    def apply(self, change: Change) -> None:
        """Tell the subscribers of every view that the change concerns. Changes come in their order."""
        passing = _Passing(self.table, change)
        for view in passing.touched(self._index):
            event = passing.event(*passing.seen_through(view, self.counters))
            if event is not None:
                # One of them may leave meanwhile.
                for subscriber in tuple(view.subscribers):
                    subscriber.put(event)


def of_tenant(expression: Expression, tenant_id: str | None) -> Expression:
    """The filter, and of one tenant only where one is given."""
    return expression if tenant_id is None else all_of([one_of("tenant_id", STRING, [tenant_id]), expression])


class RowEvent(NamedTuple):
    """An operation on a row. The time of a change is no part of it: it travels beside."""

    operation: Operation
    #: INSERT: all columns, UPDATE: those that changed, DELETE: those of the key; never `tenant_id`
    fields: tuple[str, ...]
    #: values as changes have them, and `tenant_id`; of a DELETE the last ones
    row: Row


def whole_row(columns: tuple[str, ...], values: Row | None, tenant_id: str) -> Row | None:
    """A change's values in the order of the columns, after their tenant.

    A change from before the table got a column has none of it, as the row had none: null. What is no column any more
    is left out.
    """
    if values is None:
        return None
    if tuple(values) != columns:
        values = {name: values.get(name) for name in columns}
    return {"tenant_id": tenant_id, **values}


def changed_fields(old: Row, new: Row) -> tuple[str, ...]:
    """The columns that have another value now, given two whole rows of one tenant."""
    changed = tuple(compress(new, map(ne, old.values(), new.values())))
    for name in changed:
        if old[name] != old[name] and new[name] != new[name]:
            # NaN is the same as NaN here, though it is not equal to itself.
            return tuple(name for name in changed if old[name] == old[name] or new[name] == new[name])
    return changed


class _Passing:
    """A change on its way past the views. The events it is to them are made once, however many get them."""

    __slots__ = ("_change", "_columns", "_events", "_fields", "_new", "_old", "_table")

    def __init__(self, table: Table, change: Change) -> None:
        self._table = table
        self._change = change
        self._columns = columns = tuple(table.columns)
        self._old = whole_row(columns, change.old, change.tenant_id)
        self._new = whole_row(columns, change.new, change.tenant_id)
        #: what an update changed, once somebody asks
        self._fields: tuple[str, ...] | None = None
        #: by whether the row was seen, and whether it is
        self._events: dict[tuple[bool, bool], ViewEvent] = {}

    def touched(self, index: PredicateIndex[View]) -> Collection[View]:
        """The views through which the row may have been seen, or may be seen now."""
        old, new = self._old, self._new
        before = () if old is None else index.candidates(old)
        after = () if new is None else index.candidates(new)
        if old is None or before == after:
            return after
        return dict.fromkeys((*before, *after))

    def seen_through(self, view: View, counters: FilterCounters) -> tuple[bool, bool]:
        """Whether the row was seen before, and whether it is now; neither where nothing changed."""
        old, new = self._old, self._new
        if old is None or new is None:
            counters.filter_evaluations += 1
            return old is not None and view.matches(old), new is not None and view.matches(new)
        if (fields := self._fields) is None:
            fields = self._fields = changed_fields(old, new)
        if not fields:
            return False, False
        if view.used.isdisjoint(fields):
            counters.filter_evaluations += 1
            counters.filter_cache_hits += 1
            seen = view.matches(new)
            return seen, seen
        counters.filter_evaluations += 2
        return view.matches(old), view.matches(new)

    def event(self, was_seen: bool, is_seen: bool) -> ViewEvent | None:
        """What the change is where the row was seen, or is; None where it is nothing."""
        seen = was_seen, is_seen
        if (event := self._events.get(seen)) is None and (made := self._row_event(was_seen, is_seen)) is not None:
            change = self._change
            event = self._events[seen] = ViewEvent(change.tenant_id, change.key, *made, change.source_timestamp)
        return event

    def _row_event(self, was_seen: bool, is_seen: bool) -> RowEvent | None:
        if is_seen and self._new is not None:
            if not was_seen:
                return RowEvent("INSERT", self._columns, self._new)
            return RowEvent("UPDATE", self._fields or (), self._new)
        return RowEvent("DELETE", self._table.key, self._old) if was_seen and self._old is not None else None
