"""HTTP for operators: liveness and readiness, progress of the readers, recent activity, current definitions.

Probes and metrics first; then the activity of the last minutes, the definitions in force, and the verification of the
ledger.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
import psycopg
from starlette.requests import Request
from starlette.responses import Response

from tidelock.api.activity import Activity, ActivityLog
from tidelock.api.health import (
    MIRRORED,
    TOLD_MAX,
    UNKNOWN,
    Health,
    MirroredPartition,
    NotReady,
    Probe,
    WantedWindows,
    read_health,
)
from tidelock.api.metrics import Metrics
from tidelock.api.openapi import Json, operation
from tidelock.api.verification import Verification, Verifying
from tidelock.definitions import Definitions
from tidelock.errors import TidelockError
from tidelock.http.access import Access
from tidelock.http.parameters import Parameters
from tidelock.http.problems import JSON
from tidelock.postgres.pool import Connections
from tidelock.settings import Settings
from tidelock.views.catalog import CatalogReader

#: which windows `/admin/event-health` reports
HEALTH = ("tenantId", "window")

#: reads from the database what a metric shows
Measure = Callable[[psycopg.AsyncConnection[Any]], Awaitable[None]]

_ACTIVITY = ("tenantId",)
_ERRORS = (400, 401, 403, 503)


class HealthRoutes:
    """The handlers of probes, health and metrics."""

    def __init__(
        self,
        connections: Connections,
        access: Access,
        metrics: Metrics,
        settings: Settings,
        *,
        probes: Sequence[Probe],
        measures: Sequence[Measure] = (),
    ) -> None:
        """`measures` run before metrics are returned."""
        self._connections = connections
        self._access = access
        self._metrics = metrics
        self._settings = settings
        self._probes = probes
        self._measures = measures

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
            for measure in self._measures:
                await self._connections.ask(measure)
        except TidelockError:
            pass  # these metrics are needed most when the database is unavailable
        content, content_type = self._metrics.text(request.headers.get("accept", ""))
        return Response(content, headers={"content-type": content_type, "vary": "accept"})

    def _not_ready(self, health: Health) -> Response:
        retry = {"retry-after": str(self._settings.retry_after_s)}
        body = msgspec.json.encode(health)
        return Response(body, status_code=HTTPStatus.SERVICE_UNAVAILABLE, media_type=JSON, headers=retry)


async def _read_mirrored(connection: psycopg.AsyncConnection[Any]) -> list[MirroredPartition]:
    return [MirroredPartition(*row) async for row in await connection.execute(MIRRORED, (TOLD_MAX,))]


class TableForm(msgspec.Struct, frozen=True):
    """A table: its columns with their types, and those whose values make its key."""

    name: str
    columns: dict[str, str]
    key: list[str]


class DefinitionsInForce(msgspec.Struct, frozen=True, rename="camel"):
    """The definitions that the tables follow. `version` is null before a fold has run.

    `changed` lists what differs in this server's settings, which takes effect once a fold has replayed it.
    """

    version: int | None
    streams: dict[str, dict[str, Any]]
    meters: dict[str, dict[str, Any]]
    windows: dict[str, dict[str, Any]]
    tables: list[TableForm]
    changed: list[str]


class AdminRoutes:
    """The handlers of `/admin`: activity, definitions, verification."""

    def __init__(
        self, connections: Connections, access: Access, settings: Settings, activity: ActivityLog, verifying: Verifying
    ) -> None:
        self._connections = connections
        self._access = access
        self._declared = settings.definitions
        self._catalogs = CatalogReader(settings.definitions)
        self._activity = activity
        self._verifying = verifying

    async def activity(self, request: Request) -> Response:
        grant = await self._access.reader(request.scope)
        parameters = Parameters(request.scope["query_string"], _ACTIVITY)
        return _answer(self._activity.read(grant.reads(parameters.name("tenantId"))))

    async def definitions(self, request: Request) -> Response:
        await self._access.reader(request.scope)
        Parameters(request.scope["query_string"], ())
        catalog = await self._connections.ask(self._catalogs.read)
        tables = [
            TableForm(table.name, {name: str(type_) for name, type_ in table.columns.items()}, list(table.key))
            for table in catalog.tables.values()
            if not table.internal
        ]
        changed = _changed(catalog.definitions, self._declared)
        forms: dict[str, Any] = catalog.definitions.canonical()
        return _answer(DefinitionsInForce(catalog.version, **forms, tables=tables, changed=changed))

    async def verification(self, request: Request) -> Response:
        (await self._access.reader(request.scope)).need_all_tenants()
        Parameters(request.scope["query_string"], ())
        return _answer(self._verifying.state)

    async def verify(self, request: Request) -> Response:
        await self._may_verify(request)
        return _answer(self._verifying.start(), 202)

    async def stop_verifying(self, request: Request) -> Response:
        await self._may_verify(request)
        return _answer(await self._verifying.stop())

    async def _may_verify(self, request: Request) -> None:
        (await self._access.grant(dict(request.scope["headers"]))).need("admin").need_all_tenants()
        Parameters(request.scope["query_string"], ())


def admin_operations() -> list[tuple[str, str, str, dict[str, Any]]]:
    """Path, method, name of the handler and description of every route."""
    begun = operation("Verify the ledger in the background", "Verification", errors=_ERRORS)
    begun["responses"][202] = begun["responses"].pop(200)
    begun["status_code"] = 202
    kept = operation("Status and result of the verification", "Verification", errors=_ERRORS)
    return [
        (
            "/admin/activity",
            "GET",
            "activity",
            operation("Recent activity of this process", "Activity", parameters=_ACTIVITY, errors=_ERRORS),
        ),
        (
            "/admin/definitions",
            "GET",
            "definitions",
            operation("Definitions and tables", "DefinitionsInForce", errors=_ERRORS),
        ),
        ("/admin/verify", "GET", "verification", kept),
        ("/admin/verify", "POST", "verify", begun),
        ("/admin/verify", "DELETE", "stop_verifying", operation("Stop checking", "Verification", errors=_ERRORS)),
    ]


def admin_schemas() -> Json:
    types = [Activity, DefinitionsInForce, Verification]
    _, found = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    return found


def _changed(folded: Definitions, declared: Definitions) -> list[str]:
    """Paths of the differences, such as `meters.api_calls`."""
    old, new = _paths(folded), _paths(declared)
    return sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))


def _paths(definitions: Definitions) -> Mapping[str, object]:
    forms: dict[str, Any] = definitions.canonical()
    return {f"{kind}.{name}": form for kind, named in forms.items() for name, form in named.items()}


def _answer(body: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type=JSON)
