"""The runner: mirrors the ledger for as long as it runs, whatever is lost meanwhile.

The cursor is moved when brokers have acknowledged, never before: killed at any moment, it sends a few events again and
leaves none out. While brokers are away events wait in the ledger, and no more of them in memory than the queue holds.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import psycopg

from tidelock.errors import CursorMoved, Unreachable
from tidelock.instants import SECOND
from tidelock.mirror.cluster import KafkaCluster
from tidelock.mirror.messages import LedgerPages, MessagePage
from tidelock.mirror.ranges import InFlight, Ranges, range_of, read_ledger_end, read_position
from tidelock.mirror.sender import KafkaSender
from tidelock.postgres import leases
from tidelock.postgres.database import Database
from tidelock.postgres.reconnect import lost
from tidelock.settings import Settings

log = logging.getLogger(__name__)

#: the ledger announces its commits here
_CHANNEL = "tidelock_ledger"
_POLL_S = 2.0
#: how long it takes at most to see that it should stop
_PATIENCE_S = 0.25
_ACK_S = 0.05
_PAUSE_S = 0.1
_BATCHES_MAX = 20
#: brokers that are silent for so long are told of
_SILENCE_S = 5.0
#: so often in a row even an impatient one makes a lost connection to Postgres again
_FAILURES_MAX = 6
#: how long what is under way may still take when it is told to stop
_LAST_S = 5.0


class _Stopped(Exception):
    """It was told to stop in the midst of a page."""


def calm_collector() -> None:
    """For a process that does nothing else: a page is thousands of young objects, none of them garbage until it is
    sent, and the collector would look for some after every 700."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


class Mirror:
    """The one mirror of a ledger; others stand by."""

    def __init__(self, database: Database, settings: Settings, tell: Callable[[str], None], *, patient: bool) -> None:
        """`patient`: brokers that are away are waited for. Otherwise that is an error."""
        self._database = database
        self._settings = settings
        self._kafka = settings.kafka
        self._tell = tell
        self._patient = patient
        self._stop = threading.Event()
        self._listener: psycopg.Connection[Any] | None = None
        self._leased = False
        self._source: LedgerPages | None = None
        self._cluster: KafkaCluster | None = None
        self._sender: KafkaSender | None = None
        self._ranges: Ranges | None = None
        #: under way, in ledger order
        self._batches: deque[InFlight] = deque()
        #: sent, acknowledged or not
        self._sent = 0
        #: what is waited for, once it has been told
        self._told = ""
        self._failures = 0

    @property
    def position(self) -> int:
        """Everything up to here is in Kafka."""
        return self._ranges.position if self._ranges is not None else 0

    def run(self, stop: threading.Event, *, through: int | None = None) -> None:
        """Mirror until told to stop, or until everything through a sequence is in Kafka."""
        self._stop = stop
        try:
            while not stop.is_set() and (through is None or self.position < through):
                try:
                    if self._ready():
                        self._step()
                except _Stopped:
                    break
                except CursorMoved:
                    self._leave()
                except (Unreachable, psycopg.Error) as error:
                    self._recover(error)
            self._finish()
        finally:
            self._leave()
            if self._listener is not None:
                self._listener.close()

    def _ready(self) -> bool:
        """Whether this process is the one that mirrors; it stands by while another does."""
        if self._listener is None or self._listener.closed:
            self._leave()
            self._listener = self._database.connect_sync(name="tidelock mirror")
            self._listener.execute(f"LISTEN {_CHANNEL}".encode())
            self._leased = False
        # Each statement brings along what was announced meanwhile. It is of commits that are read below anyway.
        for _ in self._listener.notifies(timeout=0):
            pass
        self._leased = self._leased or leases.hold(self._listener, leases.MIRROR)
        if not self._leased:
            self._tell_once("the lease", "another mirror runs on this ledger; standing by")
            self._ranges = Ranges(self._listener)
            self._stop.wait(_PATIENCE_S)
            return False
        if self._sender is None:
            self._open()
        return True

    def _open(self) -> None:
        assert self._listener is not None
        self._ranges = Ranges(self._listener)
        self._sent = self._ranges.position
        if (end := read_ledger_end(self._listener)) < self._sent:
            cut = f"the ledger ends at sequence {end}, but events through {self._sent} were mirrored"
            raise Unreachable(f"{cut}: its tail was cut off, see `tidelock verify`")
        self._cluster = KafkaCluster(self._kafka, self._settings.event_bytes_max)
        self._cluster.look()
        self._source = LedgerPages(self._database, self._kafka.batch_events_max, self._kafka.batch_bytes_max)
        self._sender = KafkaSender(self._kafka, careful=self._failures > 0)
        self._told = ""
        self._tell(f"mirroring to {', '.join(self._kafka.brokers)} from sequence {self._sent}")

    def _step(self) -> None:
        """Send the next page, or wait: for what is under way, else for something to send."""
        assert self._source is not None
        page = self._source.read(self._sent)
        if page.messages:
            self._send(page)
            while self._under_way() > _BATCHES_MAX and not self._stop.is_set():
                self._hear(_ACK_S)
        elif self._batches:
            self._hear(_ACK_S)
        else:
            self._await_commit()

    def _send(self, page: MessagePage) -> None:
        assert self._cluster is not None
        assert self._sender is not None
        topics = self._cluster.topics(message.stream for message in page.messages)
        if not self._under_way():
            self._sender.heard_at = time.monotonic()
        for messages, whole in ((page.messages[: page.whole], True), (page.messages[page.whole :], False)):
            if messages:
                sent = self._sender.send(messages, topics, whole=whole, room=self._make_room)
                self._batches.append(sent)
                self._sent = sent.last_sequence

    def _under_way(self) -> int:
        # Parts of a commit that were acknowledged wait for its end, which is still to be sent.
        return sum(batch.waiting > 0 for batch in self._batches)

    def _make_room(self) -> None:
        if self._stop.is_set():
            raise _Stopped
        self._hear(0)

    def _hear(self, seconds: float) -> None:
        """Record what has been acknowledged. Raises Unreachable when brokers have been silent for too long."""
        assert self._sender is not None
        assert self._ranges is not None
        self._sender.poll(seconds)
        done = 0
        for number, batch in enumerate(self._batches, start=1):
            if not batch.acknowledged:
                break
            # A range ends with a commit: how far a reader is behind is counted by commits.
            done = number if batch.whole else done
        if done:
            self._ranges.record(range_of([self._batches.popleft() for _ in range(done)]))
            self._failures = 0
            self._sender.careful = False
            if self._told:
                self._told = ""
                self._tell(f"Kafka takes messages again, from sequence {self.position}")
        self._look_at_the_clock()

    def _look_at_the_clock(self) -> None:
        assert self._sender is not None
        assert self._source is not None
        self._source.tend()
        silent_s = time.monotonic() - self._sender.heard_at
        if silent_s > _SILENCE_S:
            brokers = ", ".join(self._kafka.brokers)
            said = self._sender.complaint or f"Kafka at {brokers} acknowledges nothing"
            if not self._patient and self._sender.complaint:
                raise Unreachable(said)
            self._tell_once("brokers", f"{said}; events wait in the ledger, from sequence {self.position + 1}")
        if silent_s > self._kafka.ack_timeout / SECOND:
            raise Unreachable(f"nothing was acknowledged for {silent_s:.0f} s")

    def _finish(self) -> None:
        """What is under way is given a moment, so that it need not be sent again."""
        deadline = time.monotonic() + _LAST_S
        try:
            while self._batches and self._sender is not None and time.monotonic() < deadline:
                self._hear(_ACK_S)
        except (CursorMoved, Unreachable, psycopg.Error) as error:
            log.debug("left under way: %s", error)

    def _await_commit(self) -> None:
        assert self._listener is not None
        # Whoever has nothing to record would not see it otherwise.
        if read_position(self._listener) != self.position:
            raise CursorMoved(f"the mirror's cursor is not at {self.position} any more")
        looks = 0
        while looks < _POLL_S / _PATIENCE_S and not self._stop.is_set():
            looks += 1
            for _ in self._listener.notifies(timeout=_PATIENCE_S, stop_after=1):
                return

    def _recover(self, error: Exception) -> None:
        """Leave everything half done, and be ready to try again; raises what trying again does not mend."""
        self._leave()
        if isinstance(error, psycopg.Error) and self._listener is not None:
            self._listener.close()
        if not self._patient and not (lost(error) and self._failures < _FAILURES_MAX):
            raise error
        self._failures += 1
        pause_s = min(_PAUSE_S * 2 ** min(self._failures, 20), self._kafka.pause_max / SECOND)
        said = " ".join(str(error).split())
        what = "Postgres" if "Postgres" in said else "Kafka"
        self._tell_once(what, f"{said}; trying again, events wait in the ledger")
        log.debug("trying again in %.1f s: %s", pause_s, said)
        self._stop.wait(pause_s)

    def _leave(self) -> None:
        """Forget what is under way: it is sent again from the cursor on."""
        self._batches.clear()
        if self._source is not None:
            self._source.close()
        if self._sender is not None:
            self._sender.close()
        self._source = self._sender = self._cluster = None

    def _tell_once(self, waiting_for: str, text: str) -> None:
        if self._told != waiting_for:
            self._tell(text)
            self._told = waiting_for
