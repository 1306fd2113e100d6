"""Watches: triggers compiled for evaluation, with an index per table.

A trigger without `unmatch` needs no state: matching keys are members, so the old row of a change shows whether the key
was one. Only with `unmatch`, where a key stays a member between the two conditions, membership is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tidelock.changes.reader import Change, Row
from tidelock.triggers.definition import TENANT, Trigger
from tidelock.triggers.outbox import EventType
from tidelock.views.index import PredicateIndex
from tidelock.views.views import of_tenant
from tidelock.where.evaluation import compile_where


class Crossing(NamedTuple):
    """A key that enters or leaves a trigger's condition."""

    watch: Watch
    event_type: EventType
    source_timestamp: int
    key: str
    #: the new row, or the last one if it was deleted
    row: Row

    @property
    def place(self) -> tuple[int, str, str, str]:
        """Its place in the order of all crossings. Strings compare by code point."""
        trigger = self.watch.trigger
        return self.source_timestamp, self.key, trigger.tenant_id, trigger.name


class WholeRow(dict[str, Any]):
    """A row that returns null for missing columns: added to the table later, or removed from it."""

    def __missing__(self, _: str) -> None:
        return None


class Watch:
    """One trigger."""

    def __init__(self, trigger: Trigger, trigger_id: int = 0) -> None:
        self.trigger = trigger
        #: by which the database knows it
        self.id = trigger_id
        self.entering = of_tenant(trigger.entering(), trigger.tenant_id)
        leaving = trigger.leaving()
        self.leaving = None if leaving is None else of_tenant(leaving, trigger.tenant_id)
        self._enters = compile_where(self.entering)
        self._leaves = None if self.leaving is None else compile_where(self.leaving)

    @property
    def name(self) -> str:
        return self.trigger.name

    def matches(self, row: Mapping[str, Any]) -> bool:
        return _true(self._enters, row)

    def passed(self, member: bool, new: WholeRow | None) -> EventType | None:
        """The transition of a trigger when the row of a key becomes this one; None: none."""
        if new is None:
            return "UNMATCH" if member else None
        if self.matches(new):
            return None if member else "MATCH"
        if not member or (self._leaves is not None and not _true(self._leaves, new)):
            return None
        return "UNMATCH"


class TableWatches:
    """The watches of one table."""

    def __init__(self, watches: Iterable[Watch] = ()) -> None:
        self.watches: dict[str, Watch] = {}
        #: those without `unmatch`
        self._plain: PredicateIndex[Watch] = PredicateIndex()
        #: the others, by the condition that lets a key in, and by that which lets it out
        self._entering: PredicateIndex[Watch] = PredicateIndex()
        self._leaving: PredicateIndex[Watch] = PredicateIndex()
        self._remembering: dict[str, dict[str, Watch]] = {}
        for watch in watches:
            self.add(watch)

    def add(self, watch: Watch) -> None:
        assert watch.name not in self.watches
        self.watches[watch.name] = watch
        if watch.leaving is None:
            self._plain.add(watch, watch.entering)
        else:
            self._entering.add(watch, watch.entering)
            self._leaving.add(watch, watch.leaving)
            self._remembering.setdefault(watch.trigger.tenant_id, {})[watch.name] = watch

    def remove(self, name: str) -> None:
        watch = self.watches.pop(name)
        if watch.leaving is None:
            self._plain.remove(watch)
        else:
            self._entering.remove(watch)
            self._leaving.remove(watch)
            remembering = self._remembering[watch.trigger.tenant_id]
            del remembering[name]
            if not remembering:
                del self._remembering[watch.trigger.tenant_id]

    def plain(self, change: Change) -> Iterator[Crossing]:
        """The crossings of watches without state."""
        if not len(self._plain):
            return
        old, new = whole(change.old, change.tenant_id), whole(change.new, change.tenant_id)
        before = self._candidates(self._plain, old)
        after = self._candidates(self._plain, new)
        for watch in after if before == after else dict.fromkeys((*before, *after)):
            event_type = watch.passed(old is not None and watch.matches(old), new)
            if event_type is not None:
                yield _crossing(watch, event_type, change)

    def remembering(self, change: Change) -> Collection[Watch]:
        """The watches that may be affected, given the members."""
        of_tenant = self._remembering.get(change.tenant_id)
        if not of_tenant:
            return ()
        new = whole(change.new, change.tenant_id)
        if new is None:
            return of_tenant.values()
        return dict.fromkeys((*self._candidates(self._entering, new), *self._candidates(self._leaving, new)))

    def _candidates(self, index: PredicateIndex[Watch], row: WholeRow | None) -> Collection[Watch]:
        try:
            return index.candidates(row) if row is not None else ()
        except TypeError:
            # A value of a type that differs from the column's when the trigger was created: the index cannot order it.
            return [watch for watch in self.watches.values() if (watch.leaving is None) == (index is self._plain)]


def remembered(watch: Watch, member: bool, change: Change) -> Crossing | None:
    """The crossing of a watch, given whether the key is a member."""
    event_type = watch.passed(member, whole(change.new, change.tenant_id))
    return None if event_type is None else _crossing(watch, event_type, change)


def whole(row: Row | None, tenant_id: str) -> WholeRow | None:
    return None if row is None else WholeRow(row, **{TENANT: tenant_id})


def _crossing(watch: Watch, event_type: EventType, change: Change) -> Crossing:
    row = change.new if change.new is not None else change.old
    assert row is not None, "a change has a row on one side"
    return Crossing(watch, event_type, change.source_timestamp, change.key, row)


def _true(matches: Callable[[Mapping[str, Any]], bool], row: Mapping[str, Any]) -> bool:
    """Whether a filter is true. It is not true of a value whose type has changed since the filter was created."""
    try:
        return matches(row)
    except TypeError:
        return False


def tables_of(watches: Iterable[Watch]) -> dict[str, TableWatches]:
    """Watches by their tables."""
    tables: dict[str, TableWatches] = {}
    for watch in watches:
        tables.setdefault(watch.trigger.table, TableWatches()).add(watch)
    return tables
