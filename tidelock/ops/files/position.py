"""Positions: how far a file was imported, kept in the ledger's own database."""

from __future__ import annotations

from hashlib import file_digest
from pathlib import Path
from typing import Any

import psycopg

from tidelock.errors import SettingsError
from tidelock.ops.files.plainfile import open_file
from tidelock.postgres.database import Database
from tidelock.postgres.queries import load
from tidelock.postgres.reconnect import Steady

QUERIES = load("tidelock.ops", "sql/imports.sql")


class Position:
    """How far one import has come. It outlives a restart of the database, as the import does."""

    def __init__(self, database: Database, key: str, path: Path) -> None:
        self._database = database
        self._key = key
        self._name = path.name
        # A position that is lost costs a repeat, nothing else.
        session = "SET synchronous_commit = off"
        self._steady = Steady(database, "tidelock import", session=session, patience=database.patience)

    async def read(self) -> int:
        """0 also when the file was imported to its end: then all of it is looked at again."""

        async def step(connection: psycopg.AsyncConnection[Any]) -> Any:
            return await (await connection.execute(QUERIES["read_position"], [self._key])).fetchone()

        row = await self._steady.run(step)
        return 0 if row is None or row[1] else int(row[0])

    async def move(self, rows: int, *, finished: bool) -> None:
        values = {"file": self._key, "name": self._name, "rows": rows, "finished": finished}
        await self._steady.run(lambda connection: connection.execute(QUERIES["move_position"], values))

    async def close(self) -> None:
        await self._steady.close()


def digest_of(path: Path) -> str:
    """What tells a file from others, whatever its name."""
    with open_file(path) as file:
        try:
            return file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise SettingsError(f"{path} cannot be read: {error.strerror}") from None
