"""Listening: a visitor's subscription, and the last of what it said."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from tidelock.console.api import Api, ApiError

#: what is kept to be shown; older messages are counted only
KEPT = 100


@dataclass(frozen=True, slots=True)
class Message:
    """What happened to a row."""

    number: int
    operation: str
    fields: frozenset[str]
    ts_timestamp: str
    data: dict[str, Any]


class Listening:
    """One subscription at a time. Messages are taken as they come, whether or not anybody has looked at the last."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._task: asyncio.Task[None] | None = None
        self._messages: deque[Message] = deque(maxlen=KEPT)
        self._looked = True
        #: why it ended by itself
        self.trouble = ""
        self.counts: Counter[str] = Counter()

    @property
    def active(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self, document: str, table: str) -> None:
        self.stop()
        self.forget()
        self.trouble = ""
        self._task = asyncio.create_task(self._run(document, table))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def forget(self) -> None:
        self._messages.clear()
        self.counts.clear()
        self._looked = False

    def news(self) -> list[Message] | None:
        """The last messages, the newest first; None where there are no others than at the last look."""
        if self._looked:
            return None
        self._looked = True
        return list(reversed(self._messages))

    async def _run(self, document: str, table: str) -> None:
        try:
            async with aclosing(self._api.follow(document)) as payloads:
                async for payload in payloads:
                    self._take(payload[table])
        except ApiError as error:
            self.trouble = error.message
        else:
            self.trouble = "the server has ended it"

    def _take(self, update: dict[str, Any]) -> None:
        operation = update["operation"]
        self.counts[operation] += 1
        fields = frozenset(update["fields"])
        number = self.counts.total()
        self._messages.append(Message(number, operation, fields, update["ts_timestamp"], update["data"]))
        self._looked = False
