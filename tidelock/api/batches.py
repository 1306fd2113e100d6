"""Batches over HTTP: list them, preview a revert, and revert one, some thousands of events a request."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidelock.api.openapi import Json, operation, writing
from tidelock.http.access import Access
from tidelock.http.parameters import (
    Parameters,
    check_names,
    key_cursor,
    read_json,
    read_limit,
    read_number_cursor,
    required,
)
from tidelock.http.problems import JSON
from tidelock.ingest.intake import Intake
from tidelock.ingest.wire import WireEvent
from tidelock.model import Verdict
from tidelock.postgres.pool import Connections
from tidelock.settings import Settings
from tidelock.sources.reverting import PAGE, RevertResult, void_page
from tidelock.usage.batches import Batch, Left, WantedRevert, batch_events, batch_size, read_batches
from tidelock.usage.previews import RevertPreview, preview_revert
from tidelock.views.catalog import CatalogReader

BATCHES = ("tenantId", "batchId", "limit", "cursor")
PREVIEW = ("batchId", "tenantId")

#: events of a batch that one request looks at
_EVENTS_MAX = 10_000
_CURSOR = "batches"
_ERRORS = (400, 401, 403, 404, 503)
_SHAPE = '{"batchId": ..., "tenantId": ..., "reason": ..., "cursor": ...}'


class RevertRequest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Which batch to revert, and why."""

    batch_id: str
    #: null: the one tenant that has it
    tenant_id: str | None = None
    #: null: one that names the batch
    reason: str | None = None
    #: `next` of the previous answer
    cursor: str | None = None


class RevertAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """What became of some of the events of a batch."""

    #: events that this request voided, and those that were void already
    voided: int
    duplicates: int
    #: events that stay in the meters, and the first of them
    left_count: int
    left: list[Left]
    #: null: this was the end of the batch
    next: str | None


class Batches(msgspec.Struct, frozen=True):
    """Batches, the latest first."""

    items: list[Batch]
    next: str | None


class BatchRoutes:
    """The handlers of batches."""

    def __init__(
        self, intake: Intake, reads: Connections, explains: Connections, access: Access, settings: Settings
    ) -> None:
        self._intake = intake
        self._reads = reads
        self._explains = explains
        self._access = access
        self._settings = settings
        self._catalogs = CatalogReader(settings.definitions)

    async def batches(self, request: Request) -> Response:
        grant = await self._access.reader(request.scope)
        parameters = Parameters(request.scope["query_string"], BATCHES)
        cursor = parameters.cursor()
        async with self._reads.lend() as connection:
            page = await read_batches(
                connection,
                grant.reads(parameters.name("tenantId")),
                batch_id=parameters.text("batchId"),
                before=None if cursor is None else read_number_cursor(cursor, _CURSOR),
                limit=read_limit(parameters, self._settings),
            )
        following = None if page.before is None else key_cursor(_CURSOR, "", str(page.before))
        return Response(msgspec.json.encode(Batches(list(page.items), following)), media_type=JSON)

    async def preview(self, request: Request) -> Response:
        grant = await self._access.reader(request.scope)
        parameters = Parameters(request.scope["query_string"], PREVIEW)
        batch_id = required("batchId", parameters.text("batchId"))
        wanted = WantedRevert(batch_id, grant.reads(parameters.name("tenantId")))
        async with self._explains.lend() as connection:
            found = await preview_revert(
                connection,
                self._catalogs,
                self._settings.definitions,
                wanted,
                counters_max=self._settings.usage_items_max,
                timeout_ns=self._settings.explain_timeout,
            )
        return Response(msgspec.json.encode(found), media_type=JSON)

    async def revert(self, request: Request) -> Response:
        grant = (await self._access.grant(dict(request.scope["headers"]))).need("admin")
        Parameters(request.scope["query_string"], ())
        asked = await read_json(request, RevertRequest, _SHAPE)
        check_names({"batchId": asked.batch_id, "tenantId": asked.tenant_id, "reason": asked.reason})
        wanted = WantedRevert(asked.batch_id, grant.reads(asked.tenant_id), asked.reason)
        after = 0 if asked.cursor is None else read_number_cursor(asked.cursor, _CURSOR)
        result = RevertResult()

        async def take(events: list[WireEvent]) -> list[Verdict]:
            return (await self._intake.take(events, grant.writer(), escapes=True)).results

        async with self._reads.lend() as connection:
            size = await batch_size(connection, wanted)
        while after < size.last_sequence and result.done < _EVENTS_MAX:
            # Lent for a page only: recording may have to wait, and readers must not.
            async with self._reads.lend() as connection:
                found = await batch_events(
                    connection, wanted, self._settings.definitions, after=after, through=size.last_sequence, limit=PAGE
                )
            await void_page(take, found, wanted, result)
            after = found.last
        following = key_cursor(_CURSOR, "", str(after)) if after < size.last_sequence else None
        done = RevertAnswer(result.voided, result.duplicates, result.left_count, result.left, following)
        return Response(msgspec.json.encode(done), media_type=JSON)


def batch_operations() -> list[tuple[str, str, str, dict[str, Any]]]:
    """Path, method, name of the handler and description of every route."""
    named = {
        "batchId": "Only this batch",
        "tenantId": "Only events of this tenant; an API key of one tenant implies it",
    }
    listed = operation(
        "Batches: events that were recorded under one name, such as an import; the latest first",
        "Batches",
        parameters=BATCHES,
        errors=(400, 401, 403, 503),
        otherwise=named,
    )
    previewed = operation(
        "What reverting a batch would make of every counter; nothing is recorded",
        "RevertPreview",
        parameters=PREVIEW,
        needed=("batchId",),
        errors=_ERRORS,
        otherwise=named | {"batchId": "The batch"},
    )
    reverted = writing(
        f"Revert a batch: void its events, up to {_EVENTS_MAX:,} a request; continue with `next` as `cursor`",
        "RevertRequest",
        "RevertAnswer",
        errors=(*_ERRORS, 413, 415, 429),
        about="What became of the events of this request",
    )
    return [
        ("/v1/batches", "GET", "batches", listed),
        ("/v1/batches/preview", "GET", "preview", previewed),
        ("/v1/batches/revert", "POST", "revert", reverted),
    ]


def batch_schemas() -> Json:
    _, found = msgspec.json.schema_components(
        [Batches, RevertPreview, RevertRequest, RevertAnswer], ref_template="#/components/schemas/{name}"
    )
    return found
