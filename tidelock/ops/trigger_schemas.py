"""The API's document of triggers: their operations, and the schemas of what comes in and goes out."""

from __future__ import annotations

from typing import Any

from tidelock.ingest.body import JSON
from tidelock.ops.openapi import answer, error, operation
from tidelock.ops.schemas import Json, ref
from tidelock.ops.triggers import DELIVERIES, LIST
from tidelock.triggers.attempts import OUTCOMES
from tidelock.triggers.outbox import STATUSES

_NAME = {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$"}
_PATH: Json = {"name": "name", "schema": {"type": "string", "minLength": 1}, "description": "The trigger's name"}
_ERRORS = (400, 401, 403, 503)
_WRITING = (400, 401, 403, 413, 415, 422, 429, 503)


def trigger_operations() -> list[tuple[str, str, str, dict[str, Any]]]:
    """Path, method, name of the handler and description of every route."""
    one, history = "/v1/triggers/{name}", "/v1/triggers/{name}/deliveries"
    return [
        ("/v1/triggers", "GET", "all", operation("Triggers", "TriggerPage", parameters=LIST, errors=_ERRORS)),
        (
            "/v1/triggers",
            "POST",
            "create",
            _writing("Make a trigger", "NewTrigger", "MadeTrigger", 201, (*_WRITING, 409)),
        ),
        (one, "GET", "one", operation("A trigger", "Trigger", path=_PATH, errors=(*_ERRORS, 404))),
        (one, "PATCH", "change", _writing("Change a trigger", "TriggerPatch", "Trigger", 200, (*_WRITING, 404), _PATH)),
        (one, "DELETE", "delete", _deleting()),
        (
            history,
            "GET",
            "deliveries",
            operation(
                "What became of its webhooks, the newest first",
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
            _writing(
                "Deliver again, with the same ids",
                "Redelivery",
                "Redelivered",
                200,
                (*_WRITING, 404),
                _PATH,
                optional=True,
            ),
        ),
    ]


def _writing(
    summary: str,
    body: str,
    answered: str,
    status: int,
    errors: Any,
    path: Json | None = None,
    *,
    optional: bool = False,
) -> dict[str, Any]:
    described = [] if path is None else [{"in": "path", "required": True, **path}]
    request = {"required": not optional, "content": {JSON: {"schema": ref(body)}}}
    return {
        "summary": summary,
        "status_code": status,
        "openapi_extra": {"parameters": described, "requestBody": request},
        "responses": {status: answer(summary, answered), **{each: error(each) for each in errors}},
    }


def _attempts() -> dict[str, Any]:
    summary = "The attempts to deliver one event, the newest first"
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
        "unmatch": {**unmatch, "description": "When a row leaves; null: when `match` is not true"},
        "webhook": {"type": "string", "maxLength": 2048, "description": "URL that is posted to"},
        "enabled": {"type": "boolean", "default": True},
        "snapshot": {"type": "boolean", "default": False, "description": "Tell of rows that match already"},
    }
    secrets = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 4}
    hidden: Json = {
        "secrets": {**secrets, "type": ["array", "null"], "description": "whsec_..., newest first; never shown again"},
        "secret": {"type": ["string", "null"], "description": "The only one"},
    }
    tenant = {"type": ["string", "null"], "minLength": 1}
    made = {"name": _NAME, "tenantId": {"type": "string"}, **given, "createdSequence": {"type": "integer"}}
    page = {"type": ["string", "null"], "description": "Cursor of the page after"}
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
                "data": {"type": "object", "description": "The row that it tells of"},
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
        "outcome": {**text, "description": "What came of the last attempt"},
        "httpStatus": {"type": ["integer", "null"]},
        "response": {**text, "description": "The beginning of the answer, or why there was none"},
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
