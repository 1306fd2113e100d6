"""The runner: mirrors the ledger for as long as it runs, whatever fails meanwhile.

The cursor moves when brokers have acknowledged, never before: killed at any moment, it repeats a few events and skips
none. While brokers are unreachable events wait in the ledger, with at most a queue of them in memory.
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
from tidelock.postgres.course import IDLE, Failure, Turn, failure_of
from tidelock.postgres.database import Database
from tidelock.postgres.listener import LEDGER_CHANNEL
from tidelock.postgres.loop import Reader, ReaderLoop, Saying
from tidelock.postgres.reconnect import NoDatabase, in_words, lost
from tidelock.settings import Settings

log = logging.getLogger(__name__)

_ACK_S = 0.05
_BATCHES_MAX = 20
#: brokers silent for this long are reported
_SILENCE_S = 5.0
#: how often even an impatient mirror reopens a lost connection to Postgres
_FAILURES_MAX = 6
#: how long messages in flight may still take when it is told to stop
_LAST_S = 5.0


class _Stopped(Exception):
    """It was told to stop in the middle of a page."""


def calm_collector() -> None:
    """For a process that does nothing else: a page is thousands of young objects, none of them garbage until it is
    sent, and the collector would look for some after every 700."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


class Mirror(Reader):
    """The mirror of a ledger; others stand by."""

    def __init__(self, database: Database, settings: Settings, tell: Callable[[str], None], *, patient: bool) -> None:
        """`patient`: wait for unreachable brokers. Otherwise they are an error."""
        self._database = database
        self._settings = settings
        self._kafka = settings.kafka
        self.pause_max_s = self._kafka.pause_max / SECOND
        self._saying = Saying(tell)
        self._patient = patient
        self._stop = threading.Event()
        self._connection: psycopg.Connection[Any] | None = None
        self._source: LedgerPages | None = None
        self._cluster: KafkaCluster | None = None
        self._sender: KafkaSender | None = None
        self._ranges: Ranges | None = None
        #: in flight, in ledger order
        self._batches: deque[InFlight] = deque()
        #: sent, acknowledged or not
        self._sent = 0
        #: in a row, until something is acknowledged
        self._failures = 0

    @property
    def position(self) -> int:
        """Everything up to here is in Kafka."""
        return self._ranges.position if self._ranges is not None else 0

    def run(self, stop: threading.Event, *, through: int | None = None) -> None:
        """Mirror until told to stop, or until everything through a sequence is in Kafka."""
        self._stop = stop
        loop = ReaderLoop(self._database, [self], name="tidelock mirror", channels=[LEDGER_CHANNEL])
        loop.run(stop, done=lambda: through is not None and self.position >= through)

    def open(self, connection: psycopg.Connection[Any]) -> bool:
        leased = leases.hold(connection, leases.MIRROR)
        self._connection, self._ranges = connection, Ranges(connection)
        if not leased:
            self._saying.once("the lease", "another mirror is running on this ledger; standing by")
            return False
        self._sent = self._ranges.position
        if (end := read_ledger_end(connection)) < self._sent:
            cut = f"the ledger ends at sequence {end}, but events through {self._sent} were mirrored"
            raise Unreachable(f"{cut}: its tail was cut off, see `tidelock verify`")
        self._cluster = KafkaCluster(self._kafka, self._settings.event_bytes_max)
        self._cluster.look()
        self._source = LedgerPages(self._database, self._kafka.batch_events_max, self._kafka.batch_bytes_max)
        self._sender = KafkaSender(self._kafka, careful=self._failures > 0)
        self._saying.over()
        self._saying.tell(f"mirroring to {', '.join(self._kafka.brokers)} from sequence {self._sent}")
        return True

    def turn(self) -> Turn:
        """Send the next page, or receive acknowledgements."""
        assert self._source is not None
        assert self._connection is not None
        before = self.position
        page = self._source.read(self._sent)
        try:
            if page.messages:
                self._send(page)
                while self._under_way() > _BATCHES_MAX and not self._stop.is_set():
                    self._hear(_ACK_S)
            elif self._batches:
                self._hear(_ACK_S)
            else:
                # One that has nothing to record would not see it otherwise.
                if read_position(self._connection) != self.position:
                    raise CursorMoved(f"another process has moved the mirror's cursor from {self.position}")
                return IDLE
        except _Stopped:
            return IDLE
        return Turn(due_s=0.0, healthy=self.position > before)

    def finish(self) -> None:
        """Messages in flight get a moment, so that they need not be sent again."""
        deadline = time.monotonic() + _LAST_S
        try:
            while self._batches and self._sender is not None and time.monotonic() < deadline:
                self._hear(_ACK_S)
        except (CursorMoved, Unreachable, psycopg.Error) as error:
            log.debug("abandoned in flight: %s", error)

    def leave(self) -> None:
        """Drop messages in flight: they are sent again from the cursor on."""
        self._batches.clear()
        if self._source is not None:
            self._source.close()
        if self._sender is not None:
            self._sender.close()
        self._source = self._sender = self._cluster = None

    def failed(self, error: Exception) -> Failure:
        failure = failure_of(error)
        if failure in (Failure.FATAL, Failure.AGAIN):
            return failure
        if failure is Failure.DEFECT and not isinstance(error, psycopg.Error):
            raise error
        if not self._patient and not (lost(error) and self._failures < _FAILURES_MAX):
            raise error
        self._failures += 1
        topic = "Postgres" if isinstance(error, psycopg.Error | NoDatabase) else "Kafka"
        self._saying.once(topic, f"{in_words(error)}; retrying, while events wait in the ledger")
        log.debug("trying again: %s", error)
        return Failure.AWAY

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
        # Acknowledged parts of a commit wait for its end, which is still to be sent.
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
            # A range ends with a commit: the lag of readers is counted in commits.
            done = number if batch.whole else done
        if done:
            self._ranges.record(range_of([self._batches.popleft() for _ in range(done)]))
            self._failures = 0
            self._sender.careful = False
            if self._saying.over():
                self._saying.tell(f"Kafka accepts messages again, from sequence {self.position}")
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
            self._saying.once("brokers", f"{said}; events wait in the ledger, from sequence {self.position + 1}")
        if silent_s > self._kafka.ack_timeout / SECOND:
            raise Unreachable(f"nothing was acknowledged for {silent_s:.0f} s")
