"""One step of evaluating triggers: some ranges of the fold, or a control event, in one transaction.

Memberships, outbox and cursor move together, with a compare-and-set of the cursor: exactly once, whoever is killed
when. Changes of a range are before a control event or after it, for the fold's ranges never span one.
"""

from __future__ import annotations

import heapq
import json
import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple

import psycopg

from tidelock.changes.reader import Change, read_batches
from tidelock.postgres.queries import load
from tidelock.triggers.bodies import Bodies
from tidelock.triggers.definition import Deletion, Trigger, read_event, stored
from tidelock.triggers.members import Members
from tidelock.triggers.outbox import EventType, append
from tidelock.triggers.pasts import matching_at, one_moment
from tidelock.triggers.watches import Crossing, TableWatches, Watch, remembered, tables_of

QUERIES = load("tidelock.triggers", "sql/evaluation.sql")

log = logging.getLogger(__name__)

# Changes whose memberships are looked up at a time, and crossings that are written at a time.
_CHANGES = 1_000
_CROSSINGS = 1_000
#: so many changes, and the range they are in, are evaluated in one transaction
CHANGES_MAX = 20_000


class ControlEvent(NamedTuple):
    """A control event about a trigger."""

    sequence: int
    source_timestamp: int
    said: Trigger | Deletion


class Known(NamedTuple):
    """The triggers that are enabled, as of a cursor."""

    position: int
    tables: dict[str, TableWatches]
    bodies: Bodies


class Evaluation:
    """Evaluates triggers step by step. All that it remembers is in the database too."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        beside: Callable[[], psycopg.Connection[Any]],
        *,
        changes_max: int = CHANGES_MAX,
    ) -> None:
        """`beside` gives a second connection, for what must be read at one moment."""
        self._connection = connection
        self._beside = beside
        self._changes_max = changes_max
        self._known: Known | None = None
        #: what was told of, by type, for metrics
        self.transitions: dict[EventType, int] = {"MATCH": 0, "UNMATCH": 0}
        #: the same of the step that is under way
        self._found: Counter[EventType] = Counter()

    def step(self) -> bool:
        """Go on from the cursor; False: there was nothing to do."""
        self._found.clear()
        try:
            with self._connection.transaction():
                moved = self._step()
        except BaseException:
            # What it knew may be ahead of what was committed.
            self._known = None
            raise
        for event_type, count in self._found.items():
            self.transitions[event_type] += count
        return moved

    def _step(self) -> bool:
        # Mostly there is nothing to do, and a lock is a write.
        glance = self._connection.execute(QUERIES["evaluated_through"]).fetchone()
        if glance is None or glance[1] <= glance[0]:
            return False
        row = self._connection.execute(QUERIES["look"]).fetchone()
        if row is None or row[1] <= row[0]:
            return False
        lo, frontier = row
        known = self._at(lo)
        event = self._next_event(lo, frontier)
        through = frontier if event is None else event.sequence - 1
        hi = self._ranges(known, lo, through)
        if event is not None and hi == through:
            self._control(known, event)
            hi = event.sequence
        moved = self._connection.execute(QUERIES["move"], {"lo": lo, "hi": hi}).rowcount
        assert moved == 1, "the cursor's row is locked"
        self._known = known._replace(position=hi)
        return True

    def _at(self, position: int) -> Known:
        """What holds at the cursor: remembered, unless another has moved it."""
        if self._known is not None and self._known.position == position:
            return self._known
        found = self._connection.execute(QUERIES["watches"]).fetchall()
        watches = [Watch(_trigger(text), trigger_id) for trigger_id, text in found]
        return Known(position, tables_of(watches), Bodies(self._connection))

    def _next_event(self, after: int, through: int) -> ControlEvent | None:
        row = self._connection.execute(QUERIES["next_event"], {"after": after, "through": through}).fetchone()
        return None if row is None else ControlEvent(row[0], row[1], read_event(json.loads(row[2])))

    def _ranges(self, known: Known, lo: int, through: int) -> int:
        """Evaluate ranges that end by a sequence, some at a time; gives the sequence that this is complete through."""
        if through == lo:
            return lo
        counted = Counted()
        last = lo
        for batch in read_batches(self._connection, after=lo, tables=list(known.tables)):
            if batch.last_sequence > through:
                break
            if counted.changes >= self._changes_max:
                return last
            self._write(known, self._crossings(known, counted.count(batch.changes)))
            last = batch.last_sequence
        return through

    def _control(self, known: Known, event: ControlEvent) -> None:
        """A trigger begins, changes or ends. The event's own range, in which windows may close, is after its end and
        before its beginning: the others see it, it does not."""
        self._end(known, event.said.name)
        crossings: list[Crossing] = []
        for batch in read_batches(self._connection, after=event.sequence - 1, tables=list(known.tables)):
            if batch.last_sequence == event.sequence:
                crossings += self._crossings(known, batch.changes)
            break
        begun = None
        if isinstance(event.said, Trigger):
            begun = self._begin(known, event.sequence, event.said)
        else:
            self._forget(event.said)
        with closing(self._first_members(begun, event)) as first:
            self._write(known, heapq.merge(crossings, first, key=lambda crossing: crossing.place))

    def _end(self, known: Known, name: str) -> None:
        for table, watches in list(known.tables.items()):
            if (watch := watches.watches.get(name)) is not None:
                watches.remove(name)
                if not watches.watches:
                    del known.tables[table]
                for query in ("remove_watch", "clear_members"):
                    self._connection.execute(QUERIES[query], {"id": watch.id})

    def _forget(self, deletion: Deletion) -> None:
        for query in ("remove_trigger", "remove_secrets"):
            self._connection.execute(QUERIES[query], {"name": deletion.name})

    def _begin(self, known: Known, sequence: int, trigger: Trigger) -> Watch | None:
        row = self._connection.execute(QUERIES["put_trigger"], _columns(trigger, sequence)).fetchone()
        assert row is not None, "it is inserted or updated"
        if not trigger.enabled:
            return None
        watch = Watch(trigger, row[0])
        self._connection.execute(QUERIES["put_watch"], {"id": watch.id, "definition": stored(trigger)})
        known.tables.setdefault(trigger.table, TableWatches()).add(watch)
        return watch

    def _first_members(self, watch: Watch | None, event: ControlEvent) -> Generator[Crossing]:
        """Whoever matches already is in, and told of where that is wanted, by their keys. There may be millions."""
        if watch is None or (watch.leaving is None and not watch.trigger.snapshot):
            return
        members = Members(self._connection)
        with self._beside() as connection, one_moment(connection):
            for key, row in matching_at(connection, watch, event.sequence):
                crossing = Crossing(watch, "MATCH", event.source_timestamp, key, row)
                if watch.leaving is not None:
                    members.enter(crossing)
                if watch.trigger.snapshot:
                    yield crossing
        members.write()

    def _crossings(self, known: Known, changes: Iterable[Change]) -> Iterator[Crossing]:
        """What changes are to the triggers, in order: those of one source timestamp are sorted."""
        remaining = iter(changes)
        found: list[Crossing] = []
        members = Members(self._connection)
        while chunk := list(islice(remaining, _CHANGES)):
            tables = [(change, known.tables[change.table]) for change in chunk]
            concerned = [(change, watch) for change, table in tables for watch in table.remembering(change)]
            members.look_up(concerned)
            for change, table in tables:
                found += table.plain(change)
            for change, watch in concerned:
                crossing = remembered(watch, members.has(watch, change.key), change)
                if crossing is not None:
                    members.cross(crossing)
                    found.append(crossing)
            members.write()
            last = chunk[-1].source_timestamp
            settled = [crossing for crossing in found if crossing.source_timestamp < last]
            if len(settled) >= _CROSSINGS:
                yield from sorted(settled, key=lambda crossing: crossing.place)
                found = [crossing for crossing in found if crossing.source_timestamp == last]
        yield from sorted(found, key=lambda crossing: crossing.place)

    def _write(self, known: Known, crossings: Iterable[Crossing]) -> None:
        def transitions() -> Iterator[Any]:
            for crossing in crossings:
                self._found[crossing.event_type] += 1
                yield known.bodies.transition(crossing)

        append(self._connection, transitions())


class Counted:
    """Counts changes on their way."""

    def __init__(self) -> None:
        self.changes = 0

    def count(self, changes: Iterator[Change]) -> Iterator[Change]:
        for change in changes:
            self.changes += 1
            yield change


def _trigger(text: str) -> Trigger:
    said = read_event(json.loads(text))
    assert isinstance(said, Trigger)
    return said


def _columns(trigger: Trigger, sequence: int) -> dict[str, object]:
    return {
        "name": trigger.name,
        "tenant_id": trigger.tenant_id,
        "table": trigger.table,
        "match": trigger.match,
        "unmatch": trigger.unmatch,
        "webhook": trigger.webhook,
        "enabled": trigger.enabled,
        "snapshot": trigger.snapshot,
        "sequence": sequence,
    }
