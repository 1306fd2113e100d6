"""The workers of triggers in a server: the evaluator on a thread, and delivery. Several servers share the work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

from tidelock.postgres.database import Database
from tidelock.settings import Settings
from tidelock.triggers.delivery import open_delivery
from tidelock.triggers.evaluator import Evaluator
from tidelock.triggers.outbox import EventType
from tidelock.triggers.registry import Recorder, disable


class TriggerWorkers:
    """From `start` to `close`."""

    def __init__(self, settings: Settings, database: Database, recorder: Recorder) -> None:
        self._database = database
        self._recorder = recorder
        self._evaluator = Evaluator(database)
        self._delivery = open_delivery(settings, database, self._disable)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._evaluator.run, args=(self._stop,), name="triggers", daemon=True)

    async def start(self) -> None:
        self._thread.start()
        await self._delivery.start()

    async def close(self) -> None:
        self._stop.set()
        await self._delivery.close()
        await asyncio.to_thread(self._thread.join)

    @property
    def transitions(self) -> Mapping[EventType, int]:
        """How many this process has found, by type."""
        return self._evaluator.transitions

    @property
    def attempts(self) -> Mapping[str, int]:
        """How many deliveries this process has tried, by what came of them."""
        return self._delivery.dispatch.attempts

    async def _disable(self, name: str) -> int:
        async with await self._database.connect(name="tidelock triggers") as connection:
            return await disable(connection, self._recorder, name)
