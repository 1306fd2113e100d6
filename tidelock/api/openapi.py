"""The API's document: operations with their parameters, bodies and answers, complete enough to be fuzzed by."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from tidelock.api.health import EventHealth, Health
from tidelock.http.parameters import SEQUENCE_MAX
from tidelock.http.problems import ErrorBody
from tidelock.ingest.body import CLOUDEVENT, CLOUDEVENTS, ENCODINGS, JSON, KEY_HEADER, NDJSON
from tidelock.ingest.wire import KEY_BYTES_MAX, NAME_CHARACTERS_MAX, OPS
from tidelock.ledger.reader import Caused
from tidelock.model import Answer, Recorded
from tidelock.usage.explain import Explanation
from tidelock.usage.exports import UsagePage
from tidelock.usage.usage import Usage

_ABOUT = """One ordered ledger for retried, late, out-of-order events.

Live events arrive over a WebSocket at `/ws?after=S&stream&customerRef&causalityKey&tenantId`, one per text frame: with
`after` everything after that sequence, otherwise from now on.

`/graphql` answers queries over HTTP as described here; its schema is available by introspection."""

_ERRORS = {
    400: "The request cannot be read; `error.field` says where",
    401: "An API key is required",
    403: "The API key does not permit this",
    404: "Not found",
    409: "The name is already in use, or another one is running",
    406: "The response cannot be sent in an accepted content type",
    413: "Too many events or bytes",
    415: "Content type or encoding not supported",
    422: "The filter or definition is not valid here; `error.field` says where",
    429: "Too many events are waiting; retry after `Retry-After` seconds",
    503: "The ledger is unavailable; retry after `Retry-After` seconds",
}

_INGEST_ERRORS = (400, 401, 403, 413, 415, 429, 503)

#: how the page groups them, in order; public ones need no key
_GROUPS = {
    "Send": ("/v1/events",),
    "Read": ("/admin/events", "/v1/causality/{key}"),
    "Tables": (
        "/v1/usage",
        "/v1/explain",
        "/v1/counters",
        "/v1/adjustments",
        "/v1/periods",
        "/v1/periods/close",
        "/v1/statements",
        "/v1/batches",
        "/v1/batches/preview",
        "/v1/batches/revert",
        "/v1/meters/try",
        "/v1/meters/diff",
        "/v1/late",
        "/v1/errors",
        "/v1/tables/{table}",
    ),
    "Triggers": (
        "/v1/triggers",
        "/v1/triggers/{name}",
        "/v1/triggers/{name}/deliveries",
        "/v1/triggers/{name}/deliveries/{event_id}",
        "/v1/triggers/{name}/redeliver",
    ),
    "GraphQL": ("/graphql",),
    "Operate": (
        "/admin/event-health",
        "/admin/activity",
        "/admin/definitions",
        "/admin/verify",
        "/metrics",
        "/readyz",
        "/healthz",
    ),
}
_OPEN = ("/readyz", "/healthz")

#: what programs call operations by; others are named after their method and path
_IDS = {
    "post /v1/events": "record_events",
    "get /admin/events": "list_events",
    "get /v1/causality/{key}": "list_causality",
    "get /v1/usage": "get_usage",
    "get /v1/explain": "explain_counter",
    "get /v1/periods": "list_periods",
    "post /v1/periods/close": "close_periods",
    "get /v1/statements": "list_statements",
    "get /v1/batches": "list_batches",
    "get /v1/batches/preview": "preview_revert",
    "post /v1/batches/revert": "revert_batch",
    "post /v1/meters/try": "try_event",
    "get /v1/meters/diff": "get_meter_comparison",
    "post /v1/meters/diff": "compare_meters",
    "delete /v1/meters/diff": "stop_meter_comparison",
    "get /v1/counters": "list_counters",
    "get /v1/adjustments": "list_adjustments",
    "get /v1/late": "list_late_rows",
    "get /v1/errors": "list_error_rows",
    "get /v1/tables/{table}": "list_rows",
    "get /v1/triggers": "list_triggers",
    "post /v1/triggers": "create_trigger",
    "get /v1/triggers/{name}": "get_trigger",
    "patch /v1/triggers/{name}": "update_trigger",
    "delete /v1/triggers/{name}": "delete_trigger",
    "get /v1/triggers/{name}/deliveries": "list_deliveries",
    "get /v1/triggers/{name}/deliveries/{event_id}": "get_delivery",
    "post /v1/triggers/{name}/redeliver": "redeliver",
    "get /graphql": "get_graphql",
    "post /graphql": "post_graphql",
    "get /admin/event-health": "get_event_health",
    "get /admin/activity": "get_activity",
    "get /admin/definitions": "get_definitions",
    "get /admin/verify": "get_verification",
    "post /admin/verify": "start_verification",
    "delete /admin/verify": "stop_verification",
    "get /metrics": "get_metrics",
    "get /readyz": "get_readiness",
    "get /healthz": "get_liveness",
}

_SEQUENCE = {"type": "integer", "minimum": 0, "maximum": SEQUENCE_MAX}
_NAME = {"type": "string", "minLength": 1}
_INSTANT = {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "integer"}]}
_PARAMETERS: dict[str, tuple[Json, str]] = {
    "tenantId": (_NAME, "Only this tenant; an API key of one tenant implies it"),
    "stream": (_NAME, "Only this stream"),
    "customerRef": ({"type": "string"}, "Only this customer"),
    "causalityKey": ({"type": "string"}, "Only this run"),
    "correlationId": ({"type": "string"}, "Only those with this correlationId"),
    "batchId": ({"type": "string"}, "Only this batch"),
    "targetSequence": (_SEQUENCE | {"minimum": 1}, "Only the void or amendment of the event with this sequence"),
    "from": (
        _INSTANT,
        "At or after this instant (of occurredAt, event time or period): RFC 3339, or integer epoch milliseconds",
    ),
    "to": (_INSTANT, "Before"),
    "metric": (_NAME, "Name of a meter"),
    "window": (_NAME, "Only this window, or STREAM_ordered"),
    "period": (
        {"anyOf": [*_INSTANT["anyOf"], {"type": "string", "format": "date"}]},
        "The period that contains this instant or date; default: the latest period",
    ),
    "group": ({"type": "string"}, "Only this group of a meter with group_by"),
    "groupNull": (
        {"type": "string", "enum": ["true", "false"], "default": "false"},
        "Only the group of events without a value in the group column",
    ),
    "asOf": (
        {**_SEQUENCE, "minimum": 1},
        "The value as of this sequence, by the current definitions",
    ),
    "groupBy": ({"type": "string", "enum": ["true", "false"], "default": "false"}, "By the meter's groups"),
    "source": ({"type": "string"}, "Only errors of this stream or meter"),
    "open": (
        {"type": "string", "enum": ["true", "false"], "default": "false"},
        "For a window: its open windows instead, as they would be if they closed now, each with `open: true`",
    ),
    "reason": ({"type": "string"}, "Only rows with this reason: late or drained"),
    "code": ({"type": "string"}, "Only errors with this code"),
    "where": ({"type": "string"}, 'A filter on the columns as JSON text, such as {"value": {"_gt": 10}}'),
    "status": ({"type": "string", "enum": ["pending", "delivered", "dead"]}, "Only deliveries with this status"),
    "after": (_SEQUENCE, "Events after this sequence"),
    "before": (_SEQUENCE, "Events before this sequence"),
    "order": (
        {"type": "string", "enum": ["asc", "desc"], "default": "asc"},
        "Order by sequence; a cursor keeps its own order",
    ),
    "limit": (
        {"type": "integer", "minimum": 1, "maximum": 1000},
        "Maximum number of items, 100 if absent; a page with much data has fewer",
    ),
    "cursor": ({"type": "string"}, "`next` of the previous page"),
}

Json = dict[str, Any]

_REF = "#/components/schemas/{name}"


def operation(
    summary: str,
    answered: str,
    *,
    parameters: Sequence[str] = (),
    needed: Sequence[str] = (),
    path: Json | None = None,
    errors: Sequence[int] = (),
    otherwise: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The description for FastAPI of a route whose handler reads and writes by itself.

    `otherwise` describes parameters with a different meaning here.
    """
    described = [] if path is None else [{"in": "path", "required": True, **path}]
    for name in parameters:
        schema, about = _PARAMETERS[name]
        required = name in needed
        about = (otherwise or {}).get(name, about)
        described.append({"in": "query", "name": name, "schema": schema, "description": about, "required": required})
    return {
        "summary": summary,
        "openapi_extra": {"parameters": described},
        "responses": {200: answer(summary, answered), **{status: error(status) for status in errors}},
    }


def writing(
    summary: str,
    body: str,
    answered: str,
    *,
    errors: Sequence[int],
    status: int = 200,
    about: str | None = None,
    path: Json | None = None,
    optional: bool = False,
) -> dict[str, Any]:
    """The description for FastAPI of a route that takes a JSON body and reads it by itself.

    `about`: what the answer is, if the summary does not say it.
    """
    described = [] if path is None else [{"in": "path", "required": True, **path}]
    request = {"required": not optional, "content": {JSON: {"schema": ref(body)}}}
    return {
        "summary": summary,
        "status_code": status,
        "openapi_extra": {"parameters": described, "requestBody": request},
        "responses": {status: answer(about or summary, answered), **{each: error(each) for each in errors}},
    }


def graphql_operations() -> tuple[dict[str, Any], dict[str, Any]]:
    """The description for FastAPI of `GET /graphql` and `POST /graphql`."""
    body = {"required": True, "content": {JSON: {"schema": ref("GraphQLRequest")}}}
    parameters = [
        {"in": "query", "name": name, "schema": {"type": "string"}, "description": about, "required": name == "query"}
        for name, about in (
            ("query", "The document"),
            ("operationName", "Name of the operation to execute"),
            ("variables", "Variables, as JSON"),
        )
    ]
    return (
        _graphql("A GraphQL query, in the URL", (400, 401, 403, 406, 503), {"parameters": parameters}),
        _graphql("A GraphQL query", (400, 401, 403, 406, 413, 415, 503), {"requestBody": body}),
    )


def _graphql(summary: str, errors: Sequence[int], asked: Json) -> dict[str, Any]:
    schema = {"schema": ref("GraphQLAnswer")}
    content = {JSON: schema, "application/graphql-response+json": schema}
    described = {200: summary, **{status: _ERRORS[status] for status in errors}}
    described[400] = "The request cannot be read or executed; see `errors`"
    return {
        "summary": summary,
        "openapi_extra": asked,
        "responses": {status: {"description": about, "content": content} for status, about in described.items()},
    }


def describe(app: FastAPI, schemas: Json) -> None:
    """Let the app serve the whole document, with the routes unknown to FastAPI and further schemas."""
    built: Json = {}

    def openapi() -> Json:
        if not built:
            built.update(get_openapi(title=app.title, version=app.version, description=_ABOUT, routes=app.routes))
            built["paths"] = _grouped({**built["paths"], "/v1/events": {"post": _ingest()}})
            schemes = {
                "apiKey": {"type": "http", "scheme": "bearer", "description": "An API key; required once one exists"}
            }
            built["components"] = {"schemas": {**components(), **schemas}, "securitySchemes": schemes}
            built["security"] = [{}, {"apiKey": []}]
        return built

    app.openapi = openapi  # type: ignore[method-assign]


def _grouped(paths: Json) -> Json:
    """The paths in the order of the groups. A path in no group is an error."""
    group_of = {path: group for group, listed in _GROUPS.items() for path in listed}
    for path, operations in paths.items():
        for method, described in operations.items():
            described["tags"] = [group_of[path]]
            described["operationId"] = _IDS.get(f"{method} {path}") or _words(f"{method} {path}")
            if path in _OPEN:
                described["security"] = []
    return {path: paths[path] for path in group_of}


def _words(text: str) -> str:
    return "_".join(re.findall(r"[a-z0-9]+", text.replace("/v1/", " ").replace("/admin/", " ").lower()))


def answer(about: str, schema: str) -> Json:
    """A response in JSON."""
    return {"description": about, "content": {JSON: {"schema": ref(schema)}}}


def error(status: int) -> Json:
    """A response that is not a success."""
    return answer(_ERRORS[status], "ErrorBody")


def _ingest() -> Json:
    # Generated clients fail where a body is either an array or an object, so the description names the other forms.
    lines = {"type": "string", "description": "One JSON event per line"}
    batch = {"type": "string", "description": "A JSON array of CloudEvents"}
    return {
        "summary": "Record events",
        "description": "One verdict per event, in the same order, once the accepted events are durable. A JSON body "
        "may also be a bare array of events. A CloudEvent in binary mode is accepted too: with a `ce-specversion` "
        "header, the `ce-*` headers are its attributes and the body is its data.",
        "parameters": [
            {
                "in": "header",
                "name": "Content-Encoding",
                "description": "Compression of the body",
                "schema": {"type": "string", "enum": ["identity", *ENCODINGS]},
            },
            {
                "in": "header",
                "name": KEY_HEADER,
                "description": "Idempotency key of the request's only event",
                "schema": {"type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX},
            },
        ],
        "requestBody": {
            "required": True,
            "content": {
                JSON: {"schema": {"anyOf": [ref("EventBatch"), ref("Event")]}},
                NDJSON: {"schema": lines},
                CLOUDEVENT: {"schema": ref("CloudEvent")},
                CLOUDEVENTS: {"schema": batch},
            },
        },
        "responses": {
            "200": answer("Processed; rejected events carry an error", "Answer"),
            **{str(status): error(status) for status in _INGEST_ERRORS},
        },
    }


class EventPage(msgspec.Struct):
    """A page of events; `next` is the cursor of the next page, null on the last one."""

    items: list[Recorded]
    next: str | None


class CausalityPage(msgspec.Struct):
    """A page of the events of one run, each with its parent."""

    items: list[Caused]
    next: str | None


class RowPage(msgspec.Struct):
    """A page of a table's rows: `tenant_id` and its columns; `next` is the cursor of the next page."""

    items: list[dict[str, Any]]
    next: str | None


class Alive(msgspec.Struct):
    """The process answers."""

    status: str


def ref(name: str) -> Json:
    return {"$ref": _REF.format(name=name)}


def components() -> Json:
    """Every named schema: those of responses come from the types they are encoded from."""
    types = [
        Answer,
        EventPage,
        CausalityPage,
        RowPage,
        Usage,
        UsagePage,
        Explanation,
        ErrorBody,
        Health,
        EventHealth,
        Alive,
    ]
    _, answers = msgspec.json.schema_components(types, ref_template=_REF)
    batch = {
        "type": "object",
        "description": "Events that are recorded together, in this order.",
        "required": ["events"],
        "additionalProperties": False,
        "properties": {"events": {"type": "array", "items": ref("Event")}},
    }
    sent = {"Event": _event(), "EventBatch": batch, "CloudEvent": _cloudevent(), "GraphQLRequest": _graphql_request()}
    sent["UsageAnswer"] = {"anyOf": [ref("Usage"), ref("UsagePage")]}
    return {**answers, **sent, "GraphQLAnswer": _graphql_answer()}


def _text(about: str, *, length_max: int = NAME_CHARACTERS_MAX, length_min: int = 0) -> Json:
    return {"type": ["string", "null"], "description": about, "maxLength": length_max, "minLength": length_min}


def _event() -> Json:
    instant = {
        "description": "When it happened: RFC 3339, or integer epoch milliseconds",
        "anyOf": [{"type": "string", "format": "date-time"}, {"type": "integer"}, {"type": "null"}],
    }
    data = {"description": "Any JSON; stored exactly as sent"}
    return {
        "type": "object",
        "description": "One event. `stream` (or `metric`) is required; null is the same as absent.",
        "additionalProperties": False,
        "properties": {
            "tenantId": _text("Default: the API key's tenant, or `default`", length_min=1),
            "stream": _text("The kind of event", length_min=1),
            "metric": _text("Alias of `stream`", length_min=1),
            "customerRef": _text("The customer the event is about"),
            "resourceId": _text("The resource the event is about"),
            "ts": instant,
            "occurredAt": {**instant, "description": "Alias of `ts`"},
            "quantity": {
                "description": "Exact decimal: below 10^18, at most nine decimals",
                "type": ["string", "number", "null"],
            },
            "data": data,
            "meta": {"description": "Alias of `data`"},
            "payload": {"description": "Alias of `data`"},
            "op": {
                "enum": [*OPS, None],
                "description": "`upsert` (default) or `delete`: in a keyed stream, set or remove the row. `void` or "
                "`amend`: take back the `target`, or give it another quantity or other data",
            },
            "target": _text(
                "Of a void or an amendment: idempotency key of the event that it corrects", length_max=KEY_BYTES_MAX
            ),
            "reason": _text("Why, in your words"),
            "batchId": _text("The batch this event came with, such as a file"),
            "causalityKey": _text("The run this event belongs to"),
            "correlationId": _text("Any ID of yours that correlates events"),
            "causationId": _text("Idempotency key of the event that caused this one", length_max=KEY_BYTES_MAX),
            "idempotencyKey": _text(
                "Events with the same key are recorded once", length_max=KEY_BYTES_MAX, length_min=1
            ),
            "source": _text("Who sent it"),
        },
        "examples": [{"stream": "api_calls", "customerRef": "cus_1", "ts": "2026-01-31T23:59:59.5Z", "quantity": "1"}],
    }


def _cloudevent() -> Json:
    text = {"type": "string", "minLength": 1, "maxLength": NAME_CHARACTERS_MAX}
    key = {**text, "maxLength": KEY_BYTES_MAX}
    return {
        "type": "object",
        "description": "A CloudEvent 1.0 in structured JSON form. Other extensions are ignored.",
        "required": ["specversion", "id", "source", "type"],
        "properties": {
            "specversion": {"const": "1.0"},
            "id": {**key, "description": "With the source the event's key, which has up to 1 KiB"},
            "source": text,
            "type": {**text, "description": "The stream"},
            "subject": {**text, "description": "The customerRef"},
            "time": {"type": "string", "format": "date-time"},
            "datacontenttype": {**text, "description": "What `data_base64` is; without it, bytes"},
            "data": {},
            "data_base64": {"type": "string", "contentEncoding": "base64", "description": "Instead of `data`"},
            "tenantid": text,
            "quantity": {"type": ["string", "number"]},
            "resourceid": text,
            "causalitykey": text,
            "correlationid": text,
            "causationid": key,
            "op": {"enum": list(OPS)},
            "target": {**key, "description": "Of a void or an amendment: the key of the event that it corrects"},
            "reason": text,
            "batchid": text,
        },
    }


def _graphql_request() -> Json:
    anything = {"type": ["object", "null"]}
    return {
        "type": "object",
        "description": "A GraphQL document with its variables.",
        "required": ["query"],
        "properties": {
            "query": {"type": "string"},
            "operationName": {"type": ["string", "null"], "description": "Name of the operation to execute"},
            "variables": {**anything, "description": "Numbers that JavaScript would round may be sent as strings"},
            "extensions": anything,
        },
        "examples": [{"query": "{ counters(limit: 10) { metric customer_ref period_start value } }"}],
    }


def _graphql_answer() -> Json:
    extensions = {"type": "object", "required": ["code"], "properties": {"code": {"type": "string"}}}
    place = {"type": "object", "properties": {"line": {"type": "integer"}, "column": {"type": "integer"}}}
    locations = {"type": "array", "items": place}
    error = {
        "type": "object",
        "required": ["message", "extensions"],
        "properties": {"message": {"type": "string"}, "locations": locations, "extensions": extensions},
    }
    return {
        "type": "object",
        "description": "`data`, or `errors` if there is none.",
        "properties": {
            "data": {"type": "object"},
            "errors": {"type": "array", "minItems": 1, "items": error},
            "error": {"type": "object", "description": "For errors in JSON: as on other paths"},
        },
    }
