"""Status: where a ledger stands, read at one moment."""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg

from tidelock.instants import SECOND, format_instant
from tidelock.ledger.anchorfile import BadAnchor, read_anchors
from tidelock.ledger.database import Database
from tidelock.ledger.migrate import status as migration_status
from tidelock.ledger.outage import outage
from tidelock.ledger.queries import load
from tidelock.model import Head
from tidelock.ops.windows import QUERIES as WINDOWS
from tidelock.ops.windows import WantedWindows, WindowHealth
from tidelock.settings import Settings

QUERIES = load("tidelock.ops", "sql/status.sql")
LEDGER = load("tidelock.ledger", "sql/ledger.sql")


class Place(msgspec.Struct, frozen=True, rename="camel"):
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


class Reader(msgspec.Struct, frozen=True, rename="camel"):
    """A reader of the ledger and how far it is."""

    name: str
    ingress_sequence: int
    lag_sequences: int
    #: how long the oldest commit that it has not dealt with has waited
    lag_seconds: float


class Partition(msgspec.Struct, frozen=True, rename="camel"):
    """A part of the events' table."""

    name: str
    bytes: int


class Keys(msgspec.Struct, frozen=True):
    active: int
    revoked: int


class MigrationState(msgspec.Struct, frozen=True):
    title: str
    state: str


class AnchorStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The anchor file: how far it remembers the ledger."""

    path: str
    lines: int
    commit_id: int | None
    at: str | None
    problem: str | None


class Status(msgspec.Struct, frozen=True, rename="camel"):
    database: Place
    head: HeadStatus
    readers: list[Reader]
    windows: list[WindowHealth]
    #: there are more than are shown
    windows_cut: bool
    partitions: list[Partition]
    identities_estimate: int
    identities_bytes: int
    salts: int
    keys: Keys
    migrations: list[MigrationState]
    anchor: AnchorStatus


def read_status(database: Database, settings: Settings) -> Status:
    with outage("status"), database.connect_sync(name="tidelock status") as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        head = Head(*_one(connection, LEDGER["read_head"]))
        identities, identities_bytes = _one(connection, QUERIES["identities"])
        salts, active, revoked = _one(connection, QUERIES["counts"])
        cursors = connection.execute(QUERIES["cursors"]).fetchall()
        wanted = WantedWindows(settings.windows_told_max)
        windows = wanted.found(connection.execute(WINDOWS["windows"], wanted.parameters).fetchall())
        partitions = connection.execute(QUERIES["partitions"]).fetchall()
        migrations = migration_status(connection)
        version = str(connection.info.parameter_status("server_version"))
    return Status(
        Place(database.place, database.embedded, version.split()[0]),
        _head_status(head),
        [
            Reader(name, sequence, max(0, head.ingress_sequence - sequence), max(0, waited_ns or 0) / SECOND)
            for name, sequence, waited_ns in cursors
        ],
        [state.health() for state in windows.states],
        windows.cut,
        [Partition(*row) for row in partitions],
        identities,
        identities_bytes,
        salts,
        Keys(active, revoked),
        [MigrationState(known.title, known.state) for known in migrations],
        _anchor_status(settings),
    )


def _head_status(head: Head) -> HeadStatus:
    at = format_instant(head.source_timestamp) if head.commit_id else None
    return HeadStatus(head.ingress_sequence, head.commit_id, str(head.source_timestamp), at, head.digest.hex())


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
