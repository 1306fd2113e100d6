"""Lists of the ledger over HTTP: its events, and the events of one run."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tidelock.ledger.reader import Slice, read_caused, read_page
from tidelock.ops.access import Access
from tidelock.ops.paging import read_paging
from tidelock.ops.parameters import Parameters
from tidelock.ops.problems import JSON
from tidelock.postgres.pool import Connections
from tidelock.settings import Settings

EVENTS = ("tenantId", "stream", "customerRef", "causalityKey", "from", "to", "after", "before", "order", "limit",
          "cursor")  # fmt: skip
CAUSALITY = ("tenantId", "limit", "cursor")


class Lists:
    """The handlers of the lists."""

    def __init__(self, connections: Connections, access: Access, settings: Settings) -> None:
        self._connections = connections
        self._access = access
        self._settings = settings

    async def events(self, request: Request) -> Response:
        grant = await self._access.reader(request.scope)
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
            page = await read_page(
                connection,
                paging.narrow(wanted),
                rows_max=paging.limit,
                bytes_max=self._settings.page_bytes_max,
                descending=paging.descending,
            )
        return Response(paging.encode(page), media_type=JSON)

    async def causality(self, request: Request) -> Response:
        grant = await self._access.reader(request.scope)
        parameters = Parameters(request.scope["query_string"], CAUSALITY)
        paging = read_paging(parameters, self._settings)
        key = request.path_params["key"]
        wanted = Slice(tenant_id=grant.reads(parameters.name("tenantId")), causality_key=key)
        async with self._connections.lend() as connection:
            page = await read_caused(
                connection,
                paging.narrow(wanted),
                rows_max=paging.limit,
                bytes_max=self._settings.page_bytes_max,
            )
        return Response(paging.encode(page), media_type=JSON)
