"""The loader: advances every store in steps, each whole or not at all, for as long as it runs.

One thread and one Spark for all stores. A store that fails waits, longer each time, and delays no other. All state is
in the database and in the stores, so it can be killed at any moment: a step is staged, then published while the
cursor's row is locked for its new position, and a loader that has lost the cursor publishes nothing. If it is killed
between publishing and the commit, the step is repeated, which changes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import psycopg

from tidelock.errors import TidelockError, Unreachable
from tidelock.fold.store import Store
from tidelock.instants import SECOND
from tidelock.postgres import leases
from tidelock.postgres.course import MORE, Failure, Turn, failure_of
from tidelock.postgres.database import Database
from tidelock.postgres.listener import LEDGER_CHANNEL
from tidelock.postgres.loop import Reader, ReaderLoop, Saying
from tidelock.postgres.reconnect import in_words, lost
from tidelock.sections import number_of
from tidelock.settings.groups import LoadSettings
from tidelock.sinks.kafkasource import not_mirrored
from tidelock.sinks.source import EventSource
from tidelock.spark.runtime import Spark, reason

log = logging.getLogger(__name__)

_POLL_S = 2.0
#: how often it polls for events if an interval is shorter: the mirror's progress is not announced
_LOOK_S = 0.25
#: how long a loader may take to release its store: it finishes its step first
_HANDOVER_S = 600.0
#: a step that fails this often, however few its events and without an outage, is a bug
_ATTEMPTS_MAX = 6
#: how small failing steps become, in case their events are too large for memory, and how soon
_EVENTS_MIN = 100
_SHRINKING = 4
#: this many steps must succeed before a larger one is tried again
_CALM_STEPS = 16


class Staged(Protocol):
    """A staged step."""

    def publish(self) -> None:
        """Publish it. Repeating this, with the same or a longer step, only adds what is new."""


class Sink(Protocol):
    """A store. Its law: after a step its events above `lo` through `hi` are those of the source, others as before."""

    @property
    def name(self) -> str:
        """Of its cursor, too."""

    @property
    def replaces(self) -> bool:
        """Whether a repair replaces rows atomically; otherwise they are removed first, and missing for a while."""

    def open(self) -> None:
        """Create what is missing."""

    def last(self) -> int | None:
        """The last sequence in the store, 0 if there is none; None: unknown."""

    def stage(self, lo: int, hi: int, source: EventSource) -> Staged:
        """Prepare a step; readers see nothing of it."""

    def widened(self, lo: int, hi: int) -> tuple[int, int]:
        """The least range around this one that can be replaced."""

    def stage_repair(self, lo: int, hi: int, source: EventSource) -> Staged:
        """Prepare to replace a range, whatever it contains."""


class Loading:
    """One sink and its cursor."""

    def __init__(self, sink: Sink, store: Store, source: EventSource) -> None:
        self.sink = sink
        self._store = store
        self._source = source
        #: everything up to here is loaded
        self.position = 0

    def open(self) -> int:
        """Determine how far the store is; returns the cursor's position.

        A cursor ahead of it belongs to another store, at another path or from before a restore: the missing part is
        loaded again.
        """
        self.sink.open()
        told = self.position = self._store.position()
        last = self.sink.last()
        if last is not None and last < told:
            found = self._source.commit_end(last)
            self._store.move(told, found)
            self._store.commit()
            self.position = found
        return told

    def look(self) -> None:
        """The position of another loader."""
        self.position = self._store.position()

    def close(self) -> None:
        """Abandon a half-done step; the next `open` starts over."""
        self._store.rollback()
        self._store.close()

    def step(self, events_max: int, through: int | None = None) -> int:
        """Load the next step; returns the number of sequences. Raises CursorMoved."""
        hi = self._source.frontier(self.position, events_max, through)
        if hi is None:
            return 0
        staged = self.sink.stage(self.position, hi, self._source)
        self._publish(staged, hi)
        done, self.position = hi - self.position, hi
        return done

    def repair(self, lo: int, events_max: int) -> int:
        """Replace what was loaded above `lo`, up to a number of events; returns where that ended. Raises
        CursorMoved.
        """
        hi = self._source.frontier(lo, events_max, self.position) or self.position
        lo, hi = self.sink.widened(lo, hi)
        hi = min(hi, self.position)
        staged, end = self.sink.stage_repair(lo, hi, self._source), self.position
        if not self.sink.replaces:
            self._move_back(lo)
        self._publish(staged, end)
        self.position = end
        return hi

    def _move_back(self, lo: int) -> None:
        """In a separate commit: if the repair is killed midway, the next steps insert what it removed."""
        start = self._source.commit_end(lo)
        self._store.move(self.position, start)
        self._store.commit()
        self.position = start

    def _publish(self, staged: Staged, to: int) -> None:
        self._store.move(self.position, to)
        try:
            staged.publish()
        except BaseException:
            self._store.rollback()
            raise
        self._store.commit()


class StepSize:
    """The maximum number of events of a step: fewer after failures, more again after a while."""

    def __init__(self, events_max: int) -> None:
        self.events_max = self._limit = events_max
        self._calm = 0

    def shrink(self) -> bool:
        """Make steps smaller; False: they are already minimal."""
        before, self.events_max = self.events_max, max(_EVENTS_MIN, self.events_max // _SHRINKING)
        self._calm = 0
        return self.events_max < before

    def grow(self) -> None:
        """After a step of about its size. One that works is kept for a while."""
        self._calm += 1
        if self._calm >= _CALM_STEPS:
            self.events_max = min(_SHRINKING * self.events_max, self._limit)
            self._calm = 0


class Loader:
    """All stores of one ledger, in one loop: one that fails delays no other."""

    def __init__(
        self,
        spark: Spark,
        database: Database,
        loadings: Sequence[Loading],
        settings: LoadSettings,
        tell: Callable[[str], None],
        *,
        poll_s: float = _POLL_S,
    ) -> None:
        """`poll_s`: how often it checks whether a store held by another loader is free."""
        self.spark = spark
        self.settings = settings
        self.tell = tell
        self.poll_s = poll_s
        self._database = database
        self._lanes = [StoreLoad(loading, self) for loading in loadings]
        #: the sequence to end with; None: go on
        self.through: int | None = None
        #: from where a store's events are replaced, by name
        self.repairs: dict[str, int] = {}
        #: Spark's JVM is gone
        self.lost = False

    def run(self, stop: threading.Event, *, through: int | None = None, since: int | None = None) -> None:
        """Load until told to stop, or until everything through a sequence is loaded.

        `since`: first replace what was loaded from that sequence on.
        """
        self.through = through
        self.repairs = {lane.name: since for lane in self._lanes} if since is not None else {}
        ReaderLoop(self._database, self._lanes, name="tidelock load", channels=[LEDGER_CHANNEL]).run(
            stop, done=self._done
        )

    def revive(self) -> None:
        """Start another JVM after one has exited."""
        if self.lost:
            self.spark.restart()
            self.lost = False

    def _done(self) -> bool:
        if self.through is None or self.repairs:
            return False
        return all(lane.looked and lane.loading.position >= self.through for lane in self._lanes)


class StoreLoad(Reader):
    """One store on its way."""

    def __init__(self, loading: Loading, loader: Loader) -> None:
        self.loading = loading
        self.name = loading.sink.name
        self.poll_s = loader.poll_s
        self.pause_max_s = loader.settings.pause_max / SECOND
        #: its position is known
        self.looked = False
        self._loader = loader
        self._size = StepSize(loader.settings.batch_events_max)
        self._saying = Saying(lambda text: loader.tell(f"{self.name}: {text}"))
        self._connection: psycopg.Connection[Any] | None = None
        self._failures = self._attempts = 0
        #: its position when its repair began
        self._loaded = 0
        #: since when this loader repairs it, or waits for that
        self._asked_at: float | None = None

    def open(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether this process is the one that loads the store; it stands by while another does."""
        self._connection = connection
        self._loader.revive()
        if self._is_asked_for():
            return self._stand_by("a repair", "a repair is waiting for it; standing by")
        if self.name in self._loader.repairs:
            self._ask(connection)
        if not leases.hold(connection, leases.LOADERS[self.name]):
            return self._stand_by("the lease", "another loader is loading it; standing by")
        told, position = self.loading.open(), self.loading.position
        self.looked = True
        again = f"; it was loaded through {told}, but ends there" if position < told else ""
        self._saying.tell(f"loading from sequence {position}{again}")
        return True

    def turn(self) -> Turn:
        self._loader.revive()
        if self._is_asked_for():
            raise _AskedFor
        turn = self._repair() if self.name in self._loader.repairs else self._step()
        self._failures = self._attempts = 0
        self._saying.over()
        return turn

    def leave(self) -> None:
        self.loading.close()

    def failed(self, error: Exception) -> Failure:
        if isinstance(error, _AskedFor):
            # A lease ends with its connection, however often it was taken; those of other stores are taken again.
            return Failure.YIELDED
        failure = failure_of(error)
        if failure in (Failure.FATAL, Failure.AGAIN):
            return failure
        self._failures += 1
        if self._loader.spark.lost(error):
            self._loader.lost = True
            self._loader.tell("Spark's JVM exited; starting another ...")
            log.debug("Spark's JVM had exited; the error was: %s", reason(error))
            self._size.shrink()
            return Failure.AWAY
        error = not_mirrored(error) or error
        if failure is Failure.AWAY or isinstance(error, TidelockError):
            once = self._loader.through is not None
            if once and not (lost(error) and self._failures < _ATTEMPTS_MAX):
                raise error
            self._saying.once("outage", f"waiting: {in_words(error)}")
            return Failure.AWAY
        if not self._size.shrink():
            self._attempts += 1
        if self._attempts >= _ATTEMPTS_MAX:
            log.debug("details of the failure", exc_info=error)
            said = f"the step after sequence {self.loading.position} failed {number_of(self._attempts, 'time')}"
            raise Unreachable(f"{self.name}: {said}: {reason(error)}") from error
        log.warning("%s: the step after %d failed; trying again: %s", self.name, self.loading.position, reason(error))
        log.debug("details of the failure", exc_info=error)
        return failure

    def _step(self) -> Turn:
        started = time.monotonic()
        done = self.loading.step(self._size.events_max, self._loader.through)
        took_s = time.monotonic() - started
        if done:
            log.debug("%s: through %d in %.3f s", self.name, self.loading.position, took_s)
        if 2 * done >= self._size.events_max:
            self._size.grow()
        if done >= self._size.events_max or (done and self._loader.through is not None):
            return MORE
        # Few events so far: waiting for more costs hardly anything.
        interval_s = self._loader.settings.interval / SECOND
        return Turn(due_s=max(interval_s, _LOOK_S), pause_s=max(0.0, interval_s - took_s))

    def _repair(self) -> Turn:
        repairs = self._loader.repairs
        since = repairs[self.name]
        if self.loading.position < self._loaded:
            # A repair failed midway and has moved the cursor back.
            self.loading.step(self._size.events_max, self._loaded)
            return MORE
        self._loaded = self.loading.position
        if since <= self.loading.position:
            repairs[self.name] = self.loading.repair(max(0, since - 1), self._size.events_max) + 1
        if repairs[self.name] > self.loading.position:
            del repairs[self.name]
            self._saying.tell(f"what was loaded through sequence {self.loading.position} is the ledger's again")
        return MORE

    def _stand_by(self, waiting_for: str, text: str) -> bool:
        self._saying.once(waiting_for, text)
        self.loading.look()
        self.looked = True
        return False

    def _is_asked_for(self) -> bool:
        """Whether another process repairs it, or waits for that."""
        assert self._connection is not None
        own = self.name in self._loader.repairs or self._asked_at is not None
        return not own and leases.held(self._connection, leases.REPAIRS[self.name])

    def _ask(self, connection: psycopg.Connection[Any]) -> None:
        """Ask the process that loads the store, such as `up`, to release it. Raises Unreachable."""
        if not leases.hold(connection, leases.REPAIRS[self.name]):
            raise Unreachable(f"{self.name}: another repair is running; wait until it finishes")
        now = time.monotonic()
        self._asked_at = self._asked_at or now
        if now - self._asked_at > _HANDOVER_S:
            raise Unreachable(
                f"{self.name}: another loader holds it and does not release it; stop that loader, then repair"
            )


class _AskedFor(Exception):
    """Another process wants to repair the store."""
