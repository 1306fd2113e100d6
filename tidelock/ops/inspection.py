"""Inspection over HTTP: what was answered lately, which definitions hold, whether the ledger is what was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidelock.definitions import Definitions
from tidelock.live.shapes import Shapes
from tidelock.ops.access import Access
from tidelock.ops.activity import Activity, ActivityLog
from tidelock.ops.openapi import operation
from tidelock.ops.parameters import Parameters
from tidelock.ops.problems import JSON
from tidelock.ops.schemas import Json
from tidelock.ops.verifying import Verification, Verifying
from tidelock.postgres.pool import Connections
from tidelock.settings import Settings

_ACTIVITY = ("tenantId",)
_ERRORS = (400, 401, 403, 503)


class TableForm(msgspec.Struct, frozen=True):
    """A table: its columns with their types, and those whose values make its key."""

    name: str
    columns: dict[str, str]
    key: list[str]


class DefinitionsInForce(msgspec.Struct, frozen=True, rename="camel"):
    """What the tables are made by. `version` is null, and nothing is folded yet, before a fold has run.

    `changed` names what this server's settings say otherwise: it holds once a fold has replayed it.
    """

    version: int | None
    streams: dict[str, dict[str, Any]]
    meters: dict[str, dict[str, Any]]
    windows: dict[str, dict[str, Any]]
    tables: list[TableForm]
    changed: list[str]


class Inspection:
    """The handlers."""

    def __init__(
        self, connections: Connections, access: Access, settings: Settings, activity: ActivityLog, verifying: Verifying
    ) -> None:
        self._connections = connections
        self._access = access
        self._declared = settings.definitions
        self._shapes = Shapes(settings.definitions)
        self._activity = activity
        self._verifying = verifying

    async def activity(self, request: Request) -> Response:
        grant = await self._access.reader(request.scope)
        parameters = Parameters(request.scope["query_string"], _ACTIVITY)
        return _answer(self._activity.read(grant.reads(parameters.name("tenantId"))))

    async def definitions(self, request: Request) -> Response:
        await self._access.reader(request.scope)
        Parameters(request.scope["query_string"], ())
        shape = await self._connections.ask(self._shapes.read)
        tables = [
            TableForm(table.name, {name: str(type_) for name, type_ in table.columns.items()}, list(table.key))
            for table in shape.tables.values()
            if not table.internal
        ]
        changed = _changed(shape.definitions, self._declared)
        forms: dict[str, Any] = shape.definitions.canonical()
        return _answer(DefinitionsInForce(shape.version, **forms, tables=tables, changed=changed))

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


def inspection_operations() -> list[tuple[str, str, str, dict[str, Any]]]:
    """Path, method, name of the handler and description of every route."""
    begun = operation("Check the ledger, beside everything else", "Verification", errors=_ERRORS)
    begun["responses"][202] = begun["responses"].pop(200)
    begun["status_code"] = 202
    kept = operation("The checks of the ledger: under way, or as they ended", "Verification", errors=_ERRORS)
    return [
        (
            "/admin/activity",
            "GET",
            "activity",
            operation("What this process answered lately", "Activity", parameters=_ACTIVITY, errors=_ERRORS),
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


def inspection_schemas() -> Json:
    types = [Activity, DefinitionsInForce, Verification]
    _, found = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    return found


def _changed(folded: Definitions, declared: Definitions) -> list[str]:
    """Paths of what differs, such as `meters.api_calls`."""
    old, new = _paths(folded), _paths(declared)
    return sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))


def _paths(definitions: Definitions) -> Mapping[str, object]:
    forms: dict[str, Any] = definitions.canonical()
    return {f"{kind}.{name}": form for kind, named in forms.items() for name, form in named.items()}


def _answer(body: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type=JSON)
