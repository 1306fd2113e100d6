"""Positions: how far a file was imported, kept in the ledger's own database."""

from __future__ import annotations

from hashlib import file_digest
from pathlib import Path
from typing import Any

import psycopg

from tidelock.errors import SettingsError
from tidelock.ledger.queries import load
from tidelock.ops.files.plainfile import open_file

QUERIES = load("tidelock.ops", "sql/imports.sql")


class Position:
    """How far one import has come."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], key: str, path: Path) -> None:
        self._connection = connection
        self._key = key
        self._name = path.name

    async def read(self) -> int:
        """0 also when the file was imported to its end: then all of it is looked at again."""
        row = await (await self._connection.execute(QUERIES["read_position"], [self._key])).fetchone()
        return 0 if row is None or row[1] else int(row[0])

    async def move(self, rows: int, *, finished: bool) -> None:
        values = {"file": self._key, "name": self._name, "rows": rows, "finished": finished}
        await self._connection.execute(QUERIES["move_position"], values)


def digest_of(path: Path) -> str:
    """What tells a file from others, whatever its name."""
    with open_file(path) as file:
        try:
            return file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise SettingsError(f"{path} cannot be read: {error.strerror}") from None
