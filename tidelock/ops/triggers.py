"""Triggers over HTTP: made, changed and ended, and what became of what they told."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidelock.decimals import readable
from tidelock.errors import PayloadTooLarge, RequestError, UnsupportedMedia
from tidelock.instants import SECOND, format_instant
from tidelock.ops.access import Access, Grant
from tidelock.ops.paging import key_cursor, read_key_cursor, read_limit
from tidelock.ops.parameters import Parameters
from tidelock.ops.problems import JSON
from tidelock.ops.trigger_desk import TriggerDesk
from tidelock.settings import Settings
from tidelock.triggers.drafts import Draft, Patch, Redelivery, read_body
from tidelock.triggers.outbox import STATUSES, Attempt, DeliveryRow, Status

LIST = ("tenantId", "limit", "cursor")
DELIVERIES = ("status", "limit", "cursor")

#: filters are the largest part
_BODY_BYTES_MAX = 4 << 20
_DIGITS_MAX = 18


class Triggers:
    """The handlers of triggers. All need the scope of that name."""

    def __init__(self, desk: TriggerDesk, access: Access, settings: Settings) -> None:
        self._desk = desk
        self._access = access
        self._settings = settings

    async def create(self, request: Request) -> Response:
        grant = await self._grant(request)
        draft: Draft = read_body(await _body(request), Draft)
        return _answer(await self._desk.make(draft, grant.reads(draft.tenant_id)), 201)

    async def all(self, request: Request) -> Response:
        grant = await self._grant(request)
        parameters = Parameters(request.scope["query_string"], LIST)
        limit, cursor = read_limit(parameters, self._settings), parameters.text("cursor")
        after = "" if cursor is None else read_key_cursor(cursor, "triggers")[1]
        found = await self._desk.page(grant.reads(parameters.name("tenantId")), limit + 1, after)
        following = key_cursor("triggers", "", found[limit - 1].trigger.name) if len(found) > limit else None
        return _answer({"items": [each.form() for each in found[:limit]], "next": following})

    async def one(self, request: Request) -> Response:
        grant = await self._grant(request)
        return _answer((await self._desk.one(request.path_params["name"], grant.reads(None))).form())

    async def change(self, request: Request) -> Response:
        grant = await self._grant(request)
        patch: Patch = read_body(await _body(request), Patch)
        return _answer((await self._desk.change(request.path_params["name"], patch, grant.reads(None))).form())

    async def delete(self, request: Request) -> Response:
        grant = await self._grant(request)
        await self._desk.end(request.path_params["name"], grant.reads(None))
        return Response(status_code=204)

    async def deliveries(self, request: Request) -> Response:
        grant = await self._grant(request)
        parameters = Parameters(request.scope["query_string"], DELIVERIES)
        limit, cursor = read_limit(parameters, self._settings), parameters.text("cursor")
        name = request.path_params["name"]
        found = await self._desk.deliveries(
            name,
            grant.reads(None),
            status=cast(Status | None, parameters.choice("status", STATUSES)),
            limit=limit + 1,
            before=None if cursor is None else _position(cursor),
        )
        following = key_cursor("deliveries", name, str(found[limit - 1].position)) if len(found) > limit else None
        return _answer({"items": [delivery_form(row) for row in found[:limit]], "next": following})

    async def attempts(self, request: Request) -> Response:
        grant = await self._grant(request)
        name, event_id = request.path_params["name"], request.path_params["event_id"]
        row, data, attempts = await self._desk.delivery(name, grant.reads(None), event_id)
        items = [attempt_form(attempt) for attempt in attempts]
        return _answer({**delivery_form(row), "data": readable(data.encode()), "items": items, "next": None})

    async def redeliver(self, request: Request) -> Response:
        grant = await self._grant(request)
        body = await _body(request)
        wanted: Redelivery = read_body(body, Redelivery) if body.strip() else Redelivery()
        queued = await self._desk.redeliver(request.path_params["name"], grant.reads(None), wanted.event_ids)
        return _answer({"queued": queued})

    async def _grant(self, request: Request) -> Grant:
        return (await self._access.grant(dict(request.scope["headers"]))).need("triggers")


def delivery_form(row: DeliveryRow) -> dict[str, Any]:
    """What is told of a delivery outside."""
    return {
        "eventId": row.event_id,
        "eventType": row.event_type,
        "key": row.key,
        "sourceTimestamp": str(row.source_timestamp),
        "status": row.status,
        "attempts": row.attempts,
        "nextAttemptAt": _instant(row.next_attempt_at),
        "queuedAt": _instant(row.queued_at),
        "settledAt": _instant(row.settled_at),
        "outcome": row.outcome,
        "httpStatus": row.http_status,
        "response": row.response,
    }


def attempt_form(attempt: Attempt) -> dict[str, Any]:
    """What is told of an attempt outside."""
    return {
        "number": attempt.number,
        "sentAt": _instant(attempt.sent_at),
        "seconds": round(attempt.seconds, 6),
        "outcome": attempt.outcome,
        "httpStatus": attempt.http_status,
        "response": attempt.response,
    }


def _position(cursor: str) -> int:
    position = read_key_cursor(cursor, "deliveries")[1]
    if not position.isascii() or not position.isdigit() or len(position) > _DIGITS_MAX:
        raise RequestError("this cursor is not one of this list", field="cursor")
    return int(position)


def _instant(moment: datetime | None) -> str | None:
    return None if moment is None else format_instant(round(moment.timestamp() * 1_000_000) * (SECOND // 1_000_000))


def _answer(form: dict[str, Any], status: int = 200) -> Response:
    return Response(msgspec.json.encode(form), status, media_type=JSON)


async def _body(request: Request) -> bytes:
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media_type not in (JSON, ""):
        raise UnsupportedMedia(f"send {JSON}")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _BODY_BYTES_MAX:
            raise PayloadTooLarge(f"the body is larger than {_BODY_BYTES_MAX} bytes")
    return bytes(body)
