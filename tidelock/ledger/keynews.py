"""News of API keys: hears when one is made or revoked, so that what was looked up can be relied on until then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg

from tidelock.errors import TidelockError
from tidelock.postgres.database import Database
from tidelock.postgres.queries import load

QUERIES = load("tidelock.ledger", "sql/apikeys.sql")

# A notification may be lost on its way (a connection that only looks alive, a pooler): look this often in any case.
_POLL_S = 1.0
_ANSWER_S = 2.0


class KeyNews:
    """Listens for as long as the server runs."""

    def __init__(self, database: Database) -> None:
        self._database = database
        #: called when keys have changed, or may have
        self.on_change: list[Callable[[], None]] = []
        self._heard: tuple[Any, ...] | None = None
        self._live_until = 0.0

    @property
    def live(self) -> bool:
        """Whether changes are heard of. If not, only the database knows."""
        return time.monotonic() < self._live_until

    async def run(self) -> None:
        while True:
            with suppress(psycopg.Error, TidelockError, TimeoutError):
                async with await self._database.connect(name="tidelock keys") as connection:
                    await connection.execute("LISTEN tidelock_keys")
                    # What happened before it listened was not heard.
                    self._heard = None
                    await self._follow(connection)
            self._live_until = 0.0
            self._tell()
            await asyncio.sleep(_POLL_S)

    async def _follow(self, connection: psycopg.AsyncConnection[Any]) -> None:
        while True:
            asked = time.monotonic()
            async with asyncio.timeout(_ANSWER_S):
                found = await (await connection.execute(QUERIES["count_keys"])).fetchone()
            if found != self._heard:
                self._heard = found
                self._tell()
            self._live_until = asked + _POLL_S + _ANSWER_S
            async for _ in connection.notifies(timeout=_POLL_S):
                self._tell()

    def _tell(self) -> None:
        for listener in self.on_change:
            listener()
