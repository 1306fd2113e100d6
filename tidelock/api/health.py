"""Health: the head of the ledger, and how far each reader lags."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import psycopg

from tidelock.instants import SECOND, format_instant
from tidelock.ledger.reader import read_head
from tidelock.model import Head
from tidelock.postgres import leases
from tidelock.postgres.pool import Connections
from tidelock.postgres.queries import load

QUERIES = load("tidelock.api", "sql/health.sql")
LEDGER = load("tidelock.ledger", "sql/ledger.sql")

TRIGGERS = "triggers"

#: called with the maximum number to report
MIRRORED = load("tidelock.mirror", "sql/ranges.sql")["mirrored"]
TOLD_MAX = 1_000


class HeadHealth(msgspec.Struct, frozen=True, rename="camel"):
    """The last event of the ledger; 0 in an empty one."""

    ingress_sequence: int
    source_timestamp: str


class ReaderHealth(msgspec.Struct, frozen=True, rename="camel"):
    """A reader of the ledger: through which event it is complete."""

    name: str
    ingress_sequence: int
    lag_sequences: int
    lag_seconds: float


class SequenceHealth(msgspec.Struct, frozen=True, rename="camel"):
    """Where sequences come from."""

    #: of the last commit: `remote` is the sequence database, `local` the ledger's own head
    source: str
    #: when the first commit got them from there; None: all did
    since: str | None
    #: sequences without an event
    skipped: int


OWN_NUMBERS = SequenceHealth("local", None, 0)


class Health(msgspec.Struct, frozen=True):
    """The ledger and its readers; `head` is null while it cannot be read."""

    head: HeadHealth | None
    readers: list[ReaderHealth]


class NotReady(Health, frozen=True, rename="camel"):
    """The same, with what has to happen first."""

    waiting_for: Sequence[str]


class MirroredPartition(msgspec.Struct, frozen=True, rename="camel"):
    """A Kafka partition: the offsets that the mirror recorded, and the range of their sequences."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    first_sequence: int
    last_sequence: int


class WindowHealth(msgspec.Struct, frozen=True, rename="camel"):
    """A window, or the ordered output of a stream, for one tenant."""

    window: str
    tenant_id: str
    watermark: str | None
    closed_through: str | None
    buffer_size: int
    late_dropped_count: int
    watermark_emitted_count: int
    max_timestamp_seen: str | None


class WindowState(NamedTuple):
    """The same with instants as they are stored."""

    window: str
    tenant_id: str
    watermark: int | None
    closed_through: int | None
    buffer_size: int
    late_dropped_count: int
    watermark_emitted_count: int
    max_timestamp_seen: int | None

    def health(self) -> WindowHealth:
        shown = {name: _shown(getattr(self, name)) for name in ("watermark", "closed_through", "max_timestamp_seen")}
        return WindowHealth(**(self._asdict() | shown))


@dataclass(frozen=True, slots=True)
class Windows:
    """The reported windows, by tenant and name."""

    states: Sequence[WindowState] = ()
    #: there are more
    cut: bool = False


NO_WINDOWS = Windows()


@dataclass(frozen=True, slots=True)
class WantedWindows:
    """Which windows are requested: at most this many, of all tenants or one, all windows or one."""

    limit: int
    tenant_id: str | None = None
    window: str | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the query `windows`; it fetches one more, to know whether there are more."""
        return {"tenant_id": self.tenant_id, "window": self.window, "limit": self.limit + 1}

    def found(self, rows: Sequence[Sequence[Any]]) -> Windows:
        """The result of the query."""
        return Windows([WindowState(*row) for row in rows[: self.limit]], len(rows) > self.limit)


class EventHealth(Health, frozen=True, rename="camel"):
    """The same with the state of every window; `windowsCut` is present, and true, if there are more than are listed.

    `sequence` says where sequences come from: `remote` is a sequence database. `kafka` says where in Kafka the ledger
    is, if there is a mirror and all tenants may be read.
    """

    sequence: SequenceHealth
    windows: list[WindowHealth]
    windows_cut: bool | msgspec.UnsetType = msgspec.UNSET
    kafka: list[MirroredPartition] | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True)
class Probed:
    """What a probe has found."""

    #: None: the reader does not exist yet
    reader: ReaderHealth | None
    #: what has to happen before posted events will be processed; None: nothing
    waiting_for: str | None = None


@dataclass(frozen=True, slots=True)
class Checkup:
    """Health, and whether there is anything to wait for."""

    health: Health
    waiting_for: Sequence[str] = ()
    #: this and the windows, if requested
    sequence: SequenceHealth = OWN_NUMBERS
    windows: Windows = NO_WINDOWS

    def event_health(self, mirrored: list[MirroredPartition] | None = None) -> EventHealth:
        told = [state.health() for state in self.windows.states]
        cut = True if self.windows.cut else msgspec.UNSET
        kafka = msgspec.UNSET if mirrored is None else mirrored
        return EventHealth(self.health.head, self.health.readers, self.sequence, told, cut, kafka=kafka)

    def in_time(self, lag_max: int | None) -> bool:
        """Whether no reader lags by more than this, in nanoseconds."""
        return lag_max is None or all(reader.lag_seconds * SECOND <= lag_max for reader in self.health.readers)


#: the progress of a reader, given the head
Probe = Callable[[psycopg.AsyncConnection[Any], Head], Awaitable[Probed]]

UNKNOWN = Health(None, [])


async def read_health(
    connections: Connections, probes: Sequence[Probe], wanted: WantedWindows | None = None
) -> Checkup:
    """Raises Unreachable if the ledger does not respond. Windows, and where sequences come from, are read only if
    requested.
    """

    async def read(connection: psycopg.AsyncConnection[Any]) -> Checkup:
        head = await read_head(connection)
        probed = [await probe(connection, head) for probe in probes]
        readers = [found.reader for found in probed if found.reader is not None]
        health = Health(HeadHealth(head.ingress_sequence, str(head.source_timestamp)), readers)
        waiting_for = [found.waiting_for for found in probed if found.waiting_for is not None]
        if wanted is None:
            return Checkup(health, waiting_for)
        return Checkup(health, waiting_for, await _sequence(connection), await _windows(connection, wanted))

    return await connections.ask(read)


def fold_probe(*, needed: bool) -> Probe:
    """The fold: `needed` if this server is ready only while one runs. Otherwise it is reported once it has run."""

    async def probe(connection: psycopg.AsyncConnection[Any], head: Head) -> Probed:
        sequence, skipped, waited_ns = await read_lag(connection, "fold")
        if sequence is None and not needed:
            return Probed(None)
        reader = _behind("fold", head, sequence or 0, skipped, waited_ns)
        waits = needed and not await leases.is_held(connection, leases.READY)
        return Probed(reader, "the fold is starting" if waits else None)

    return probe


def tail_probe(last_commit: Callable[[], int]) -> Probe:
    """Whether the ledger is still at least as long as the last commit of this process: otherwise nothing is
    recorded.
    """
    seen = 0

    async def probe(connection: psycopg.AsyncConnection[Any], head: Head) -> Probed:
        nonlocal seen
        seen = max(seen, last_commit(), head.commit_id)
        # Commits recorded after the head was read are visible when it is read again.
        if head.commit_id < seen and (await read_head(connection)).commit_id < seen:
            message = f"the ledger ends at commit {head.commit_id}, but had commit {seen}: its tail is gone"
            return Probed(None, f"{message}; no events are recorded")
        return Probed(None)

    return probe


async def triggers_probe(connection: psycopg.AsyncConnection[Any], head: Head) -> Probed:
    """The evaluator of triggers, once there is a trigger."""
    sequence, skipped, waited_ns = await read_lag(connection, TRIGGERS)
    return Probed(None if sequence is None else _behind(TRIGGERS, head, sequence, skipped, waited_ns))


def reader_probe(name: str) -> Probe:
    """A configured reader (Kafka, ClickHouse, the lake): reported even before it has read anything."""

    async def probe(connection: psycopg.AsyncConnection[Any], head: Head) -> Probed:
        sequence, skipped, waited_ns = await read_lag(connection, name)
        return Probed(_behind(name, head, sequence or 0, skipped, waited_ns))

    return probe


def _behind(name: str, head: Head, sequence: int, skipped: int, waited_ns: int | None) -> ReaderHealth:
    return ReaderHealth(name, sequence, lag(head, sequence, skipped), max(0, waited_ns or 0) / SECOND)


async def _sequence(connection: psycopg.AsyncConnection[Any]) -> SequenceHealth:
    row = await (await connection.execute(LEDGER["sequence_source"])).fetchone()
    assert row is not None, "the ledger has one head"
    return sequence_health(*row)


def sequence_health(source: str, since: int, skipped: int) -> SequenceHealth:
    """As in the head; 0 means from the beginning."""
    return SequenceHealth(source, format_instant(since) if since else None, skipped)


async def _windows(connection: psycopg.AsyncConnection[Any], wanted: WantedWindows) -> Windows:
    found = await connection.execute(QUERIES["windows"], wanted.parameters)
    return wanted.found(await found.fetchall())


def lag(head: Head, through: int, skipped: int) -> int:
    """How many events a reader lags: sequences skipped by a sequence database do not count."""
    return max(0, head.ingress_sequence - head.skipped - (through - skipped))


async def read_lag(connection: psycopg.AsyncConnection[Any], reader: str) -> tuple[int | None, int, int | None]:
    """Through which sequence a reader is complete, how many numbers were skipped up to there, and how long the oldest
    commit after it has waited, in nanoseconds.
    """
    row = await (await connection.execute(QUERIES["read_lag"], (reader,))).fetchone()
    assert row is not None, "this query always has a row"
    return row[0], row[1], row[2]


def _shown(instant: int | None) -> str | None:
    return None if instant is None else format_instant(instant)
