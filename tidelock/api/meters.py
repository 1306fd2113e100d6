"""Meters over HTTP: try them on an event, and compare others with those in force. Nothing is recorded or changed."""

from __future__ import annotations

import tomllib
from decimal import Decimal
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tidelock.api.comparison import Comparing, DiffRequest, MeterComparison
from tidelock.api.openapi import Json, operation, writing
from tidelock.definitions import Definitions, parse_definitions
from tidelock.errors import InvalidDefinition, RequestError, SettingsError
from tidelock.http.access import Access
from tidelock.http.csvpages import CSV, wants_csv
from tidelock.http.parameters import Parameters, read_json, read_limit
from tidelock.http.problems import JSON
from tidelock.postgres.pool import Connections
from tidelock.settings import Settings
from tidelock.usage.trying import Trial, Tried, try_event
from tidelock.views.catalog import CatalogReader

_FILE = "definitions"
_LISTED = ("limit",)
_VARIES = {"vary": "accept"}


class TryRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event as `POST /v1/events` takes it, and the meters to try it on."""

    event: msgspec.Raw
    #: the text of a tidelock.toml; null: the definitions in force
    definitions: str | None = None


class MeterRoutes:
    """The handlers that try events and compare meters."""

    def __init__(self, connections: Connections, access: Access, settings: Settings, comparing: Comparing) -> None:
        self._connections = connections
        self._access = access
        self._settings = settings
        self._catalogs = CatalogReader(settings.definitions)
        self._comparing = comparing

    async def try_event(self, request: Request) -> Response:
        grant = await self._access.reader(request.scope)
        Parameters(request.scope["query_string"], ())
        asked = await read_json(request, TryRequest, '{"event": {...}, "definitions": ...}')
        definitions = None
        if asked.definitions is not None:
            grant.need("admin")
            definitions = read_definitions(asked.definitions)
        opened = self._settings.streams_open is not False
        trial = Trial(bytes(asked.event), grant.writer(), definitions, streams_open=opened)
        async with self._connections.lend() as connection:
            found = await try_event(connection, self._catalogs, trial, self._settings)
        return Response(msgspec.json.encode(found), media_type=JSON)

    async def compare(self, request: Request) -> Response:
        await self._may_compare(request)
        asked = await read_json(request, DiffRequest, '{"definitions": "...", "metric": ...}')
        wanted = read_definitions(asked.definitions)
        catalog = await self._connections.ask(self._catalogs.read)
        if catalog.version is None:
            raise RequestError("nothing has been folded yet, so there is nothing to compare; run `tidelock fold` first")
        if asked.metric is not None and asked.metric not in wanted.meters.keys() | catalog.definitions.meters.keys():
            raise InvalidDefinition(
                f'there is no meter "{asked.metric}", neither in these definitions nor in those in force',
                field="metric",
            )
        return _comparison(self._comparing.start(asked), 202)

    async def comparison(self, request: Request) -> Response:
        (await self._access.reader(request.scope)).need_all_tenants()
        limit = read_limit(Parameters(request.scope["query_string"], _LISTED), self._settings)
        if wants_csv(request):
            chunks = self._comparing.csv()
            return StreamingResponse(chunks, media_type=f"{CSV}; header=present", headers=_VARIES)
        return _comparison(self._comparing.first(limit))

    async def stop_comparing(self, request: Request) -> Response:
        await self._may_compare(request)
        return _comparison(await self._comparing.stop())

    async def _may_compare(self, request: Request) -> None:
        (await self._access.grant(dict(request.scope["headers"]))).need("admin").need_all_tenants()
        Parameters(request.scope["query_string"], ())


def _comparison(found: MeterComparison, status: int = 200) -> Response:
    return Response(msgspec.json.encode(found), status, media_type=JSON, headers=_VARIES)


def read_definitions(text: str) -> Definitions:
    """The definitions in the text of a tidelock.toml; other settings in it do not matter. Raises InvalidDefinition."""
    try:
        tables = tomllib.loads(text, parse_float=Decimal)
        return parse_definitions(tables, eventtime_types=None, file=_FILE)
    except SettingsError as problem:
        raise InvalidDefinition(problem.message, field=_FILE) from None
    except (ValueError, ArithmeticError, RecursionError) as problem:
        raise InvalidDefinition(f"definitions is not TOML: {problem}", field=_FILE) from None


def meter_operations() -> list[tuple[str, str, str, dict[str, Any]]]:
    """Path, method, name of the handler and description of every route."""
    errors = (400, 401, 403, 413, 415, 422, 503)
    trying = writing(
        "What each meter would make of an event; nothing is recorded",
        "TryRequest",
        "Tried",
        errors=errors,
        about="What would happen to it",
    )
    comparing = writing(
        "Fold other meters beside those in force, in the background; nothing changes",
        "DiffRequest",
        "MeterComparison",
        errors=(*errors, 409),
        status=202,
        about="It is running",
    )
    about = "Progress and result of the comparison: counters that differ, the greatest difference first; as CSV all"
    found = operation(about, "MeterComparison", parameters=_LISTED, errors=(400, 401, 403, 404, 503))
    stopped = operation("Stop the comparison", "MeterComparison", errors=(400, 401, 403, 503))
    return [
        ("/v1/meters/try", "POST", "try_event", trying),
        ("/v1/meters/diff", "GET", "comparison", found),
        ("/v1/meters/diff", "POST", "compare", comparing),
        ("/v1/meters/diff", "DELETE", "stop_comparing", stopped),
    ]


def meter_schemas() -> Json:
    types = [Tried, MeterComparison, DiffRequest]
    _, found = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    event = {"type": "object", "additionalProperties": True}
    properties = {"event": event, "definitions": {"type": ["string", "null"]}}
    form = {"type": "object", "properties": properties, "required": ["event"], "additionalProperties": False}
    return {**found, "TryRequest": form}
