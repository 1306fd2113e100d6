"""The loader: brings every store on by steps, each whole or not at all, for as long as it runs.

One thread and one Spark for all stores. A store that fails waits, longer each time, and holds up no other. All that is
known is in the database and in the stores, so it can be killed at any moment: a step is staged aside, then published
while the cursor's row is locked for its new position, and a loader that has lost the cursor publishes nothing. Killed
between publishing and the commit it is done again, which changes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import psycopg

from tidelock.errors import CursorMoved, SettingsError, TidelockError, Unreachable
from tidelock.fold.store import Store
from tidelock.instants import SECOND
from tidelock.postgres import leases
from tidelock.postgres.database import Database
from tidelock.postgres.reconnect import lost
from tidelock.settings.groups import LoadSettings
from tidelock.sinks.kafkasource import not_mirrored
from tidelock.sinks.source import EventSource
from tidelock.spark.runtime import Spark, reason

log = logging.getLogger(__name__)

_CHANNEL = "tidelock_ledger"
_POLL_S = 2.0
_PATIENCE_S = 0.25
_PAUSE_S = 0.1
#: how long a loader may take to let go of its store: it ends its step first
_HANDOVER_S = 600.0
#: a step that fails so often, for no reason that one can wait for and however few its events, is a defect
_ATTEMPTS_MAX = 6
#: how small steps become that fail, in case their events are too large for some memory, and how soon
_EVENTS_MIN = 100
_SHRINKING = 4
#: so many steps must succeed before a larger one is tried again
_CALM_STEPS = 16


class Staged(Protocol):
    """What a step will show to readers."""

    def publish(self) -> None:
        """Show it. To do so again, with the same or with a longer step, changes nothing but what is new."""


class Sink(Protocol):
    """A store. Its law: after a step its events above `lo` through `hi` are those of the source, others as before."""

    @property
    def name(self) -> str:
        """Of its cursor, too."""

    @property
    def replaces(self) -> bool:
        """Whether a repair takes the place of what was there; else that is removed first, and missing for a while."""

    def open(self) -> None:
        """Make what has to be there."""

    def last(self) -> int | None:
        """The last sequence that is there, 0 where there is none; None: it cannot be told."""

    def stage(self, lo: int, hi: int, source: EventSource) -> Staged:
        """Prepare a step; readers see nothing of it."""

    def widened(self, lo: int, hi: int) -> tuple[int, int]:
        """The least range around this one that can be replaced."""

    def stage_repair(self, lo: int, hi: int, source: EventSource) -> Staged:
        """Prepare to replace a range, whatever is there."""


class Loading:
    """One sink and its cursor."""

    def __init__(self, sink: Sink, store: Store, source: EventSource) -> None:
        self.sink = sink
        self._store = store
        self._source = source
        #: everything up to here is loaded
        self.position = 0

    def open(self) -> int:
        """Find out how far the store is; what the cursor said.

        A cursor that is ahead of it was another store's, of another path or before it was put back from a backup: what
        is missing is loaded again.
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
        """Where another loader is."""
        self.position = self._store.position()

    def close(self) -> None:
        """What was half done is left; the next `open` begins anew."""
        self._store.rollback()
        self._store.close()

    def step(self, events_max: int, through: int | None = None) -> int:
        """Load what comes next; how many sequences that were. Raises CursorMoved."""
        hi = self._source.frontier(self.position, events_max, through)
        if hi is None:
            return 0
        staged = self.sink.stage(self.position, hi, self._source)
        self._publish(staged, hi)
        done, self.position = hi - self.position, hi
        return done

    def repair(self, lo: int, events_max: int) -> int:
        """Replace what was loaded above `lo`, at most so many events; where that ended. Raises CursorMoved."""
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
        """In a commit of its own: if the repair is killed amid, the next steps insert what it has removed."""
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


class StoreLoad:
    """One store on its way."""

    def __init__(self, loading: Loading, settings: LoadSettings) -> None:
        self.loading = loading
        self.name = loading.sink.name
        self.events_max = self._events_max = settings.batch_events_max
        self._calm = 0
        self._pause_max_s = settings.pause_max / SECOND
        self.ready = False
        #: nothing is tried before
        self.not_before = 0.0
        self.failures = self.attempts = 0
        #: through where it was loaded when its repair began
        self.loaded = 0
        #: since when this loader repairs it, or waits for that
        self.asked_at: float | None = None
        #: what is waited for, once it has been told
        self.told = ""

    def failed(self) -> None:
        self.ready = False
        self.loading.close()
        self.failures += 1
        self.not_before = time.monotonic() + min(self._pause_max_s, _PAUSE_S * 2 ** min(self.failures, 20))

    def succeeded(self) -> None:
        self.failures = self.attempts = 0
        self.told = ""

    def shrink(self) -> bool:
        """Smaller steps; False: they are as small as they get."""
        before, self.events_max = self.events_max, max(_EVENTS_MIN, self.events_max // _SHRINKING)
        self._calm = 0
        return self.events_max < before

    def grow(self) -> None:
        """After a step of about its size. One that works is kept for a while."""
        self._calm += 1
        if self._calm >= _CALM_STEPS:
            self.events_max = min(_SHRINKING * self.events_max, self._events_max)
            self._calm = 0


class Loader:
    """All stores of one ledger."""

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
        """`poll_s`: how often it looks whether a store that another has is free."""
        self._spark = spark
        self._poll_s = poll_s
        self._database = database
        self._settings = settings
        self._lanes = [StoreLoad(loading, settings) for loading in loadings]
        self._tell = tell
        self._listener: psycopg.Connection[Any] | None = None
        self._once = False
        self._lost = False

    def run(self, stop: threading.Event, *, through: int | None = None, since: int | None = None) -> None:
        """Load until told to stop, or until everything through a sequence is loaded.

        `since`: first replace what was loaded from that sequence on.
        """
        self._once = through is not None
        repairs = {lane.name: since for lane in self._lanes} if since is not None else {}
        try:
            while not stop.is_set():
                worked = False
                for lane in self._lanes:
                    worked |= self._turn(lane, stop, through, repairs)
                if (
                    through is not None
                    and not repairs
                    and all(lane.loading.position >= through for lane in self._lanes)
                ):
                    return
                if not worked:
                    self._wait(stop)
        finally:
            for lane in self._lanes:
                lane.loading.close()
            if self._listener is not None:
                self._listener.close()

    def _turn(self, lane: StoreLoad, stop: threading.Event, through: int | None, repairs: dict[str, int]) -> bool:
        """One step of one store; False: there was nothing to do."""
        if stop.is_set() or time.monotonic() < lane.not_before:
            return False
        try:
            if not self._prepare(lane, repairs):
                return False
            worked = self._repair(lane, repairs) if lane.name in repairs else self._step(lane, through)
            lane.succeeded()
            return worked
        # Whatever it is: a JVM that dies shows itself in many ways, and a defect ends after some attempts.
        except Exception as error:
            self._recover(lane, error)
            return False

    def _step(self, lane: StoreLoad, through: int | None) -> bool:
        started = time.monotonic()
        done = lane.loading.step(lane.events_max, through)
        if done:
            log.debug("%s: through %d in %.3f s", lane.name, lane.loading.position, time.monotonic() - started)
        if done < lane.events_max and through is None:
            # Few have come: more of them together cost hardly more.
            lane.not_before = started + self._settings.interval / SECOND
        if 2 * done >= lane.events_max:
            lane.grow()
        return bool(done)

    def _repair(self, lane: StoreLoad, repairs: dict[str, int]) -> bool:
        since = repairs[lane.name]
        if lane.loading.position < lane.loaded:
            # A repair failed amid, and has moved the cursor back.
            return bool(lane.loading.step(lane.events_max, lane.loaded))
        lane.loaded = lane.loading.position
        if since <= lane.loading.position:
            repairs[lane.name] = lane.loading.repair(max(0, since - 1), lane.events_max) + 1
        if repairs[lane.name] > lane.loading.position:
            del repairs[lane.name]
            self._tell(f"{lane.name}: what was loaded through sequence {lane.loading.position} is the ledger's again")
        return True

    def _prepare(self, lane: StoreLoad, repairs: Mapping[str, int]) -> bool:
        """Whether this process is the one that loads the store; it stands by while another does."""
        if self._lost:
            self._spark.restart()
            self._lost = False
        if self._listener is None or self._listener.closed:
            self._listener = self._database.connect_sync(name="tidelock load")
            self._listener.execute(f"LISTEN {_CHANNEL}")
            for each in self._lanes:
                each.ready = False
        own = lane.name in repairs or lane.asked_at is not None
        if not own and leases.held(self._listener, leases.REPAIRS[lane.name]):
            self._let_go(lane)
            return False
        if not lane.ready:
            if lane.name in repairs:
                self._ask(lane)
            if not leases.hold(self._listener, leases.LOADERS[lane.name]):
                self._stand_by(lane, "the lease", "another loader has it; standing by")
                return False
            told = lane.loading.open()
            lane.ready = True
            position = lane.loading.position
            again = f"; it was loaded through {told}, but ends there" if position < told else ""
            self._tell(f"{lane.name}: loading from sequence {position}{again}")
        return True

    def _stand_by(self, lane: StoreLoad, waiting_for: str, text: str) -> None:
        self._tell_once(lane, waiting_for, text)
        lane.loading.look()
        lane.not_before = time.monotonic() + self._poll_s

    def _let_go(self, lane: StoreLoad) -> None:
        """Of a store that a repair asks for, until that has ended."""
        assert self._listener is not None
        if lane.ready:
            # A lease ends with its connection, however often it was taken; those of other stores are taken again.
            self._listener.close()
            lane.loading.close()
        self._stand_by(lane, "a repair", "a repair asks for it; standing by")

    def _ask(self, lane: StoreLoad) -> None:
        """Ask whoever loads the store, such as `up`, to let go of it. Raises Unreachable."""
        assert self._listener is not None
        if not leases.hold(self._listener, leases.REPAIRS[lane.name]):
            raise Unreachable(f"{lane.name}: another repair is at it; wait for its end")
        now = time.monotonic()
        lane.asked_at = lane.asked_at or now
        if now - lane.asked_at > _HANDOVER_S:
            raise Unreachable(f"{lane.name}: another loader has it, and does not let go; stop it, then repair")

    def _wait(self, stop: threading.Event) -> None:
        """Until a commit is announced that may be loaded, or it is time to look."""
        due = min((lane.not_before for lane in self._lanes), default=0.0)
        until = max(due, time.monotonic() + _PATIENCE_S)
        while (left := min(_PATIENCE_S, until - time.monotonic())) > 0 and not stop.is_set():
            if due > time.monotonic() or self._listener is None or self._listener.closed:
                stop.wait(left)
                continue
            try:
                for _ in self._listener.notifies(timeout=left, stop_after=1):
                    return
            except psycopg.Error:
                self._listener.close()

    def _recover(self, lane: StoreLoad, error: Exception) -> None:
        """Leave everything half done, and be ready to try again; raises what trying again does not mend."""
        lane.failed()
        if isinstance(error, SettingsError):
            raise error
        if isinstance(error, CursorMoved):
            lane.failures, lane.not_before = 0, 0.0
            return
        if self._spark.lost(error):
            self._lost = True
            self._tell("Spark's JVM is gone; starting another ...")
            log.debug("Spark's JVM was gone at: %s", reason(error))
            lane.shrink()
            return
        error = not_mirrored(error) or error
        if isinstance(error, TidelockError | psycopg.OperationalError | psycopg.InterfaceError):
            if self._once and not (lost(error) and lane.failures < _ATTEMPTS_MAX):
                raise error
            self._tell_once(lane, "outage", f"waiting: {' '.join(str(error).split())}")
            return
        if not lane.shrink():
            lane.attempts += 1
        if lane.attempts >= _ATTEMPTS_MAX:
            log.debug("it failed so", exc_info=error)
            said = f"the step after sequence {lane.loading.position} failed {lane.attempts} times"
            raise Unreachable(f"{lane.name}: {said}: {reason(error)}") from error
        log.warning("%s: the step after %d failed, trying again: %s", lane.name, lane.loading.position, reason(error))
        log.debug("it failed so", exc_info=error)

    def _tell_once(self, lane: StoreLoad, waiting_for: str, text: str) -> None:
        if lane.told != waiting_for:
            self._tell(f"{lane.name}: {text}")
            lane.told = waiting_for
