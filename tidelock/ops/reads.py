"""Reads of the ledger over HTTP: its events, the events of one run, its health."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

import msgspec
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from tidelock.errors import TidelockError
from tidelock.ledger.causality import read_caused
from tidelock.ledger.connections import Connections
from tidelock.ledger.reader import Slice, read_events
from tidelock.ops.access import Access, Grant
from tidelock.ops.health import UNKNOWN, EventHealth, Probe, read_health
from tidelock.ops.metrics import Metrics
from tidelock.ops.paging import read_paging
from tidelock.ops.parameters import Parameters
from tidelock.ops.problems import JSON
from tidelock.settings import Settings

EVENTS = ("tenantId", "stream", "customerRef", "causalityKey", "from", "to", "after", "before", "order", "limit",
          "cursor")  # fmt: skip
CAUSALITY = ("tenantId", "limit", "cursor")


class Reads:
    """The handlers of the read routes."""

    def __init__(
        self, connections: Connections, access: Access, metrics: Metrics, settings: Settings, probes: Sequence[Probe]
    ) -> None:
        self._connections = connections
        self._access = access
        self._metrics = metrics
        self._settings = settings
        self._probes = probes

    async def events(self, request: Request) -> Response:
        grant = await self._reader(request)
        parameters = Parameters(request.scope["query_string"], EVENTS)
        paging = read_paging(parameters, self._settings, order=parameters.choice("order", ("asc", "desc")))
        wanted = Slice(
            tenant_id=grant.reads(parameters.name("tenantId")),
            stream=parameters.name("stream"),
            customer_ref=parameters.text("customerRef"),
            causality_key=parameters.text("causalityKey"),
            occurred_from=parameters.instant("from"),
            occurred_to=parameters.instant("to"),
            after=parameters.sequence("after"),
            before=parameters.sequence("before"),
        )
        async with self._connections.lend() as connection:
            found = await read_events(
                connection, paging.narrow(wanted), limit=paging.limit + 1, descending=paging.descending
            )
        return Response(paging.encode(found), media_type=JSON)

    async def causality(self, request: Request) -> Response:
        grant = await self._reader(request)
        parameters = Parameters(request.scope["query_string"], CAUSALITY)
        paging = read_paging(parameters, self._settings)
        key = request.path_params["key"]
        wanted = Slice(tenant_id=grant.reads(parameters.name("tenantId")), causality_key=key)
        async with self._connections.lend() as connection:
            found = await read_caused(connection, paging.narrow(wanted), limit=paging.limit + 1)
        return Response(paging.encode(found), media_type=JSON)

    async def alive(self, _: Request) -> Response:
        return Response(b'{"status":"ok"}', media_type=JSON)

    async def ready(self, _: Request) -> Response:
        try:
            health = await read_health(self._connections, self._probes)
        except TidelockError:
            retry = {"retry-after": str(self._settings.retry_after_s)}
            body = msgspec.json.encode(UNKNOWN)
            return Response(body, status_code=HTTPStatus.SERVICE_UNAVAILABLE, media_type=JSON, headers=retry)
        return Response(msgspec.json.encode(health), media_type=JSON)

    async def health(self, request: Request) -> Response:
        await self._reader(request)
        Parameters(request.scope["query_string"], ())
        health = await read_health(self._connections, self._probes)
        return Response(msgspec.json.encode(EventHealth(health.head, health.readers, [])), media_type=JSON)

    async def metrics(self, request: Request) -> Response:
        (await self._reader(request)).need_all_tenants()
        try:
            head = (await read_health(self._connections, ())).head
        except TidelockError:
            head = None  # what is measured here is wanted most when the database is away
        if head is not None:
            self._metrics.head.set(head.ingress_sequence)
        return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _reader(self, request: Request) -> Grant:
        return (await self._access.grant(dict(request.scope["headers"]))).need("read")
