"""Replays: the transitions of a trigger over a range of the ledger, found again from the changes of its tables.

IDs, bodies and order are functions of the ledger, so they come out the same, whether the changes were retained or
folded again. Nothing is sent here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import psycopg

from tidelock.changes.reader import Change, Row, pruned_through, read_changes
from tidelock.errors import NotFound
from tidelock.postgres.queries import load
from tidelock.triggers.definition import Trigger, read_event
from tidelock.triggers.evaluate import ControlEvent
from tidelock.triggers.outbox import Transition
from tidelock.triggers.past import matching_at
from tidelock.triggers.payloads import TransitionBuilder
from tidelock.triggers.watches import Crossing, Watch, remembered, whole

QUERIES = load("tidelock.triggers", "sql/evaluation.sql")


class KeptPast:
    """The past rows and changes of a table, as far as changes are retained: from the current tables and
    later changes.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        """For use in `past.one_moment`."""
        self._connection = connection

    def matching(self, watch: Watch, event: ControlEvent) -> Iterator[tuple[str, Row]]:
        """Key and row of everything that matched when a trigger was created or changed, in the order of keys."""
        return matching_at(self._connection, watch, event.sequence)

    def changes(self, table: str, after: int, through: int) -> Iterator[Change]:
        """Changes of a table above one source timestamp, up to and including another."""
        return read_changes(self._connection, after=after, through=through, tables=[table])


class WholePast(KeptPast):
    """The past from the ledger's first event on: a connection that reads all changes ever made."""

    def matching(self, watch: Watch, event: ControlEvent) -> Iterator[tuple[str, Row]]:
        """The last row of every key. Only matching rows are in memory."""
        trigger, found = watch.trigger, dict[str, Row]()
        for change in self.changes(trigger.table, 0, event.source_timestamp):
            if change.tenant_id != trigger.tenant_id:
                continue
            new = whole(change.new, change.tenant_id)
            if new is not None and watch.matches(new):
                found[change.key] = {name: new[name] for name in trigger.columns or ()}
            else:
                found.pop(change.key, None)
        yield from sorted(found.items())


class _Phase(NamedTuple):
    """A trigger as defined by one control event, for as long as it applied."""

    event: ControlEvent
    watch: Watch
    #: source timestamps to report, inclusive
    first: int
    last: int
    #: sequence and source timestamp after which changes are needed
    since: tuple[int, int]


class Replay:
    """The transitions of a trigger caused by events from one sequence to another."""

    def __init__(self, connection: psycopg.Connection[Any], name: str, first: int, last: int) -> None:
        """Raises NotFound."""
        self._parts = list(_parts(connection, name, first, last))

    def kept(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether the needed changes are still retained, as of this transaction."""
        pruned = pruned_through(connection)
        return all(part.since[1] >= pruned for part in self._parts)

    @property
    def since(self) -> Mapping[str, int]:
        """Its tables, each with the sequence after which changes are needed."""
        # The parts are in order, and the first of a table needs the oldest.
        return {part.watch.trigger.table: part.since[0] for part in reversed(self._parts)}

    def transitions(self, connection: psycopg.Connection[Any], past: KeptPast) -> Iterator[Transition]:
        """In their order."""
        builder = TransitionBuilder(connection)
        for part in self._parts:
            for crossing in _crossings(past, part):
                yield builder.transition(crossing)


def _parts(connection: psycopg.Connection[Any], name: str, first: int, last: int) -> Iterator[_Phase]:
    rows = connection.execute(QUERIES["history"], {"name": name, "through": last}).fetchall()
    if not rows:
        raise NotFound(f"the ledger has no trigger {name} up to sequence {last}")
    history = [ControlEvent(sequence, time, read_event(json.loads(data))) for sequence, time, data in rows]
    times = connection.execute(QUERIES["times"], {"first": first, "last": last}).fetchone()
    assert times is not None, "this query always has a row"
    begin, end = times
    if begin is None or end is None or begin > end:
        # There is no event in the range.
        return
    known = connection.execute(QUERIES["trigger_id"], {"name": name}).fetchone()
    for event, following in zip(history, [*history[1:], None], strict=True):
        until = end if following is None else min(end, following.source_timestamp - 1)
        if not isinstance(event.said, Trigger) or not event.said.enabled or until < begin:
            continue
        watch = Watch(event.said, 0 if known is None else known[0])
        since = event.sequence, event.source_timestamp
        if watch.leaving is None:
            since = max(event.sequence, first - 1), max(event.source_timestamp, begin - 1)
        # Otherwise, membership depends on everything since the beginning.
        yield _Phase(event, watch, begin, until, since)


def _crossings(past: KeptPast, part: _Phase) -> Iterator[Crossing]:
    """The transitions of a trigger while one control event's definition applied."""
    event, watch, members = part.event, part.watch, set[str]()
    told = watch.trigger.snapshot and event.source_timestamp >= part.first
    if watch.leaving is not None or told:
        for key, row in past.matching(watch, event):
            if watch.leaving is not None:
                members.add(key)
            if told:
                yield Crossing(watch, "MATCH", event.source_timestamp, key, row)
    for change in past.changes(watch.trigger.table, part.since[1], part.last):
        if change.tenant_id != watch.trigger.tenant_id:
            continue
        if watch.leaving is None:
            old = whole(change.old, change.tenant_id)
            member = old is not None and watch.matches(old)
        else:
            member = change.key in members
        crossing = remembered(watch, member, change)
        if crossing is not None:
            (members.add if crossing.event_type == "MATCH" else members.discard)(change.key)
            if crossing.source_timestamp >= part.first:
                yield crossing
