"""Vital signs over HTTP: alive, ready, how far the readers are, and the metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
import psycopg
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from tidelock.errors import TidelockError
from tidelock.ops.access import Access
from tidelock.ops.health import UNKNOWN, Health, NotReady, Probe, read_health
from tidelock.ops.metrics import Metrics
from tidelock.ops.mirrored import MIRRORED, TOLD_MAX, MirroredPartition
from tidelock.ops.parameters import Parameters
from tidelock.ops.problems import JSON
from tidelock.ops.windows import WantedWindows
from tidelock.postgres.pool import Connections
from tidelock.settings import Settings

#: which windows `/admin/event-health` tells of
HEALTH = ("tenantId", "window")


#: looks at something that metrics tell of
Look = Callable[[psycopg.AsyncConnection[Any]], Awaitable[None]]


class Vitals:
    """The handlers of the vital signs."""

    def __init__(
        self,
        connections: Connections,
        access: Access,
        metrics: Metrics,
        settings: Settings,
        probes: Sequence[Probe],
        looks: Sequence[Look] = (),
    ) -> None:
        """`looks` are taken before metrics are told."""
        self._connections = connections
        self._access = access
        self._metrics = metrics
        self._settings = settings
        self._probes = probes
        self._looks = looks

    async def alive(self, _: Request) -> Response:
        return Response(b'{"status":"ok"}', media_type=JSON)

    async def ready(self, _: Request) -> Response:
        try:
            found = await read_health(self._connections, self._probes)
        except TidelockError:
            return self._not_ready(UNKNOWN)
        if found.waiting_for:
            return self._not_ready(NotReady(found.health.head, found.health.readers, found.waiting_for))
        if not found.in_time(self._settings.reader_lag_max):
            return self._not_ready(found.health)
        return Response(msgspec.json.encode(found.health), media_type=JSON)

    async def health(self, request: Request) -> Response:
        grant = await self._access.reader(request.scope)
        parameters = Parameters(request.scope["query_string"], HEALTH)
        tenant_id = grant.reads(parameters.name("tenantId"))
        wanted = WantedWindows(self._settings.windows_told_max, tenant_id, parameters.name("window"))
        found = await read_health(self._connections, self._probes, wanted)
        kafka = self._settings.kafka.brokers and tenant_id is None
        mirrored = await self._connections.ask(_read_mirrored) if kafka else None
        return Response(msgspec.json.encode(found.event_health(mirrored)), media_type=JSON)

    async def metrics(self, request: Request) -> Response:
        await self._access.scraper(request.scope)
        try:
            wanted = WantedWindows(self._settings.windows_told_max)
            self._metrics.looked(await read_health(self._connections, self._probes, wanted))
            for look in self._looks:
                await self._connections.ask(look)
        except TidelockError:
            pass  # what is measured here is wanted most when the database is away
        return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    def _not_ready(self, health: Health) -> Response:
        retry = {"retry-after": str(self._settings.retry_after_s)}
        body = msgspec.json.encode(health)
        return Response(body, status_code=HTTPStatus.SERVICE_UNAVAILABLE, media_type=JSON, headers=retry)


async def _read_mirrored(connection: psycopg.AsyncConnection[Any]) -> list[MirroredPartition]:
    return [MirroredPartition(*row) async for row in await connection.execute(MIRRORED, (TOLD_MAX,))]
