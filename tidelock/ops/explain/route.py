"""Explaining over HTTP."""

from __future__ import annotations

import re

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidelock.errors import RequestError
from tidelock.live.shapes import Shapes
from tidelock.model import DEFAULT_TENANT
from tidelock.ops.access import Access
from tidelock.ops.explain.explaining import Asked, Explaining, Limits
from tidelock.ops.paging import read_paging
from tidelock.ops.parameters import Parameters, parse_instant, required
from tidelock.ops.problems import JSON
from tidelock.postgres.pool import Connections
from tidelock.settings import Settings

EXPLAIN = ("metric", "customerRef", "period", "group", "groupNull", "asOf", "tenantId", "limit", "cursor")

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class Explain:
    """The handler of `/v1/explain`."""

    def __init__(self, connections: Connections, access: Access, settings: Settings) -> None:
        self._connections = connections
        self._access = access
        self._settings = settings
        self._shapes = Shapes(settings.definitions)

    async def explain(self, request: Request) -> Response:
        grant = await self._access.reader(request.scope)
        parameters = Parameters(request.scope["query_string"], EXPLAIN)
        paging = read_paging(parameters, self._settings)
        tenant_id = grant.reads(parameters.name("tenantId")) or DEFAULT_TENANT
        asked = _asked(parameters, tenant_id)
        limits = limits_of(self._settings)
        async with self._connections.lend() as connection:
            found = await Explaining(connection, self._shapes, limits).explain(asked, paging)
        return Response(msgspec.json.encode(found), media_type=JSON)


def limits_of(settings: Settings) -> Limits:
    return Limits(settings.explain_timeout, settings.page_bytes_max)


def parse_period(text: str) -> int:
    """An instant of a period, mostly its start; a bare date is its midnight. Raises ValueError."""
    return parse_instant(f"{text}T00:00:00Z" if _DATE.fullmatch(text) else text)


def _asked(parameters: Parameters, tenant_id: str) -> Asked:
    period, group = parameters.text("period"), parameters.text("group")
    none = parameters.choice("groupNull", ("true", "false")) == "true"
    if none and group is not None:
        raise RequestError("group and groupNull are two groups; give one", field="groupNull")
    try:
        instant = None if period is None else parse_period(period)
    except ValueError as error:
        raise RequestError(f"period: {error}", field="period") from None
    return Asked(
        tenant_id=tenant_id,
        metric=required("metric", parameters.name("metric")),
        customer_ref=required("customerRef", parameters.text("customerRef")),
        period=instant,
        group=group,
        of_group=none or group is not None,
        as_of=parameters.sequence("asOf", minimum=1),
    )
