"""The runner: folds the ledger as long as it runs, whatever fails meanwhile.

It wakes when a commit is announced and polls now and then, in case an announcement was lost. All its state is in the
database, so it can be killed at any moment.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psycopg

from tidelock.definitions import Definitions
from tidelock.errors import Unreachable
from tidelock.fold.closing import Closings, closed_definitions
from tidelock.fold.rangefold import RangeFold
from tidelock.fold.ranges import Pace, Range, ledger_end, next_range
from tidelock.fold.redefine.catalog import (
    Catalog,
    changed_units,
    check_columns,
    read_catalog,
    unit_hashes,
    write_catalog_sql,
)
from tidelock.fold.redefine.proposals import definition_event, pending_definitions, read_definition_event, refusal
from tidelock.fold.redefine.shadow import STATED, Plan, Shadow
from tidelock.fold.redefine.swap import swap
from tidelock.fold.source import SMALL_EVENTS
from tidelock.fold.statements import drop, reshape
from tidelock.fold.store import Store
from tidelock.postgres import leases
from tidelock.postgres.course import IDLE, MORE, Failure, Turn, failure_of
from tidelock.postgres.database import Database
from tidelock.postgres.listener import LEDGER_CHANNEL
from tidelock.postgres.loop import Reader, ReaderLoop, Saying
from tidelock.postgres.reconnect import in_words
from tidelock.spark.runtime import Spark, reason
from tidelock.tables import ALWAYS, SCHEMA

log = logging.getLogger(__name__)

CURSOR = "fold"
#: how often it polls for unannounced commits
POLL_S = 2.0
_TIDY_S = 60.0
#: a range that fails this often is a bug, not bad luck
_ATTEMPTS_MAX = 6
#: a shadow this close to the end of the ledger takes over in a moment
SHADOW_LAG_EVENTS = 20_000

#: a range of this many events takes well under a second once Java has compiled the steps
RANGE_EVENTS_START = 1_000

#: records a control event and returns its sequence
Control = Callable[[Mapping[str, Any]], int]


class Runner(Reader):
    """The fold of a ledger. `definitions` are those of the settings."""

    def __init__(
        self,
        spark: Spark,
        database: Database,
        definitions: Definitions,
        *,
        range_events_max: int,
        range_events_start: int = RANGE_EVENTS_START,
        rebuild: bool,
        control: Control,
        tidy: Callable[[psycopg.Connection[Any]], None],
        tell: Callable[[str], None],
        poll_s: float = POLL_S,
    ) -> None:
        """`rebuild`: changed definitions are proposed to the ledger instead of refused. `tidy` is called
        now and then.
        """
        self._spark = spark
        self._database = database
        self._wanted = definitions
        self._pace = Pace(range_events_start, range_events_max)
        #: of the shadow, which has its own ranges
        self._shadow_pace = Pace(range_events_start, range_events_max)
        self._control = control
        self._tell = tell
        self._rebuild = rebuild
        self._tidy = tidy
        self._tidied_at = self._looked_at = 0.0
        self.poll_s = poll_s
        self._store = Store(database, SCHEMA, CURSOR)
        #: the one that listens, and holds the leases
        self._connection: psycopg.Connection[Any] | None = None
        self._catalog: Catalog | None = None
        self._range_fold: RangeFold | None = None
        self._shadow: Shadow | None = None
        #: what must be folded before it is proposed
        self._shadow_goal = 0
        #: version of the definitions that the settings may still change; later ones are newer than the settings
        self._version_known: int | None = None
        self._stop = threading.Event()
        self._through: int | None = None
        self._saying = Saying(tell)
        self._lost = False
        self._warm = False
        #: the definitions of the tables, which are empty, cannot be folded
        self._unusable = False
        #: failures in a row that nothing lost explains
        self._attempts = 0
        #: everything up to here is in the tables
        self.position = 0

    def run(self, stop: threading.Event, *, through: int | None = None) -> None:
        """Fold until told to stop, or until everything through a sequence is folded."""
        self._stop, self._through = stop, through
        loop = ReaderLoop(self._database, [self], name="tidelock fold", channels=[LEDGER_CHANNEL])
        try:
            loop.run(stop, done=lambda: through is not None and self.position >= through)
        finally:
            self._store.close()

    def open(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether this process is the one that folds; it stands by while another does."""
        self._connection = connection
        if self._lost:
            self._spark.restart()
            self._lost = self._warm = False
        self._look_once()
        behind = self._behind()
        if not behind:
            self._warm_up()
        # Large ranges need workers immediately, and no other fold should wait for their start. Executors of a cluster
        # may lack what workers need, which should be detected now.
        if behind > SMALL_EVENTS or self._spark.cores is None:
            self._spark.warm_workers()
        if not leases.hold(connection, leases.FOLD):
            self._warm_up()
            self._saying.once("the lease", "another fold is running on this ledger; standing by")
            return False
        self._open()
        return True

    def turn(self) -> Turn:
        worked = self._step(self._through)
        self._attempts = 0
        if worked:
            return MORE
        self._tend()
        return IDLE

    def leave(self) -> None:
        self._store.rollback()
        self._drop_shadow()
        self._drop_fold()

    def failed(self, error: Exception) -> Failure:
        failure = failure_of(error)
        if failure in (Failure.FATAL, Failure.AGAIN):
            return failure
        # Whatever it was may come again soon; and the range may have been too large for some memory.
        self._pace.failed()
        self._shadow_pace.failed()
        if self._spark.lost(error):
            self._lost = True
            self._saying.over()
            self._tell("Spark's JVM exited; starting another ...")
            log.debug("Spark's JVM had exited; the error was: %s", reason(error))
            # It may be killed again soon, so do not wait: what gets folded in between counts.
            return Failure.AGAIN
        if failure is Failure.AWAY:
            self._saying.once("Postgres", f"waiting for Postgres: {in_words(error)}")
            self._store.close()
            return failure
        self._attempts += 1
        if self._attempts >= _ATTEMPTS_MAX:
            self._give_way(error)
        log.warning("the range after %d failed; trying again: %s", self.position, reason(error))
        log.debug("details of the failure", exc_info=error)
        return failure

    def _behind(self) -> int:
        """How many events wait. Folding them warms up too, and is not lost if this process is killed."""
        found = ledger_end(self._store) - self._store.position()
        self._store.rollback()
        return found

    def _warm_up(self) -> None:
        """Before the lease: a fold that has it should be warm."""
        if not self._warm:
            RangeFold(self._spark, self._store, self._database, self._wanted).warm_up()
            self._warm = True

    def _look_once(self) -> None:
        """Before the lease: anything decided while this process stands by is newer than its settings."""
        if self._version_known is None:
            catalog = read_catalog(self._store)
            pending = pending_definitions(self._store, self._store.position())
            self._store.rollback()
            self._version_known = (catalog.version if catalog is not None else 0) + len(pending)

    def _open(self) -> None:
        """Find out where the tables are, and by which definitions."""
        self._store.close()
        self.position = self._store.position()
        catalog = read_catalog(self._store)
        end = ledger_end(self._store)
        if catalog is None or end == 0 or self._unusable:
            catalog = self._begin(catalog)
            self._unusable = False
        self._adopt(catalog)
        self._propose(catalog)
        self._saying.over()
        self._announce()
        behind = end - self.position
        self._tell(f"folding from sequence {self.position}" + (f", {behind} behind the ledger" if behind else ""))

    def _begin(self, before: Catalog | None) -> Catalog:
        """Tables of a ledger that was never folded: the definitions need no event."""
        range_fold = RangeFold(self._spark, self._store, self._database, self._wanted)
        present = ALWAYS if before is None else before.tables
        for statement in (*drop(present, range_fold.tables), *reshape(present, range_fold.tables)):
            self._store.execute(statement)
        version = 1 if before is None else before.version + 1
        self._store.execute(write_catalog_sql(version, self._wanted, range_fold.tables.values()))
        for statement in Closings(self._store, self._wanted, due=True).looked():
            self._store.execute(statement)
        self._store.commit()
        return Catalog(version, self._wanted, unit_hashes(self._wanted), range_fold.tables)

    def _adopt(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._drop_fold()
        self._range_fold = RangeFold(self._spark, self._store, self._database, catalog.definitions)

    def _propose(self, catalog: Catalog) -> None:
        """Prepare the change to the definitions of the settings, if they differ from those of the tables."""
        self._drop_shadow()
        pending = pending_definitions(self._store, self.position)
        self._store.rollback()
        coming = pending[-1] if pending else catalog.definitions
        units = changed_units(unit_hashes(coming) if pending else catalog.hashes, self._wanted)
        if self._wanted.canonical() == coming.canonical() and not units:
            return
        assert self._version_known is not None
        if catalog.version + len(pending) > self._version_known:
            self._tell("another process changed the definitions since this fold started; folding by the new ones")
            return
        check_columns(coming, self._wanted)
        names = ", ".join(units) or "what makes no rows"
        if not self._rebuild:
            raise refusal(names)
        if pending:
            # Earlier decisions come first, then this one.
            return
        # Definitions that cannot be folded must be found before an event applies them.
        self._shadow_goal = ledger_end(self._store)
        self._store.rollback()
        self._tell(f"definitions changed: {names}; rebuilding the tables, which are swapped in when complete")
        self._shadow = Shadow(self._spark, self._database, Plan(self._wanted, tuple(units), before=coming))

    def _announce(self) -> None:
        """Let servers know that events are folded by the definitions they were started with."""
        pending = pending_definitions(self._store, self.position)
        self._store.rollback()
        if self._shadow is None and not pending:
            assert self._connection is not None
            leases.hold(self._connection, leases.READY)

    def _step(self, through: int | None) -> bool:
        """Fold the next range; False: there was nothing to do."""
        assert self._range_fold is not None
        # First, because no transaction of ours should stay open that long.
        worked = self._step_shadow() if self._shadow is not None else False
        found = next_range(self._store, self.position, self._pace.events, through)
        if found is None:
            self._store.rollback()
            return worked
        started = time.monotonic()
        if not self._apply(found):
            return False
        self.position = found.hi
        self._pace.succeeded(found.hi - found.lo, time.monotonic() - started)
        return True

    def _apply(self, found: Range) -> bool:
        """Whether it was applied; not if told to stop on the way."""
        assert self._range_fold is not None
        if found.control is None:
            started = time.monotonic()
            self._range_fold.apply(found.lo, found.hi)
            took_s = time.monotonic() - started
            log.debug("folded %d to %d in %.3f s", found.lo + 1, found.hi, took_s)
        elif found.control.get("type") == "definition":
            return self._swap(found)
        elif foreign := self._range_fold.foreign(found):
            return self._state_foreign(found, foreign)
        else:
            self._range_fold.control(found)
        return True

    def _state_foreign(self, found: Range, names: Sequence[str]) -> bool:
        """Apply a close by definitions that the tables are not made by.

        A statement is what the definitions in the event make of the ledger up to it: they are folded beside the tables
        first. Only a ledger whose tables are made again from its first event has such closes."""
        assert self._range_fold is not None
        assert found.control is not None
        self._store.rollback()
        definitions = closed_definitions(found.control, names)
        shadow = Shadow(
            self._spark, self._database, Plan(definitions, tuple(f"meters.{name}" for name in names)), STATED
        )
        try:
            while not shadow.complete(found.lo):
                if self._stop.is_set():
                    return False
                shadow.step(self._shadow_pace.events, found.lo)
                self._shadow_pace.succeeded()
            self._range_fold.control(found, shadow.stated(found))
            shadow.store.rollback()
            for statement in STATED.drop():
                self._store.execute(statement)
            self._store.commit()
        finally:
            shadow.close()
        return True

    def _step_shadow(self) -> bool:
        """One more range of the shadow, or the event at which it takes over."""
        assert self._shadow is not None
        if self._shadow.step(self._shadow_pace.events) is not None:
            self._shadow_pace.succeeded()
            end = ledger_end(self._shadow.store)
            self._shadow.store.rollback()
            if self._shadow.position < self._shadow_goal or end - self._shadow.position > SHADOW_LAG_EVENTS:
                log.info("rebuilt through sequence %d of %d", self._shadow.position, end)
                return True
        plan = self._shadow.plan
        self._drop_shadow()
        decided = pending_definitions(self._store, self.position)
        self._store.rollback()
        if not decided:
            self._control(definition_event(plan))
        return True

    def _swap(self, found: Range) -> bool:
        """The event alone decides which definitions apply from here on; the settings only proposed it."""
        assert self._catalog is not None
        assert self._range_fold is not None
        assert found.control is not None
        self._drop_shadow()
        # The transaction that found the event must not stay open while the shadow is built.
        self._store.rollback()
        plan = read_definition_event(found.control, self._catalog)
        shadow = Shadow(self._spark, self._database, plan)
        try:
            if shadow.position > found.hi:
                # Built by a process that did not know this event: it contains later events.
                shadow.begin_anew()
            while not shadow.complete(found.lo) and not shadow.complete(found.hi):
                if self._stop.is_set():
                    return False
                shadow.step(self._shadow_pace.events, found.lo)
                self._shadow_pace.succeeded()
                log.info("rebuilt through sequence %d of %d", shadow.position, found.lo)
            shadow.pass_by(found)
            shadow.store.close()
            catalog = swap(self._store, self._catalog, shadow, found, self._range_fold)
        finally:
            shadow.close()
        self.position = found.hi
        self._adopt(catalog)
        self._tell(f"the tables of {', '.join(plan.units) or 'no definition'} were swapped at sequence {found.hi}")
        self._propose(catalog)
        self._announce()
        return True

    def _tend(self) -> None:
        """What is done now and then, while there is nothing to fold."""
        assert self._connection is not None
        now = time.monotonic()
        if now - self._tidied_at > _TIDY_S:
            self._tidy(self._connection)
            self._tidied_at = now
        if now - self._looked_at >= self.poll_s:
            self._looked_at = now
            if not self._spark.alive():
                raise Unreachable("Spark's JVM exited while idle")

    def _give_way(self, error: Exception) -> None:
        """Let the definitions of the settings take the place of those that a range always fails by. Raises its error
        where they are the same, and where the tables have something: then only an event changes definitions."""
        catalog, wanted = self._catalog, self._wanted.canonical()
        if not self._rebuild or self.position or catalog is None or catalog.definitions.canonical() == wanted:
            raise error
        decided = pending_definitions(self._store, self.position)
        self._store.rollback()
        if decided and decided[-1].canonical() != wanted:
            raise error
        self._tell("nothing could be folded by the first definitions; using those of the settings")
        self._unusable, self._attempts = True, 0

    def _drop_fold(self) -> None:
        if self._range_fold is not None:
            self._range_fold.close()
            self._range_fold = None

    def _drop_shadow(self) -> None:
        if self._shadow is not None:
            self._shadow.close()
            self._shadow = None
