"""A client of server-sent events, line by line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.budgets import HANG_S


class Events:
    """The events of one answer."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()
        #: comments that came between
        self.comments = 0

    async def next(self, seconds: float = HANG_S) -> tuple[str, str]:
        """Name and data of the next event."""
        name = data = ""
        async with asyncio.timeout(seconds):
            async for line in self._lines:
                if line.startswith(":"):
                    self.comments += 1
                elif line.startswith("event:"):
                    name = line.removeprefix("event:").strip()
                elif line.startswith("data:"):
                    data = line.removeprefix("data:").strip()
                elif name:
                    return name, data
        raise EOFError

    async def data(self, seconds: float = HANG_S) -> Any:
        name, data = await self.next(seconds)
        assert name == "next", name
        return json.loads(data)["data"]

    async def errors(self) -> Any:
        name, data = await self.next()
        assert name == "next", name
        return json.loads(data)["errors"]

    async def ended(self) -> bool:
        """Whether `complete` was the last."""
        assert await self.next() == ("complete", "")
        try:
            await self.next()
        except EOFError:
            return True
        return False


@asynccontextmanager
async def streamed(
    client: httpx.AsyncClient, query: str, *, headers: Mapping[str, str] | None = None, **variables: Any
) -> AsyncIterator[Events]:
    """What a request gives by events."""
    sent = {"accept": "text/event-stream", **(headers or {})}
    async with client.stream(
        "POST", "/graphql", json={"query": query, "variables": variables}, headers=sent, timeout=30
    ) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Events(response)
