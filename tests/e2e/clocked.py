"""A server whose ledger has the time that a test sets, and a fold beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.cli.commandline import json_lines, run
from tests.running import RunningFold, folding_beside
from tests.serving import Start
from tidelock.app import Serving
from tidelock.definitions import Definitions
from tidelock.spark.runtime import Spark

Json = dict[str, Any]


class Clocked:
    """What a producer, an operator and a reader do, at times of the test's choice."""

    def __init__(self) -> None:
        #: the ledger's clock shows this, nanoseconds since 1970
        self.now = 0
        #: sequence of what was recorded last
        self.recorded = 0

    def serve(self, server: Serving, client: httpx.AsyncClient, fold: RunningFold) -> None:
        self._server, self.client, self._fold = server, client, fold

    async def send(self, at: int, events: list[Json]) -> None:
        """One request, recorded with that source timestamp."""
        self.now = at
        answer = (await self.client.post("/v1/events", json=events)).json()
        assert answer["accepted"] == len(events), answer
        assert {result["sourceTimestamp"] for result in answer["results"]} == {str(at)}
        self.recorded = answer["results"][-1]["ingressSequence"]

    async def drain(self, at: int, *windows: str) -> None:
        self.now = at
        control = {"type": "drain"} | ({"window": windows[0]} if windows else {})
        self.recorded = (await self._server.ledger.sequencer.control(control)).ingress_sequence

    async def folded(self) -> None:
        """Until all that was recorded is in the tables."""
        await asyncio.to_thread(self._fold.wait, self.recorded)

    async def command(self, *arguments: object) -> list[Json]:
        """What a command tells programs."""
        return json_lines(await asyncio.to_thread(run, self._server.ledger.database, *arguments, "--json"))

    async def printed(self, *arguments: object) -> str:
        """What it tells people."""
        return (await asyncio.to_thread(run, self._server.ledger.database, *arguments)).stdout


@asynccontextmanager
async def clocked(start: Start, spark: Spark, definitions: Definitions) -> AsyncIterator[Clocked]:
    place = Clocked()
    async with (
        start(definitions=definitions, clock=lambda _: place.now) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
        folding_beside(spark, server.ledger.database, definitions) as fold,
    ):
        place.serve(server, client, fold)
        yield place
