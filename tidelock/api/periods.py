"""Closing periods over HTTP: what is open, closing it, and what was stated when it was closed."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidelock.api.openapi import Json, operation, writing
from tidelock.errors import RequestError
from tidelock.http.access import Access
from tidelock.http.csvpages import csv_response, wants_csv
from tidelock.http.parameters import Parameters, check_names, key_cursor, read_json, read_key_cursor, read_limit
from tidelock.http.problems import JSON
from tidelock.ledger.sequencer import Sequencer
from tidelock.postgres.pool import Connections
from tidelock.settings import Settings
from tidelock.tables import STATEMENTS
from tidelock.usage.closing import MeterPeriods, WantedClose, close_periods, read_period, read_periods, read_through
from tidelock.usage.statements import read_statements
from tidelock.views.catalog import CatalogReader
from tidelock.views.rows import RowSelection

PERIODS = ("metric", "tenantId")
STATEMENT_LIST = ("metric", "customerRef", "period", "tenantId", "limit", "cursor")

_ERRORS = (400, 401, 403, 404, 503)
_SHAPE = '{"through": ..., "metric": ..., "tenantId": ...}'


class CloseRequest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What to close: every period that ends at or before an instant, of one meter or all."""

    #: RFC 3339, or a date, which is its midnight in UTC
    through: str
    metric: str | None = None
    #: null: every tenant, also those that come later
    tenant_id: str | None = None


class Periods(msgspec.Struct, frozen=True):
    """Every meter with what is open of it."""

    items: list[MeterPeriods]
    next: str | None = None


class PeriodRoutes:
    """The handlers of periods and statements."""

    def __init__(self, sequencer: Sequencer, connections: Connections, access: Access, settings: Settings) -> None:
        self._sequencer = sequencer
        self._connections = connections
        self._access = access
        self._settings = settings
        self._catalogs = CatalogReader(settings.definitions)

    async def periods(self, request: Request) -> Response:
        grant = await self._access.reader(request.scope)
        parameters = Parameters(request.scope["query_string"], PERIODS)
        tenant_id = grant.reads(parameters.name("tenantId"))
        async with self._connections.lend() as connection:
            items = await read_periods(
                connection, tenant_id, parameters.name("metric"), timeout_ns=self._settings.explain_timeout
            )
        return Response(msgspec.json.encode(Periods(items)), media_type=JSON)

    async def close(self, request: Request) -> Response:
        grant = (await self._access.grant(dict(request.scope["headers"]))).need("admin")
        Parameters(request.scope["query_string"], ())
        asked = await read_json(request, CloseRequest, _SHAPE)
        check_names({"metric": asked.metric, "tenantId": asked.tenant_id})
        wanted = WantedClose(_instant("through", asked.through), asked.metric, grant.reads(asked.tenant_id))
        sequence = await close_periods(self._sequencer, wanted)
        return Response(msgspec.json.encode({"ingressSequence": sequence}), media_type=JSON)

    async def statements(self, request: Request) -> Response:
        grant = await self._access.reader(request.scope)
        parameters = Parameters(request.scope["query_string"], STATEMENT_LIST)
        equal = {"metric": parameters.text("metric"), "customer_ref": parameters.text("customerRef")}
        cursor, period = parameters.cursor(), parameters.text("period")
        between: dict[str, tuple[int | None, int | None]] = {}
        if period is not None:
            start, end = _period(period)
            between = {"period_start": (None, end), "period_end": (start + 1, None)}
        selection = RowSelection(
            STATEMENTS,
            grant.reads(parameters.name("tenantId")),
            equal={name: value for name, value in equal.items() if value is not None},
            between=between,
            after=None if cursor is None else read_key_cursor(cursor, STATEMENTS.name),
        )
        limit, bytes_max = read_limit(parameters, self._settings), self._settings.page_bytes_max
        async with self._connections.lend() as connection:
            definitions = (await self._catalogs.read(connection)).definitions
            page = await read_statements(connection, definitions, selection, rows_max=limit, bytes_max=bytes_max)
        following = None if page.last is None else key_cursor(STATEMENTS.name, *page.last)
        if wants_csv(request):
            names = ["tenant_id", *STATEMENTS.columns, "adjustmentSince", "restated", "adjustmentCount"]
            return csv_response(request, names, page.items, following)
        return Response(msgspec.json.encode({"items": page.items, "next": following}), media_type=JSON)


def _instant(name: str, text: str) -> int:
    try:
        return read_through(text)
    except ValueError as problem:
        raise RequestError(f"{name}: {problem}", field=name) from None


def _period(text: str) -> tuple[int, int]:
    try:
        return read_period(text)
    except ValueError as problem:
        raise RequestError(f"period is {problem}", field="period") from None


def period_operations() -> list[tuple[str, str, str, dict[str, Any]]]:
    """Path, method, name of the handler and description of every route."""
    closing = writing(
        "Close periods: from then on no event moves the value of their counters",
        "CloseRequest",
        "CloseAnswer",
        errors=(*_ERRORS, 413, 415, 422, 429),
        about="Sequence of the close; null: nothing was left to close",
    )
    named = {"period": "A month as 2026-10, a week as 2026-W44, a day, an hour as 2026-10-31T13, or an instant in it"}
    listed = operation(
        "Counters as stated when they were closed, and later adjustments",
        "StatementPage",
        parameters=STATEMENT_LIST,
        errors=(400, 401, 403, 503),
        otherwise=named,
    )
    periods = operation(
        "Which periods are open, when they close, and which are closed",
        "Periods",
        parameters=PERIODS,
        errors=_ERRORS,
        otherwise={"tenantId": "Of this tenant; default: the API key's tenant, or `default`"},
    )
    return [
        ("/v1/periods", "GET", "periods", periods),
        ("/v1/periods/close", "POST", "close", closing),
        ("/v1/statements", "GET", "statements", listed),
    ]


def period_schemas() -> Json:
    _, found = msgspec.json.schema_components([Periods, CloseRequest], ref_template="#/components/schemas/{name}")
    sequence = {"type": ["integer", "null"]}
    row = {"type": "object", "additionalProperties": True}
    page = {"items": {"type": "array", "items": row}, "next": {"type": ["string", "null"]}}
    return {
        **found,
        "CloseAnswer": {"type": "object", "properties": {"ingressSequence": sequence}, "required": ["ingressSequence"]},
        "StatementPage": {"type": "object", "properties": page, "required": list(page)},
    }
