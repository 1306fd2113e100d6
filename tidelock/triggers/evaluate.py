"""Evaluation: the durable reader of changes that finds which rows enter or leave a trigger's condition.

It wakes when the fold announces its work and polls now and then. Each step takes some ranges of the fold, or a control
event, in one transaction: memberships, outbox and cursor move together, with a compare-and-set of the cursor, so it is
exactly once, whatever is killed and when. Any number may run: one works, the others stand by. It reads no clock.
Changes of a range are before a control event or after it, because the fold's ranges never span one.
"""

from __future__ import annotations

import heapq
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple

import psycopg

from tidelock.changes.reader import Change, read_batches
from tidelock.postgres import leases
from tidelock.postgres.course import IDLE, MORE, Failure, Turn, failure_of
from tidelock.postgres.database import Database
from tidelock.postgres.listener import FOLD_CHANNEL
from tidelock.postgres.loop import Reader, ReaderLoop
from tidelock.postgres.queries import load
from tidelock.postgres.reconnect import in_words
from tidelock.triggers.definition import Deletion, Trigger, read_event, stored
from tidelock.triggers.outbox import EventType, append
from tidelock.triggers.past import matching_at, one_moment
from tidelock.triggers.payloads import TransitionBuilder
from tidelock.triggers.watches import Crossing, TableWatches, Watch, remembered, tables_of

log = logging.getLogger(__name__)

QUERIES = load("tidelock.triggers", "sql/evaluation.sql")

#: name of its cursor
CURSOR = "triggers"

# Changes whose memberships are looked up at a time, and crossings that are written at a time.
_CHANGES = 1_000
_CROSSINGS = 1_000
#: this many changes, and their ranges, are evaluated in one transaction
CHANGES_MAX = 20_000

# Initial memberships of a trigger written at a time.
_MEMBERS = 10_000


class Evaluator(Reader):
    """Evaluates triggers until it is told to stop. Sync: to be run on a thread."""

    def __init__(self, database: Database, *, changes_max: int = CHANGES_MAX) -> None:
        self._database = database
        self._changes_max = changes_max
        self._counted: dict[EventType, int] = {"MATCH": 0, "UNMATCH": 0}
        self._evaluation: Evaluation | None = None
        self._held_up = False

    @property
    def transitions(self) -> Mapping[EventType, int]:
        """How many this process has found, by type."""
        now = self._evaluation.transitions if self._evaluation is not None else {}
        return {event_type: count + now.get(event_type, 0) for event_type, count in self._counted.items()}

    def run(self, stop: threading.Event) -> None:
        """Whatever happens to the database."""
        ReaderLoop(self._database, [self], name="tidelock triggers", channels=[FOLD_CHANNEL]).run(stop)

    def open(self, connection: psycopg.Connection[Any]) -> bool:
        if not leases.hold(connection, leases.TRIGGERS):
            return False
        self._evaluation = Evaluation(connection, self._second, changes_max=self._changes_max)
        return True

    def turn(self) -> Turn:
        assert self._evaluation is not None
        moved = self._evaluation.step()
        self._held_up = False
        return MORE if moved else IDLE

    def leave(self) -> None:
        self._counted = dict(self.transitions)
        self._evaluation = None

    def failed(self, error: Exception) -> Failure:
        # Nothing may end it: receivers would wait for ever. A problem is logged, but not repeatedly.
        defect = failure_of(error) in (Failure.DEFECT, Failure.FATAL)
        if defect or not self._held_up:
            log.warning("triggers are delayed: %s", in_words(error), exc_info=defect)
        self._held_up = True
        return Failure.DEFECT if defect else Failure.AWAY

    def _second(self) -> psycopg.Connection[Any]:
        return self._database.connect_sync(name="tidelock triggers snapshot")


class ControlEvent(NamedTuple):
    """A control event about a trigger."""

    sequence: int
    source_timestamp: int
    said: Trigger | Deletion


class EnabledTriggers(NamedTuple):
    """The triggers that are enabled, as of a cursor."""

    position: int
    tables: dict[str, TableWatches]
    builder: TransitionBuilder


class Evaluation:
    """Evaluates triggers step by step. All its state is also in the database."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        beside: Callable[[], psycopg.Connection[Any]],
        *,
        changes_max: int = CHANGES_MAX,
    ) -> None:
        """`beside` opens a second connection, for consistent reads."""
        self._connection = connection
        self._beside = beside
        self._changes_max = changes_max
        self._known: EnabledTriggers | None = None
        #: transitions by type, for metrics
        self.transitions: dict[EventType, int] = {"MATCH": 0, "UNMATCH": 0}
        #: the same of the current step
        self._found: Counter[EventType] = Counter()

    def step(self) -> bool:
        """Continue from the cursor; False: there was nothing to do."""
        self._found.clear()
        try:
            with self._connection.transaction():
                moved = self._step()
        except BaseException:
            # Its cached state may be ahead of what was committed.
            self._known = None
            raise
        for event_type, count in self._found.items():
            self.transitions[event_type] += count
        return moved

    def _step(self) -> bool:
        # Usually there is nothing to do, and a lock is a write.
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

    def _at(self, position: int) -> EnabledTriggers:
        """The state at the cursor: cached, unless another process has moved it."""
        if self._known is not None and self._known.position == position:
            return self._known
        found = self._connection.execute(QUERIES["watches"]).fetchall()
        watches = [Watch(_trigger(text), trigger_id) for trigger_id, text in found]
        return EnabledTriggers(position, tables_of(watches), TransitionBuilder(self._connection))

    def _next_event(self, after: int, through: int) -> ControlEvent | None:
        row = self._connection.execute(QUERIES["next_event"], {"after": after, "through": through}).fetchone()
        return None if row is None else ControlEvent(row[0], row[1], read_event(json.loads(row[2])))

    def _ranges(self, known: EnabledTriggers, lo: int, through: int) -> int:
        """Evaluate ranges that end by a sequence, some at a time; returns the sequence through which this
        is complete.
        """
        if through == lo:
            return lo
        counted = CountedChanges()
        last = lo
        for batch in read_batches(self._connection, after=lo, through=through, tables=known.tables):
            if counted.changes >= self._changes_max:
                return last
            self._write(known, self._crossings(known, counted.count(batch.changes)))
            last = batch.last_sequence
        return through

    def _control(self, known: EnabledTriggers, event: ControlEvent) -> None:
        """A trigger is created, changed or deleted. The event's own range, in which windows may close, is after its end
        and before its beginning: other triggers see it, this one does not.
        """
        self._end(known, event.said.name)
        crossings: list[Crossing] = []
        before = event.sequence - 1
        for batch in read_batches(self._connection, after=before, through=event.sequence, tables=known.tables):
            crossings += self._crossings(known, batch.changes)
        begun = None
        if isinstance(event.said, Trigger):
            begun = self._begin(known, event.sequence, event.said)
        else:
            self._forget(event.said)
        with closing(self._first_members(begun, event)) as first:
            self._write(known, heapq.merge(crossings, first, key=lambda crossing: crossing.place))

    def _end(self, known: EnabledTriggers, name: str) -> None:
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

    def _begin(self, known: EnabledTriggers, sequence: int, trigger: Trigger) -> Watch | None:
        row = self._connection.execute(QUERIES["put_trigger"], _columns(trigger, sequence)).fetchone()
        assert row is not None, "it is inserted or updated"
        if not trigger.enabled:
            return None
        watch = Watch(trigger, row[0])
        self._connection.execute(QUERIES["put_watch"], {"id": watch.id, "definition": stored(trigger)})
        known.tables.setdefault(trigger.table, TableWatches()).add(watch)
        return watch

    def _first_members(self, watch: Watch | None, event: ControlEvent) -> Generator[Crossing]:
        """Rows that already match become members, and are sent if requested, by key. There may be millions."""
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

    def _crossings(self, known: EnabledTriggers, changes: Iterable[Change]) -> Iterator[Crossing]:
        """The transitions caused by changes, in order: those of one source timestamp are sorted."""
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

    def _write(self, known: EnabledTriggers, crossings: Iterable[Crossing]) -> None:
        def transitions() -> Iterator[Any]:
            for crossing in crossings:
                self._found[crossing.event_type] += 1
                yield known.builder.transition(crossing)

        append(self._connection, transitions())


class Members:
    """The members of triggers with `unmatch`; written in the caller's transaction."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        #: trigger and key
        self._known: set[tuple[int, str]] = set()
        #: since when they are members, for those not written yet; None: they are not members
        self._changed: dict[tuple[int, str], int | None] = {}

    def look_up(self, concerned: Iterable[tuple[Change, Watch]]) -> None:
        """Look up whether these keys are members of these triggers."""
        wanted = {(watch.id, change.key) for change, watch in concerned}
        self._known.clear()
        if wanted:
            asked = {"triggers": list({id_ for id_, _ in wanted}), "keys": list({key for _, key in wanted})}
            self._known.update(self._connection.execute(QUERIES["members"], asked).fetchall())

    def has(self, watch: Watch, key: str) -> bool:
        return (watch.id, key) in self._known

    def cross(self, crossing: Crossing) -> None:
        place = crossing.watch.id, crossing.key
        entered = crossing.event_type == "MATCH"
        (self._known.add if entered else self._known.discard)(place)
        self._changed[place] = crossing.source_timestamp if entered else None

    def enter(self, crossing: Crossing) -> None:
        """One of many initial members: they are not looked up before they are written."""
        self._changed[crossing.watch.id, crossing.key] = crossing.source_timestamp
        if len(self._changed) >= _MEMBERS:
            self.write()

    def write(self) -> None:
        if not self._changed:
            return
        triggers, keys = zip(*self._changed, strict=True)
        # A key may have left and entered again, with a new time.
        self._connection.execute(QUERIES["remove_members"], {"triggers": list(triggers), "keys": list(keys)})
        entered = [(id_, key, time) for (id_, key), time in self._changed.items() if time is not None]
        if entered:
            columns = [list(column) for column in zip(*entered, strict=True)]
            named = dict(zip(("triggers", "keys", "times"), columns, strict=True))
            self._connection.execute(QUERIES["add_members"], named)
        self._changed.clear()


class CountedChanges:
    """Counts changes as they pass."""

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
