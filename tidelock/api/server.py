"""The HTTP application: every route, its responses, and the form of errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from fastapi import FastAPI
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from tidelock import __version__
from tidelock.api.activity import ActivityLog
from tidelock.api.batches import BatchRoutes, batch_operations, batch_schemas
from tidelock.api.comparison import Comparing
from tidelock.api.docs import install_docs
from tidelock.api.events import CAUSALITY, EVENTS, EventLists, TailRoute
from tidelock.api.health import Probe
from tidelock.api.ingest import IngestBypass, IngestRoute
from tidelock.api.meters import MeterRoutes, meter_operations, meter_schemas
from tidelock.api.metrics import LiveState, Measured, Metrics, TriggerMetrics
from tidelock.api.openapi import describe, graphql_operations, operation
from tidelock.api.operations import HEALTH, AdminRoutes, HealthRoutes, admin_operations, admin_schemas
from tidelock.api.periods import PeriodRoutes, period_operations, period_schemas
from tidelock.api.tables import (
    ADJUSTMENT_LIST,
    ANY_TABLE,
    COUNTER_LIST,
    ERROR_LIST,
    EXPLAIN,
    LATE_LIST,
    USAGE,
    Explain,
    Tables,
)
from tidelock.api.triggers import Triggers, trigger_operations, trigger_schemas
from tidelock.api.verification import Verifying
from tidelock.graphql.execution import GraphQL, Operations
from tidelock.graphql.http import GraphQLRoute
from tidelock.graphql.sse import GraphQLStreams
from tidelock.graphql.triggers import answering_triggers, trigger_fields
from tidelock.graphql.websocket import GraphQLSockets
from tidelock.http.access import Access, Origins
from tidelock.http.clients import ClientSlots
from tidelock.http.gate import Gate, GateMetrics
from tidelock.http.problems import install_problems
from tidelock.ingest.intake import Intake
from tidelock.ledger.apikeys import KeyNews
from tidelock.ledger.feed import Feed
from tidelock.ledger.sequencer import Sequencer
from tidelock.postgres.database import Database
from tidelock.postgres.pool import Connections
from tidelock.settings import Settings
from tidelock.triggers.admin import TriggerAdmin
from tidelock.triggers.delivery import TriggerWorkers
from tidelock.views.hub import Hub

_READ_ERRORS = (400, 401, 403, 503)
#: its GET may be a subscription, which has no end
_GRAPHQL = "/graphql"


@dataclass(frozen=True, slots=True)
class Parts:
    """What the application serves."""

    settings: Settings
    intake: Intake
    sequencer: Sequencer
    feed: Feed
    hub: Hub
    keys: KeyNews
    #: for lists, which may take long
    reads: Connections
    #: for explanations, which may take longer: lists must not wait for them
    explains: Connections
    #: for keys and health, which must not wait for a long list
    short: Connections
    database: Database
    triggers: TriggerWorkers
    verifying: Verifying
    comparing: Comparing
    gate: Gate
    #: the readers that health reports
    probes: Sequence[Probe] = ()


class Console(Protocol):
    """Pages for people: it serves what no route of the API matches, and calls that API itself."""

    def attach(self, api: ASGIApp, access: Access) -> None: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class _CountedRoute(Route):
    """One that metrics know by its path, as they do those of the framework."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = self
        await super().handle(scope, receive, send)


class _AnyKey(Convertor[str]):
    """The rest of the path, whatever a key contains: slashes and line ends too."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("anykey", _AnyKey())


def make_app(parts: Parts, console: Console | None = None) -> ASGIApp:
    """The application over an open ledger."""
    settings = parts.settings
    # A path has one spelling, and the docs pages are served from here, not from a CDN.
    app = FastAPI(title="Tidelock", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    access = Access(parts.short, parts.keys, settings.key_cache_s)
    places = ClientSlots(settings.live_connections_max, "GraphQL clients of this tenant")
    metrics = Metrics(parts.sequencer, parts.feed, lambda: LiveState(parts.hub.state, places.taken))
    activity = ActivityLog()
    ingest = IngestRoute(parts.intake, access, metrics, activity, settings)
    tail = TailRoute(parts.feed, parts.short, access, settings)
    watched = TriggerMetrics(parts.triggers)
    metrics.registry.register(watched)
    metrics.registry.register(GateMetrics(parts.gate))
    health = HealthRoutes(parts.short, access, metrics, settings, probes=parts.probes, measures=[watched.look])
    app.router.routes[:0] = [
        # For probes: HEAD too, which the document need not repeat.
        _CountedRoute("/healthz", health.alive, include_in_schema=False),
        _CountedRoute("/readyz", health.ready, include_in_schema=False),
        Route(IngestBypass.path, ingest, methods=["POST"], include_in_schema=False),
        WebSocketRoute("/ws", tail),
        _CountedRoute("/ws", _websocket_only, include_in_schema=False),
    ]
    admin = TriggerAdmin(parts.sequencer, parts.database, parts.reads, settings)
    _add_graphql(app, parts, access, places, admin)
    _add_lists(app, EventLists(parts.reads, access, settings))
    _add_tables(app, Tables(parts.reads, parts.explains, access, settings), Explain(parts.explains, access, settings))
    _add_periods(app, PeriodRoutes(parts.sequencer, parts.reads, access, settings))
    _add_batches(app, BatchRoutes(parts.intake, parts.reads, parts.explains, access, settings))
    _add_meters(app, MeterRoutes(parts.explains, access, settings, parts.comparing))
    _add_triggers(app, Triggers(admin, access, settings))
    _add_health(app, health)
    _add_admin(app, AdminRoutes(parts.short, access, settings, activity, parts.verifying))
    if console is not None:
        console.attach(app, access)
    install_docs(app, console)
    install_problems(app, settings.retry_after_s)
    schemas = {**period_schemas(), **batch_schemas(), **meter_schemas()}
    describe(app, {**schemas, **trigger_schemas(), **admin_schemas()})
    app.router.default = console or _nothing_here
    inside = IngestBypass(app, ingest, settings.retry_after_s)
    return Measured(Origins(inside, access, settings.cors_origins, settings.retry_after_s), metrics)


def _add_graphql(app: FastAPI, parts: Parts, access: Access, places: ClientSlots, admin: TriggerAdmin) -> None:
    settings = parts.settings
    graphql = GraphQL(parts.reads, parts.short, settings, trigger_fields())
    answering = partial(answering_triggers, admin)
    operations = Operations(graphql, parts.hub, answering)
    streams = GraphQLStreams(operations, access, places, settings)
    route = GraphQLRoute(graphql, access, settings.retry_after_s, streams.answer, answering)
    app.router.routes[:0] = [WebSocketRoute(_GRAPHQL, GraphQLSockets(operations, access, places, settings))]
    get, post = graphql_operations()
    _add(app, _GRAPHQL, route.get, get)
    _add(app, _GRAPHQL, route.post, post, method="POST")


def _add_lists(app: FastAPI, lists: EventLists) -> None:
    key = {"name": "key", "schema": {"type": "string", "minLength": 1}, "description": "The causalityKey"}
    events = operation(
        "Events in ledger order",
        "EventPage",
        parameters=EVENTS,
        errors=_READ_ERRORS,
        otherwise={"source": "Only those that name this source, their sender"},
    )
    _add(app, "/admin/events", lists.events, events)
    _add(
        app,
        "/v1/causality/{key:anykey}",
        lists.causality,
        operation("The events of one run", "CausalityPage", parameters=CAUSALITY, path=key, errors=_READ_ERRORS),
    )


def _add_tables(app: FastAPI, tables: Tables, explain: Explain) -> None:
    name = {"name": "table", "schema": {"type": "string", "minLength": 1}, "description": "The table"}
    usage = operation(
        "Usage of a customer, or of all of them page by page; as CSV too",
        "UsageAnswer",
        parameters=USAGE,
        needed=("metric",),
        errors=(*_READ_ERRORS, 404),
        otherwise={
            "window": "Length of an item: hour, day, week or month; another than the meter's is for one customer",
            "customerRef": "Only this customer; absent: all, by customer, period and group, in pages",
            "asOf": "Of one customer: as it was when the fold had come to this sequence, by the current definitions",
        },
    )
    _add(app, "/v1/usage", tables.usage, usage)
    explained = operation(
        "Why a counter is what it is",
        "Explanation",
        parameters=EXPLAIN,
        needed=("metric", "customerRef"),
        errors=(*_READ_ERRORS, 404),
    )
    _add(app, "/v1/explain", explain.explain, explained)
    for path, handler, summary, listed in (
        ("/v1/counters", tables.counters, "Usage counters", COUNTER_LIST),
        (
            "/v1/adjustments",
            tables.adjustments,
            "Adjustments: events that were too late for their counter",
            ADJUSTMENT_LIST,
        ),
        ("/v1/late", tables.late, "Late rows: events that were too late for their window", LATE_LIST),
        ("/v1/errors", tables.errors, "Error rows: events that do not fit their definitions", ERROR_LIST),
    ):
        described = operation(summary, "RowPage", parameters=listed.parameters, errors=(*_READ_ERRORS, 422))
        _add(app, path, handler, described)
    rows = operation("Rows of a table", "RowPage", parameters=ANY_TABLE, path=name, errors=(*_READ_ERRORS, 404, 422))
    _add(app, "/v1/tables/{table}", tables.table, rows)


def _add_periods(app: FastAPI, routes: PeriodRoutes) -> None:
    for path, method, handler, described in period_operations():
        _add(app, path, getattr(routes, handler), described, method=method)


def _add_batches(app: FastAPI, routes: BatchRoutes) -> None:
    for path, method, handler, described in batch_operations():
        _add(app, path, getattr(routes, handler), described, method=method)


def _add_meters(app: FastAPI, routes: MeterRoutes) -> None:
    for path, method, handler, described in meter_operations():
        _add(app, path, getattr(routes, handler), described, method=method)


def _add_triggers(app: FastAPI, triggers: Triggers) -> None:
    for path, method, handler, described in trigger_operations():
        _add(app, path, getattr(triggers, handler), described, method=method)


def _add_admin(app: FastAPI, routes: AdminRoutes) -> None:
    for path, method, handler, described in admin_operations():
        _add(app, path, getattr(routes, handler), described, method=method)


def _add_health(app: FastAPI, routes: HealthRoutes) -> None:
    ready = operation("Ready for events", "Health")
    ready["responses"][503] = {**ready["responses"][200], "description": "Not ready"}
    measured = operation("Metrics", "Alive", errors=(401, 403, 503))
    text = {"schema": {"type": "string"}}
    content = {"text/plain": text, "application/openmetrics-text": text}
    measured["responses"][200] = {"description": "Metrics", "content": content}
    health = operation("Progress of readers and windows", "EventHealth", parameters=HEALTH, errors=_READ_ERRORS)
    _add(app, "/healthz", routes.alive, operation("The process is alive", "Alive"))
    _add(app, "/readyz", routes.ready, ready)
    _add(app, "/admin/event-health", routes.health, health)
    _add(app, "/metrics", routes.metrics, measured)


def _add(app: FastAPI, path: str, handler: Any, described: dict[str, Any], *, method: str = "GET") -> None:
    app.add_api_route(path, handler, methods=[method], response_class=Response, **described)
    if method == "GET" and path != _GRAPHQL:
        # HEAD needs no operation of its own in the document: the server leaves the body out.
        app.router.routes.append(_CountedRoute(path, handler, methods=["HEAD"], include_in_schema=False))


async def _websocket_only(_: Request) -> Response:
    raise HTTPException(426, headers={"upgrade": "websocket"})


async def _nothing_here(scope: Scope, receive: Receive, send: Send) -> None:
    """Also for WebSocket, where the framework would return 403."""
    raise HTTPException(404)
