"""The fold's tables over HTTP: any of them, the common ones by name, usage, and explanations of counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import psycopg
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from tidelock.columns import STRING
from tidelock.errors import RequestError
from tidelock.http.access import Access
from tidelock.http.csvpages import csv_response, wants_csv
from tidelock.http.parameters import (
    Parameters,
    key_cursor,
    read_key_cursor,
    read_limit,
    read_paging,
    required,
)
from tidelock.http.problems import JSON
from tidelock.ledger.reader import Page
from tidelock.model import DEFAULT_TENANT
from tidelock.postgres.pool import Connections
from tidelock.settings import Settings
from tidelock.tables import ADJUSTMENTS, ALWAYS, COUNTERS, ERROR_ROWS, LATE_ROWS, Table
from tidelock.usage.explain import Asked, Explaining, ExplainLimits, parse_period
from tidelock.usage.exports import Position, read_all_usage
from tidelock.usage.usage import Wanted, read_usage
from tidelock.views.catalog import CatalogReader
from tidelock.views.openwindows import read_open_rows
from tidelock.views.rows import RowSelection, SelectedRows, read_rows
from tidelock.where import TRUE, parse_where

_OF_EVERY_TABLE = ("where", "tenantId", "limit", "cursor")
USAGE = ("metric", "customerRef", "from", "to", "window", "groupBy", "asOf", "tenantId", "limit", "cursor")

_USAGE_COLUMNS = (
    "customerRef", "periodStart", "periodEnd", "group", "value", "adjustment", "total", "watermark",
)  # fmt: skip

_BY_CUSTOMER = {"metric": "metric", "customerRef": "customer_ref"}

EXPLAIN = ("metric", "customerRef", "period", "group", "groupNull", "asOf", "tenantId", "limit", "cursor")


@dataclass(frozen=True, slots=True)
class Listed:
    """A table with its own route and parameters for common requests."""

    table: str
    #: parameter -> the column it filters
    equal: Mapping[str, str] = field(default_factory=dict)
    #: the timestamp that `from` and `to` are about
    time: str | None = None
    #: whether it is given as CSV too
    as_csv: bool = False

    @property
    def parameters(self) -> tuple[str, ...]:
        return (*self.equal, *(("from", "to") if self.time else ()), *_OF_EVERY_TABLE)


COUNTER_LIST = Listed(COUNTERS.name, _BY_CUSTOMER, "period_start", as_csv=True)
ADJUSTMENT_LIST = Listed(ADJUSTMENTS.name, _BY_CUSTOMER, "period_start", as_csv=True)
ERROR_LIST = Listed(ERROR_ROWS.name, {"source": "source", "code": "code"})
LATE_LIST = Listed(LATE_ROWS.name, {"window": "window", "reason": "reason"}, "event_time")
ANY_TABLE = (*Listed("").parameters, "open")


class Tables:
    """The handlers of the fold's tables."""

    def __init__(self, connections: Connections, explains: Connections, access: Access, settings: Settings) -> None:
        """`explains` is for what is read from the events themselves."""
        self._connections = connections
        self._explains = explains
        self._access = access
        self._settings = settings
        self._catalogs = CatalogReader(settings.definitions)

    async def table(self, request: Request) -> Response:
        return await self._list(request, Listed(request.path_params["table"]), ANY_TABLE)

    async def counters(self, request: Request) -> Response:
        return await self._list(request, COUNTER_LIST)

    async def adjustments(self, request: Request) -> Response:
        return await self._list(request, ADJUSTMENT_LIST)

    async def late(self, request: Request) -> Response:
        return await self._list(request, LATE_LIST)

    async def errors(self, request: Request) -> Response:
        return await self._list(request, ERROR_LIST)

    async def usage(self, request: Request) -> Response:
        grant = await self._access.reader(request.scope)
        parameters = Parameters(request.scope["query_string"], USAGE)
        wanted = Wanted(
            tenant_id=grant.reads(parameters.name("tenantId")) or DEFAULT_TENANT,
            metric=required("metric", parameters.name("metric")),
            customer_ref=parameters.text("customerRef") or "",
            since=parameters.instant("from"),
            until=parameters.instant("to"),
            window=parameters.name("window"),
            grouped=parameters.choice("groupBy", ("true", "false")) == "true",
            as_of=parameters.sequence("asOf", minimum=1),
        )
        settings = self._settings
        if parameters.text("customerRef") is None:
            return await self._everybody(request, parameters, wanted)
        if (paged := next((name for name in ("limit", "cursor") if parameters.text(name)), None)) is not None:
            raise RequestError(f"{paged} is for pages of all customers: leave out customerRef", field=paged)
        of_counters = wanted.as_of is None and wanted.window is None
        connections = self._connections if of_counters else self._explains
        async with connections.lend() as connection:
            usage = await read_usage(
                connection,
                self._catalogs,
                wanted,
                items_max=settings.usage_items_max,
                timeout_ns=settings.explain_timeout,
            )
        if wants_csv(request):
            told = [{"customerRef": usage.customer_ref, **msgspec.to_builtins(item)} for item in usage.items]
            return csv_response(request, _USAGE_COLUMNS, told, None)
        return Response(msgspec.json.encode(usage), media_type=JSON)

    async def _everybody(self, request: Request, parameters: Parameters, wanted: Wanted) -> Response:
        if wanted.as_of is not None:
            raise RequestError(
                "asOf is answered for one customer, from the ledger's slice of it; for all customers there is "
                "`tidelock usage --as-of`",
                field="asOf",
            )
        limit, cursor = read_limit(parameters, self._settings), parameters.cursor()
        async with self._connections.lend() as connection:
            page, last = await read_all_usage(
                connection,
                self._catalogs,
                wanted,
                limit=limit,
                after=None if cursor is None else _read_position(cursor),
                timeout_ns=self._settings.explain_timeout,
            )
        following = None if last is None else key_cursor("usage", *_position(last))
        if wants_csv(request):
            return csv_response(request, _USAGE_COLUMNS, map(msgspec.to_builtins, page.items), following)
        return Response(msgspec.json.encode(replace(page, next=following)), media_type=JSON)

    async def _list(self, request: Request, listed: Listed, known: Sequence[str] | None = None) -> Response:
        grant = await self._access.reader(request.scope)
        parameters = Parameters(request.scope["query_string"], listed.parameters if known is None else known)
        tenant_id = grant.reads(parameters.name("tenantId"))
        limit = read_limit(parameters, self._settings)
        async with self._connections.lend() as connection:
            page = await self._read(connection, listed, parameters, tenant_id, limit)
        following = None if page.last is None else key_cursor(_cursor_name(listed.table, parameters), *page.last)
        if listed.as_csv and wants_csv(request):
            columns = ALWAYS[listed.table].columns
            return csv_response(request, ["tenant_id", *columns], page.items, following)
        return Response(msgspec.json.encode({"items": page.items, "next": following}), media_type=JSON)

    async def _read(
        self,
        connection: psycopg.AsyncConnection[Any],
        listed: Listed,
        parameters: Parameters,
        tenant_id: str | None,
        limit: int,
    ) -> SelectedRows:
        catalog = await self._catalogs.read(connection)
        selection = _selection(catalog.table(listed.table), listed, parameters, tenant_id)
        try:
            if _open(parameters):
                return await read_open_rows(connection, catalog, selection, rows_max=limit)
            return await read_rows(connection, selection, rows_max=limit, bytes_max=self._settings.page_bytes_max)
        except psycopg.ProgrammingError as error:
            # Declared, and created by the fold when it first runs.
            if catalog.version is None and isinstance(error, psycopg.errors.UndefinedTable):
                return SelectedRows([], None)
            # Between the two reads the fold has changed the table's shape.
            if (await self._catalogs.read(connection)).version == catalog.version:
                raise
        return await self._read(connection, listed, parameters, tenant_id, limit)


def _open(parameters: Parameters) -> bool:
    """Whether windows are asked for that are not closed yet; other lists do not know the parameter."""
    return parameters.choice("open", ("true", "false")) == "true"


def _cursor_name(table: str, parameters: Parameters) -> str:
    """What a cursor is of: open windows are another list than closed ones."""
    return f"{table}?open" if _open(parameters) else table


def _position(last: Position) -> tuple[str, str]:
    """As a cursor has it: customer, and the rest as JSON."""
    return last.customer_ref, msgspec.json.encode([last.period_start, last.group]).decode()


def _read_position(cursor: str) -> Position:
    customer_ref, rest = read_key_cursor(cursor, "usage")
    try:
        return Position(customer_ref, *msgspec.json.decode(rest, type=tuple[int, str | None]))
    except msgspec.MsgspecError:
        raise RequestError("this is not a cursor that this list has given", field="cursor") from None


def _selection(table: Table, listed: Listed, parameters: Parameters, tenant_id: str | None) -> RowSelection:
    where, cursor = parameters.text("where"), parameters.cursor()
    asked = {column: parameters.text(name) for name, column in listed.equal.items()}
    return RowSelection(
        table,
        tenant_id,
        equal={column: value for column, value in asked.items() if value is not None},
        between={listed.time: (parameters.instant("from"), parameters.instant("to"))} if listed.time else {},
        where=TRUE if where is None else parse_where(where, {"tenant_id": STRING, **table.columns}),
        after=None if cursor is None else read_key_cursor(cursor, _cursor_name(table.name, parameters)),
    )


class Explain:
    """The handler of `/v1/explain`."""

    def __init__(self, connections: Connections, access: Access, settings: Settings) -> None:
        self._connections = connections
        self._access = access
        self._settings = settings
        self._catalogs = CatalogReader(settings.definitions)

    async def explain(self, request: Request) -> Response:
        grant = await self._access.reader(request.scope)
        parameters = Parameters(request.scope["query_string"], EXPLAIN)
        paging = read_paging(parameters, self._settings)
        tenant_id = grant.reads(parameters.name("tenantId")) or DEFAULT_TENANT
        asked = _asked(parameters, tenant_id)
        limits = ExplainLimits.of(self._settings)
        async with self._connections.lend() as connection:
            explaining = Explaining(connection, self._catalogs, limits)
            found, more = await explaining.explain(asked, limit=paging.limit, after=paging.position or 0)
        found = replace(found, next=paging.following(Page(found.items, more)))
        return Response(msgspec.json.encode(found), media_type=JSON)


def _asked(parameters: Parameters, tenant_id: str) -> Asked:
    period, group = parameters.text("period"), parameters.text("group")
    none = parameters.choice("groupNull", ("true", "false")) == "true"
    if none and group is not None:
        raise RequestError("group and groupNull select different groups; give only one", field="groupNull")
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
