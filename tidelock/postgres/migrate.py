"""Migrations: the numbered files of `migrations/`, each applied once, in order, and never changed after."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Literal

import psycopg
from psycopg.rows import TupleRow

from tidelock.errors import SettingsError, TidelockError

_Connection = psycopg.Connection[TupleRow]

# Held while migrating: several processes of one installation start together. The number is only ours.
_LOCK = 7_140_331_586_207_113_001
_FILE = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")

_CREATE = """
CREATE TABLE IF NOT EXISTS migrations (
    number     integer     PRIMARY KEY,
    name       text        NOT NULL,
    sha256     text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)"""
_RECORD = "INSERT INTO migrations (number, name, sha256) VALUES (%s, %s, %s)"
_APPLIED = "SELECT number, name, sha256, applied_at FROM migrations ORDER BY number"


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    #: the file's name without number and ending
    name: str
    sql: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.sql).hexdigest()

    @property
    def title(self) -> str:
        return f"{self.number:04}_{self.name}"


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    """One migration, as the code and the database know it."""

    #: number and name, as in the file's name
    title: str
    #: `changed`: applied with a different text; `unknown`: applied by a newer version of Tidelock
    state: Literal["applied", "missing", "changed", "unknown"]
    applied_at: datetime | None


def migrate(connection: _Connection, directory: Traversable | None = None) -> list[str]:
    """Apply missing migrations; returns the titles applied now. A failure keeps the earlier ones."""
    applied: list[str] = []
    states = status(connection, directory)
    _refuse_foreign(states)
    if all(known.state == "applied" for known in states):
        return applied
    for migration in read_migrations(directory):
        with connection.transaction():
            # Checked again under the lock for each: another process may be applying the same ones.
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            connection.execute(_CREATE)
            states = status(connection, directory)
            _refuse_foreign(states)
            if any(known.title == migration.title and known.state == "missing" for known in states):
                _apply(connection, migration)
                applied.append(migration.title)
    return applied


def status(connection: _Connection, directory: Traversable | None = None) -> list[MigrationStatus]:
    """All migrations either side knows, in order. Changes nothing."""
    recorded = {number: (name, sha256, at) for number, name, sha256, at in _applied(connection)}
    found = []
    for migration in read_migrations(directory):
        row = recorded.pop(migration.number, None)
        if row is None:
            found.append(MigrationStatus(migration.title, "missing", None))
        else:
            same = row[:2] == (migration.name, migration.sha256)
            found.append(MigrationStatus(migration.title, "applied" if same else "changed", row[2]))
    unknown = [MigrationStatus(f"{n:04}_{name}", "unknown", at) for n, (name, _, at) in recorded.items()]
    return sorted(found + unknown, key=lambda known: known.title)


def read_migrations(directory: Traversable | None = None) -> list[Migration]:
    """The migrations of this version, by number."""
    folder = directory if directory is not None else files("tidelock.postgres").joinpath("migrations")
    migrations: dict[int, Migration] = {}
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if not file.name.endswith(".sql"):
            continue
        match = _FILE.fullmatch(file.name)
        if match is None:
            raise ValueError(f"{file.name} is not of the form 0001_name.sql")
        # A checkout with other line ends is the same migration.
        migration = Migration(int(match[1]), match[2], file.read_bytes().replace(b"\r\n", b"\n"))
        if (other := migrations.setdefault(migration.number, migration)) is not migration:
            raise ValueError(f"{other.title} and {migration.title} have the same number")
    return list(migrations.values())


def _applied(connection: _Connection) -> list[TupleRow]:
    exists = connection.execute("SELECT to_regclass('migrations') IS NOT NULL").fetchone()
    return connection.execute(_APPLIED).fetchall() if exists == (True,) else []


def _refuse_foreign(states: list[MigrationStatus]) -> None:
    if unknown := [known.title for known in states if known.state == "unknown"]:
        raise SettingsError(
            f"The database is newer than this Tidelock, which does not know its migration {', '.join(unknown)}. "
            "Install the newer version again, or use another database."
        )
    if changed := [known.title for known in states if known.state == "changed"]:
        raise SettingsError(
            f"The text of migration {', '.join(changed)} differs from what was applied to this database. An applied "
            "migration never changes: restore its text and put the change into a new one."
        )


def _apply(connection: _Connection, migration: Migration) -> None:
    try:
        connection.execute(migration.sql)
        connection.execute(_RECORD, (migration.number, migration.name, migration.sha256))
    except psycopg.OperationalError:
        raise  # The connection, not the migration.
    except psycopg.errors.DuplicateTable as error:
        # A name that a version takes for itself was anyone's before.
        raise SettingsError(
            f"Migration {migration.title} was rolled back: {error.diag.message_primary}. If that is the name of one of "
            "your own definitions, start the version that made it, rename it in tidelock.toml, wait until the fold has "
            "built it under its new name, and migrate again."
        ) from error
    except psycopg.Error as error:
        raise TidelockError(f"Migration {migration.title} failed and was rolled back: {error}") from error
