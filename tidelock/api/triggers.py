"""Triggers over HTTP: create, change and delete them, see their deliveries, and the document of all that."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidelock.api.openapi import Json, error, operation, ref, writing
from tidelock.decimals import readable
from tidelock.http.access import Access, Grant
from tidelock.http.parameters import (
    Parameters,
    key_cursor,
    read_key_cursor,
    read_limit,
    read_number_cursor,
    request_body,
)
from tidelock.http.problems import JSON
from tidelock.instants import SECOND, format_instant
from tidelock.settings import Settings
from tidelock.triggers.admin import TriggerAdmin
from tidelock.triggers.attempts import OUTCOMES
from tidelock.triggers.drafts import Draft, Patch, Redelivery, read_body
from tidelock.triggers.outbox import STATUSES, Attempt, DeliveryRow, Status

LIST = ("tenantId", "limit", "cursor")
DELIVERIES = ("status", "limit", "cursor")

_NAME = {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$"}
_PATH: Json = {"name": "name", "schema": {"type": "string", "minLength": 1}, "description": "The trigger's name"}
_ERRORS = (400, 401, 403, 503)
_WRITING = (400, 401, 403, 413, 415, 422, 429, 503)


class Triggers:
    """The handlers of triggers. All need the scope of that name."""

    def __init__(self, admin: TriggerAdmin, access: Access, settings: Settings) -> None:
        self._admin = admin
        self._access = access
        self._settings = settings

    async def create(self, request: Request) -> Response:
        grant = await self._grant(request)
        draft: Draft = read_body(await request_body(request), Draft)
        return _answer(await self._admin.make(draft, grant.reads(draft.tenant_id)), 201)

    async def all(self, request: Request) -> Response:
        grant = await self._grant(request)
        parameters = Parameters(request.scope["query_string"], LIST)
        limit, cursor = read_limit(parameters, self._settings), parameters.cursor()
        after = "" if cursor is None else read_key_cursor(cursor, "triggers")[1]
        found = await self._admin.page(grant.reads(parameters.name("tenantId")), limit + 1, after)
        following = key_cursor("triggers", "", found[limit - 1].trigger.name) if len(found) > limit else None
        return _answer({"items": [each.form() for each in found[:limit]], "next": following})

    async def one(self, request: Request) -> Response:
        grant = await self._grant(request)
        return _answer((await self._admin.one(request.path_params["name"], grant.reads(None))).form())

    async def change(self, request: Request) -> Response:
        grant = await self._grant(request)
        patch: Patch = read_body(await request_body(request), Patch)
        return _answer((await self._admin.change(request.path_params["name"], patch, grant.reads(None))).form())

    async def delete(self, request: Request) -> Response:
        grant = await self._grant(request)
        await self._admin.end(request.path_params["name"], grant.reads(None))
        return Response(status_code=204)

    async def deliveries(self, request: Request) -> Response:
        grant = await self._grant(request)
        parameters = Parameters(request.scope["query_string"], DELIVERIES)
        limit, cursor = read_limit(parameters, self._settings), parameters.cursor()
        name = request.path_params["name"]
        found = await self._admin.deliveries(
            name,
            grant.reads(None),
            status=cast(Status | None, parameters.choice("status", STATUSES)),
            limit=limit + 1,
            before=None if cursor is None else read_number_cursor(cursor, "deliveries"),
        )
        following = key_cursor("deliveries", name, str(found[limit - 1].position)) if len(found) > limit else None
        return _answer({"items": [delivery_form(row) for row in found[:limit]], "next": following})

    async def attempts(self, request: Request) -> Response:
        grant = await self._grant(request)
        name, event_id = request.path_params["name"], request.path_params["event_id"]
        row, data, attempts = await self._admin.delivery(name, grant.reads(None), event_id)
        items = [attempt_form(attempt) for attempt in attempts]
        return _answer({**delivery_form(row), "data": readable(data.encode()), "items": items, "next": None})

    async def redeliver(self, request: Request) -> Response:
        grant = await self._grant(request)
        body = await request_body(request)
        wanted: Redelivery = read_body(body, Redelivery) if body.strip() else Redelivery()
        queued = await self._admin.redeliver(request.path_params["name"], grant.reads(None), wanted.event_ids)
        return _answer({"queued": queued})

    async def _grant(self, request: Request) -> Grant:
        return (await self._access.grant(dict(request.scope["headers"]))).need("triggers")


def delivery_form(row: DeliveryRow) -> dict[str, Any]:
    """A delivery as shown outside."""
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
    """An attempt as shown outside."""
    return {
        "number": attempt.number,
        "sentAt": _instant(attempt.sent_at),
        "seconds": round(attempt.seconds, 6),
        "outcome": attempt.outcome,
        "httpStatus": attempt.http_status,
        "response": attempt.response,
    }


def _instant(moment: datetime | None) -> str | None:
    return None if moment is None else format_instant(round(moment.timestamp() * 1_000_000) * (SECOND // 1_000_000))


def _answer(form: dict[str, Any], status: int = 200) -> Response:
    return Response(msgspec.json.encode(form), status, media_type=JSON)


def trigger_operations() -> list[tuple[str, str, str, dict[str, Any]]]:
    """Path, method, name of the handler and description of every route."""
    one, history = "/v1/triggers/{name}", "/v1/triggers/{name}/deliveries"
    return [
        ("/v1/triggers", "GET", "all", operation("Triggers", "TriggerPage", parameters=LIST, errors=_ERRORS)),
        (
            "/v1/triggers",
            "POST",
            "create",
            writing("Make a trigger", "NewTrigger", "MadeTrigger", status=201, errors=(*_WRITING, 409)),
        ),
        (one, "GET", "one", operation("A trigger", "Trigger", path=_PATH, errors=(*_ERRORS, 404))),
        (
            one,
            "PATCH",
            "change",
            writing("Change a trigger", "TriggerPatch", "Trigger", errors=(*_WRITING, 404), path=_PATH),
        ),
        (one, "DELETE", "delete", _deleting()),
        (
            history,
            "GET",
            "deliveries",
            operation(
                "Deliveries, newest first",
                "DeliveryPage",
                parameters=DELIVERIES,
                path=_PATH,
                errors=(*_ERRORS, 404),
            ),
        ),
        (f"{history}/{{event_id}}", "GET", "attempts", _attempts()),
        (
            "/v1/triggers/{name}/redeliver",
            "POST",
            "redeliver",
            writing(
                "Send webhooks again, with the same IDs",
                "Redelivery",
                "Redelivered",
                errors=(*_WRITING, 404),
                path=_PATH,
                optional=True,
            ),
        ),
    ]


def _attempts() -> dict[str, Any]:
    summary = "Delivery attempts for one event, newest first"
    described = operation(summary, "Attempts", path=_PATH, errors=(*_ERRORS, 404))
    event = {"name": "event_id", "schema": {"type": "string"}, "description": "The event's id"}
    described["openapi_extra"]["parameters"].append({"in": "path", "required": True, **event})
    return described


def _deleting() -> dict[str, Any]:
    return {
        "summary": "End a trigger",
        "status_code": 204,
        "openapi_extra": {"parameters": [{"in": "path", "required": True, **_PATH}]},
        "responses": {204: {"description": "It is ended"}, **{each: error(each) for each in (*_ERRORS, 404, 429)}},
    }


def trigger_schemas() -> Json:
    """Every schema by name."""
    where: Json = {"type": "object", "description": 'A filter such as {"price": {"_gt": 10}}'}
    unmatch = {**where, "type": ["object", "null"]}
    given: Json = {
        "table": {"type": "string", "description": "Any table whose changes are recorded"},
        "match": where,
        "unmatch": {**unmatch, "description": "When a row leaves; null: when `match` is no longer true"},
        "webhook": {"type": "string", "maxLength": 2048, "description": "URL that webhooks are posted to"},
        "enabled": {"type": "boolean", "default": True},
        "snapshot": {
            "type": "boolean",
            "default": False,
            "description": "Also send a webhook for each row that already matches",
        },
    }
    secrets = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 4}
    hidden: Json = {
        "secrets": {**secrets, "type": ["array", "null"], "description": "whsec_..., newest first; shown only once"},
        "secret": {"type": ["string", "null"], "description": "The only one"},
    }
    tenant = {"type": ["string", "null"], "minLength": 1}
    made = {"name": _NAME, "tenantId": {"type": "string"}, **given, "createdSequence": {"type": "integer"}}
    page = {"type": ["string", "null"], "description": "Cursor of the next page"}
    return {
        "Trigger": _object(made, required=list(made)),
        "NewTrigger": _object(
            {"name": _NAME, "tenantId": tenant, **given, **hidden}, required=["name", "table", "match", "webhook"]
        ),
        "MadeTrigger": _object({**made, "secrets": secrets}, required=list(made)),
        "TriggerPatch": _object({**given, **hidden}),
        "TriggerPage": _object({"items": {"type": "array", "items": ref("Trigger")}, "next": page}),
        "Redelivery": _object({"eventIds": {"type": ["array", "null"], "items": {"type": "string"}}}),
        "Redelivered": _object({"queued": {"type": "integer"}}),
        "Delivery": _object(_delivery()),
        "Attempts": _object(
            {
                **_delivery(),
                "data": {"type": "object", "description": "The row it reports"},
                "items": {"type": "array", "items": ref("Attempt")},
                "next": page,
            }
        ),
        "Attempt": _object(_attempt()),
        "DeliveryPage": _object({"items": {"type": "array", "items": ref("Delivery")}, "next": page}),
    }


def _delivery() -> Json:
    moment = {"type": ["string", "null"], "format": "date-time"}
    text = {"type": ["string", "null"]}
    return {
        "eventId": {"type": "string"},
        "eventType": {"enum": ["MATCH", "UNMATCH"]},
        "key": {"type": "string"},
        "sourceTimestamp": {"type": "string"},
        "status": {"enum": list(STATUSES)},
        "attempts": {"type": "integer"},
        "nextAttemptAt": moment,
        "queuedAt": moment,
        "settledAt": moment,
        "outcome": {**text, "description": "Outcome of the last attempt"},
        "httpStatus": {"type": ["integer", "null"]},
        "response": {**text, "description": "Beginning of the response, or why there was none"},
    }


def _attempt() -> Json:
    return {
        "number": {"type": "integer"},
        "sentAt": {"type": "string", "format": "date-time"},
        "seconds": {"type": "number"},
        "outcome": {"enum": list(OUTCOMES)},
        "httpStatus": {"type": ["integer", "null"]},
        "response": {"type": "string"},
    }


def _object(properties: Json, required: list[str] | None = None) -> Json:
    described: Json = {"type": "object", "properties": properties, "additionalProperties": False}
    return described | ({"required": required} if required else {})
