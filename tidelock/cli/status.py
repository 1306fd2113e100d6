"""Status: the state of a ledger, read from one snapshot."""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg

from tidelock.api.health import (
    LEDGER,
    MIRRORED,
    TOLD_MAX,
    MirroredPartition,
    SequenceHealth,
    WantedWindows,
    WindowHealth,
    lag,
    sequence_health,
)
from tidelock.api.health import QUERIES as HEALTH
from tidelock.errors import TidelockError
from tidelock.instants import SECOND, format_instant
from tidelock.ledger.anchor import BadAnchor, read_anchors
from tidelock.ledger.sequencedatabase import last_number
from tidelock.model import Head
from tidelock.postgres.database import Database
from tidelock.postgres.migrate import status as migration_status
from tidelock.postgres.queries import load
from tidelock.postgres.reconnect import database_errors
from tidelock.settings import Settings

QUERIES = load("tidelock.cli", "sql/status.sql")


class DatabaseStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The database the ledger is in."""

    place: str
    embedded: bool
    server_version: str


class HeadStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The last event; zeros in an empty ledger."""

    ingress_sequence: int
    commit_id: int
    source_timestamp: str
    #: when that was; None in an empty ledger
    at: str | None
    digest: str


class SequenceStatus(SequenceHealth, frozen=True, rename="camel"):
    """Where sequences come from, and the state of the sequence database."""

    #: the sequence database in the settings, if any
    database: str | None = None
    #: whether it responds, and its position
    last_number: int | None = None
    problem: str | None = None


class ReaderLag(msgspec.Struct, frozen=True, rename="camel"):
    """A reader of the ledger, and its position."""

    name: str
    ingress_sequence: int
    lag_sequences: int
    #: how long the oldest unprocessed commit has waited
    lag_seconds: float


class EventsPartition(msgspec.Struct, frozen=True, rename="camel"):
    """A partition of the table of events."""

    name: str
    bytes: int


class Keys(msgspec.Struct, frozen=True):
    active: int
    revoked: int


class MigrationState(msgspec.Struct, frozen=True):
    title: str
    state: str


class AnchorStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The anchor file: through which commit it covers the ledger."""

    path: str
    lines: int
    commit_id: int | None
    at: str | None
    problem: str | None


class Status(msgspec.Struct, frozen=True, rename="camel"):
    database: DatabaseStatus
    head: HeadStatus
    sequence: SequenceStatus
    readers: list[ReaderLag]
    #: the Kafka topics of the ledger
    kafka: list[MirroredPartition]
    windows: list[WindowHealth]
    #: there are more than shown
    windows_cut: bool
    partitions: list[EventsPartition]
    identities_estimate: int
    identities_bytes: int
    salts: int
    keys: Keys
    migrations: list[MigrationState]
    anchor: AnchorStatus


def read_status(database: Database, settings: Settings) -> Status:
    with (
        database_errors("status"),
        database.connect_sync(name="tidelock status") as connection,
        connection.transaction(),
    ):
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        head = Head(*_one(connection, LEDGER["read_head"]))
        sequence = _one(connection, LEDGER["sequence_source"])
        identities, identities_bytes = _one(connection, QUERIES["identities"])
        salts, active, revoked = _one(connection, QUERIES["counts"])
        cursors = connection.execute(QUERIES["cursors"]).fetchall()
        wanted = WantedWindows(settings.windows_told_max)
        windows = wanted.found(connection.execute(HEALTH["windows"], wanted.parameters).fetchall())
        partitions = connection.execute(QUERIES["partitions"]).fetchall()
        mirrored = connection.execute(MIRRORED, (TOLD_MAX,)).fetchall()
        migrations = migration_status(connection)
        version = str(connection.info.parameter_status("server_version"))
    return Status(
        database=DatabaseStatus(database.place, database.embedded, version.split()[0]),
        head=_head_status(head),
        sequence=_sequence_status(settings, *sequence),
        readers=[
            ReaderLag(name, sequence, lag(head, sequence, skipped), max(0, waited_ns or 0) / SECOND)
            for name, sequence, skipped, waited_ns in cursors
        ],
        kafka=[MirroredPartition(*row) for row in mirrored],
        windows=[state.health() for state in windows.states],
        windows_cut=windows.cut,
        partitions=[EventsPartition(*row) for row in partitions],
        identities_estimate=identities,
        identities_bytes=identities_bytes,
        salts=salts,
        keys=Keys(active, revoked),
        migrations=[MigrationState(known.title, known.state) for known in migrations],
        anchor=_anchor_status(settings),
    )


def _head_status(head: Head) -> HeadStatus:
    at = format_instant(head.source_timestamp) if head.commit_id else None
    return HeadStatus(head.ingress_sequence, head.commit_id, str(head.source_timestamp), at, head.digest.hex())


def _sequence_status(settings: Settings, source: str, since: int, skipped: int) -> SequenceStatus:
    found = sequence_health(source, since, skipped)
    known = SequenceStatus(found.source, found.since, found.skipped)
    url = settings.event_sequence_database_url
    if url is None:
        return known
    database = Database(url, settings.connect_timeout_s)
    try:
        return msgspec.structs.replace(known, database=database.place, last_number=last_number(database))
    except TidelockError as error:
        return msgspec.structs.replace(known, database=database.place, problem=error.message)


def _anchor_status(settings: Settings) -> AnchorStatus:
    path = settings.anchor_path
    try:
        lines = read_anchors(path)
    except (OSError, BadAnchor) as error:
        return AnchorStatus(str(path), 0, None, None, str(error))
    last = lines[-1] if lines else None
    return AnchorStatus(str(path), len(lines), last.commit_id if last else None, last.at if last else None, None)


def _one(connection: psycopg.Connection[Any], query: bytes) -> tuple[Any, ...]:
    row = connection.execute(query).fetchone()
    assert row is not None, "these queries always have a row"
    return tuple(row)
