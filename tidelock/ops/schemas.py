"""Schemas of what comes in and what goes out, as the API's document has them."""

from __future__ import annotations

from typing import Any

import msgspec

from tidelock.ingest.wire import KEY_BYTES_MAX, NAME_CHARACTERS_MAX
from tidelock.ledger.reader import Caused
from tidelock.model import Answer, Recorded
from tidelock.ops.explain.shapes import Explanation
from tidelock.ops.health import EventHealth, Health
from tidelock.ops.problems import ErrorBody
from tidelock.ops.usage import Usage

Json = dict[str, Any]

_REF = "#/components/schemas/{name}"


class EventPage(msgspec.Struct):
    """A page of events; `next` is the cursor of the page after, null on the last one."""

    items: list[Recorded]
    next: str | None


class CausalityPage(msgspec.Struct):
    """A page of the events of one run, each with its parent."""

    items: list[Caused]
    next: str | None


class RowPage(msgspec.Struct):
    """A page of a table's rows: `tenant_id` and its columns; `next` is the cursor of the page after."""

    items: list[dict[str, Any]]
    next: str | None


class Alive(msgspec.Struct):
    """The process answers."""

    status: str


def ref(name: str) -> Json:
    return {"$ref": _REF.format(name=name)}


def components() -> Json:
    """Every named schema: those of answers come from the types they are encoded from."""
    types = [Answer, EventPage, CausalityPage, RowPage, Usage, Explanation, ErrorBody, Health, EventHealth, Alive]
    _, answers = msgspec.json.schema_components(types, ref_template=_REF)
    sent = {"Event": _event(), "CloudEvent": _cloudevent(), "GraphQLRequest": _graphql_request()}
    return {**answers, **sent, "GraphQLAnswer": _graphql_answer()}


def _text(about: str, *, length_max: int = NAME_CHARACTERS_MAX, length_min: int = 0) -> Json:
    return {"type": ["string", "null"], "description": about, "maxLength": length_max, "minLength": length_min}


def _event() -> Json:
    instant = {
        "description": "When it happened: RFC 3339, or integer epoch milliseconds",
        "anyOf": [{"type": "string", "format": "date-time"}, {"type": "integer"}, {"type": "null"}],
    }
    data = {"description": "Any JSON; kept as it was sent"}
    return {
        "type": "object",
        "description": "One event. `stream` (or `metric`) is required; null means absent.",
        "additionalProperties": False,
        "properties": {
            "tenantId": _text("Absent: the API key's tenant, else `default`", length_min=1),
            "stream": _text("The kind of event", length_min=1),
            "metric": _text("Another name of `stream`", length_min=1),
            "customerRef": _text("Whom the event is about"),
            "resourceId": _text("What the event is about"),
            "ts": instant,
            "occurredAt": {**instant, "description": "Another name of `ts`"},
            "quantity": {
                "description": "Exact decimal: below 10^18, at most nine decimals",
                "type": ["string", "number", "null"],
            },
            "data": data,
            "meta": {"description": "Another name of `data`"},
            "payload": {"description": "Another name of `data`"},
            "op": {"enum": ["upsert", "delete", None], "description": "In a keyed stream: set the row or remove it"},
            "causalityKey": _text("The run this event belongs to"),
            "correlationId": _text("Whatever ties events together for you"),
            "causationId": _text("Key of the event that caused this one", length_max=KEY_BYTES_MAX),
            "idempotencyKey": _text("Two sends with one key are one event", length_max=KEY_BYTES_MAX, length_min=1),
            "source": _text("Who sent it"),
        },
        "examples": [{"stream": "api_calls", "customerRef": "cus_1", "ts": "2026-01-31T23:59:59.5Z", "quantity": "1"}],
    }


def _cloudevent() -> Json:
    text = {"type": "string", "minLength": 1, "maxLength": NAME_CHARACTERS_MAX}
    key = {**text, "maxLength": KEY_BYTES_MAX}
    return {
        "type": "object",
        "description": "A CloudEvent 1.0 in structured JSON form. Extensions that are not named here are ignored.",
        "required": ["specversion", "id", "source", "type"],
        "properties": {
            "specversion": {"const": "1.0"},
            "id": {**key, "description": "With the source the event's key, which has up to 1 KiB"},
            "source": text,
            "type": {**text, "description": "The stream"},
            "subject": {**text, "description": "The customerRef"},
            "time": {"type": "string", "format": "date-time"},
            "data": {},
            "tenantid": text,
            "quantity": {"type": ["string", "number"]},
            "resourceid": text,
            "causalitykey": text,
            "correlationid": text,
            "causationid": key,
        },
    }


def _graphql_request() -> Json:
    anything = {"type": ["object", "null"]}
    return {
        "type": "object",
        "description": "A GraphQL document and what it is executed with.",
        "required": ["query"],
        "properties": {
            "query": {"type": "string"},
            "operationName": {"type": ["string", "null"], "description": "Which of its operations"},
            "variables": {**anything, "description": "Numbers that JavaScript would round may be sent as texts"},
            "extensions": anything,
        },
        "examples": [{"query": "{ counters(limit: 10) { metric customer_ref period_start value } }"}],
    }


def _graphql_answer() -> Json:
    extensions = {"type": "object", "required": ["code"], "properties": {"code": {"type": "string"}}}
    error = {
        "type": "object",
        "required": ["message", "extensions"],
        "properties": {"message": {"type": "string"}, "locations": {"type": "array"}, "extensions": extensions},
    }
    return {
        "type": "object",
        "description": "`data`, or `errors` that say why there is none.",
        "properties": {
            "data": {"type": "object"},
            "errors": {"type": "array", "minItems": 1, "items": error},
            "error": {"type": "object", "description": "In JSON, where the status is no success: as on other paths"},
        },
    }
