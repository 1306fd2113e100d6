"""A server with tables that a test folds by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.budgets import HANG_S
from tests.serving import Start
from tests.views.folding import DEFINITIONS, OTHERS, Folding, folding, gone, put
from tidelock.app import Serving
from tidelock.definitions import Definitions

#: the table `others`: rows of k and n
FOLLOW = """subscription ($where: others_bool_exp, $after: String) {
    others(where: $where, after: $after) { operation fields ts_timestamp data { tenant_id k n } } }"""


class Served:
    """The server, and the fold that a test is."""

    def __init__(self, server: Serving, folded: Folding, client: httpx.AsyncClient) -> None:
        self.server = server
        self.url = server.url
        self.client = client
        self._folded = folded

    async def put(self, tenant: str = "t", **rows: int | None) -> list[str]:
        """Rows by their keys, each in a collection of its own; None: gone. Gives their times."""
        collections = [
            [gone(key, tenant, table=OTHERS) if n is None else put(key, tenant, table=OTHERS, n=n)]
            for key, n in rows.items()
        ]
        return [str(time) for time in await asyncio.to_thread(self._folded.fold, *collections)]

    async def define(self, definitions: Definitions) -> None:
        await asyncio.to_thread(self._folded.define, definitions)

    async def metric(self, name: str, **headers: str) -> float:
        text = (await self.client.get("/metrics", headers=headers)).text
        (value,) = (line.split()[1] for line in text.splitlines() if line.startswith(f"tidelock_{name} "))
        return float(value)

    async def until(self, name: str, value: float, seconds: float = HANG_S, **headers: str) -> None:
        """Until a metric has this value."""
        async with asyncio.timeout(seconds):
            while await self.metric(name, **headers) != value:  # noqa: ASYNC110  (it is the server who knows)
                await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(start: Start, **settings: Any) -> AsyncIterator[Served]:
    async with start(definitions=DEFINITIONS, **settings) as server:
        opened = folding(server.ledger.database)
        folded = await asyncio.to_thread(opened.__enter__)
        try:
            async with httpx.AsyncClient(base_url=server.url) as client:
                yield Served(server, folded, client)
        finally:
            await asyncio.to_thread(opened.__exit__, None, None, None)
