"""Views: filters over a table's changes, each shared by all its subscribers.

A change of a row concerns a view if the row was visible before, or is visible now:

    was seen and is         UPDATE
    was seen, is not        DELETE with the last row that was seen
    was not seen, is        INSERT
    neither                 nothing

With the old and new row in the change, no row has to be remembered.
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
    """A row event of a view, with its time: one object for all its subscribers."""

    tenant_id: str
    #: text of the row's key
    key: str
    operation: Operation
    #: INSERT: all columns, UPDATE: those that changed, DELETE: those of the key; never `tenant_id`
    fields: tuple[str, ...]
    #: values as in changes, and `tenant_id`; for a DELETE the last visible ones. Immutable
    row: Row
    source_timestamp: int
    #: its encodings by selection: each is created once, on first use
    encoded: dict[Hashable, bytes] = field(default_factory=dict, repr=False)


class Subscriber(Protocol):
    """A subscriber of a view. Must neither raise nor wait."""

    def put(self, event: ViewEvent) -> None: ...


@dataclass(slots=True)
class FilterCounters:
    """Counters over all sources, for metrics."""

    filter_evaluations: int = 0
    #: evaluations skipped because no column of the filter had changed
    filter_cache_hits: int = 0


class View:
    """One filter over a table."""

    def __init__(self, table: Table, expression: Expression) -> None:
        self.table = table
        #: with the tenant's condition, if any: selects a snapshot's rows in SQL
        self.expression = expression
        self.subscribers: set[Subscriber] = set()
        #: whether a row, which includes its tenant, is visible
        self.matches = compile_where(expression)
        #: the columns it depends on
        self.used = expression.used_columns

    def event_of(self, change: Change) -> ViewEvent | None:
        """The event of a change for this view, for subscribers that read the log themselves. The change must have the
        table's current shape:

        values of another type could not be compared.
        """
        passing = _Passing(self.table, change)
        return passing.event(*passing.seen_through(self, FilterCounters()))


class TableViews:
    """The views of one table, to which its changes are applied."""

    def __init__(self, table: Table, counters: FilterCounters | None = None) -> None:
        self.table = table
        self.counters = counters or FilterCounters()
        #: by the canonical text of their filters
        self._views: dict[str, View] = {}
        self._index: PredicateIndex[View] = PredicateIndex()
        #: changes whenever a view is added or removed
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
        """The number of views."""
        return len(self._views)

    @property
    def view_subscribers(self) -> int:
        return sum(len(view.subscribers) for view in self._views.values())

    def subscribe(self, subscriber: Subscriber, expression: Expression, tenant_id: str | None = None) -> View:
        """The view of a filter, and of one tenant if given, which notifies the subscriber from now on."""
        expression = of_tenant(expression, tenant_id)
        if (view := self._views.get(expression.text)) is None:
            view = self._views[expression.text] = View(self.table, expression)
            self._index.add(view, expression)
            self.edition += 1
        view.subscribers.add(subscriber)
        return view

    def unsubscribe(self, subscriber: Subscriber, view: View) -> None:
        """The view is removed with its last subscriber. Idempotent."""
        view.subscribers.discard(subscriber)
        if not view.subscribers and self._views.get(view.expression.text) is view:
            del self._views[view.expression.text]
            self._index.remove(view)
            self.edition += 1

    def apply(self, change: Change) -> None:
        """Notify the subscribers of every view that the change concerns. Changes must come in order."""
        passing = _Passing(self.table, change)
        for view in passing.touched(self._index):
            event = passing.event(*passing.seen_through(view, self.counters))
            if event is not None:
                # One of them may leave meanwhile.
                for subscriber in tuple(view.subscribers):
                    subscriber.put(event)


def of_tenant(expression: Expression, tenant_id: str | None) -> Expression:
    """The filter, restricted to one tenant if given."""
    return expression if tenant_id is None else all_of([one_of("tenant_id", STRING, [tenant_id]), expression])


class RowEvent(NamedTuple):
    """An operation on a row. The time of a change is not part of it: it travels separately."""

    operation: Operation
    #: INSERT: all columns, UPDATE: those that changed, DELETE: those of the key; never `tenant_id`
    fields: tuple[str, ...]
    #: values as in changes, and `tenant_id`; for a DELETE the last ones
    row: Row


def whole_row(columns: tuple[str, ...], values: Row | None, tenant_id: str) -> Row | None:
    """A change's values in the order of the columns, after their tenant.

    A column added after the change is null. A removed column is omitted.
    """
    if values is None:
        return None
    if tuple(values) != columns:
        values = {name: values.get(name) for name in columns}
    return {"tenant_id": tenant_id, **values}


def changed_fields(old: Row, new: Row) -> tuple[str, ...]:
    """The columns with different values in two whole rows of one tenant."""
    changed = tuple(compress(new, map(ne, old.values(), new.values())))
    for name in changed:
        if old[name] != old[name] and new[name] != new[name]:
            # NaN is the same as NaN here, though it is not equal to itself.
            return tuple(name for name in changed if old[name] == old[name] or new[name] == new[name])
    return changed


class _Passing:
    """A change being applied to views. Its events are created once, for any number of subscribers."""

    __slots__ = ("_change", "_columns", "_events", "_fields", "_new", "_old", "_table")

    def __init__(self, table: Table, change: Change) -> None:
        self._table = table
        self._change = change
        self._columns = columns = tuple(table.columns)
        self._old = whole_row(columns, change.old, change.tenant_id)
        self._new = whole_row(columns, change.new, change.tenant_id)
        #: the columns changed by an update, once needed
        self._fields: tuple[str, ...] | None = None
        #: by whether the row was visible, and whether it is
        self._events: dict[tuple[bool, bool], ViewEvent] = {}

    def touched(self, index: PredicateIndex[View]) -> Collection[View]:
        """The views in which the row may have been visible, or may be visible now."""
        old, new = self._old, self._new
        before = () if old is None else index.candidates(old)
        after = () if new is None else index.candidates(new)
        if old is None or before == after:
            return after
        return dict.fromkeys((*before, *after))

    def seen_through(self, view: View, counters: FilterCounters) -> tuple[bool, bool]:
        """Whether the row was visible before, and whether it is now; neither if nothing changed."""
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
        """The event of the change, given whether the row was visible and whether it is; None if there is none."""
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
