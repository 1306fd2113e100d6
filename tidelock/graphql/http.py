"""GraphQL over HTTP: `POST /graphql` and `GET /graphql`, with the statuses of the GraphQL-over-HTTP specification."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from http import HTTPStatus
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tidelock.errors import (
    Exists,
    InvalidDefinition,
    NotFound,
    RequestError,
    TidelockError,
    UnsupportedMedia,
)
from tidelock.graphql.execution import SCOPES, Answering, GraphQL, check_allowed
from tidelock.graphql.requests import Request, RequestRefused, errors_of, read_request, read_variables, without_query
from tidelock.http.access import Access, Grant
from tidelock.http.parameters import whole_body
from tidelock.http.problems import body_of, headers_of, outages
from tidelock.where import InvalidFilter

#: its status says whether the request could be executed; with JSON, an invalid document is answered 200
RESPONSE = "application/graphql-response+json"
EVENTS = "text/event-stream"

_QUALITY = re.compile(r"[01](\.[0-9]{0,3})?", re.ASCII)

#: codes of executed fields, such as mutations: the request itself was not refused, in any content type
_OF_FIELDS = (NotFound, Exists, InvalidDefinition, InvalidFilter)

#: answers with events, as long as the client stays; mutations only if allowed this way
Streaming = Callable[[Grant, Request, bool], Response]

JSON = "application/json"
#: of the URL; others are ignored
PARAMETERS = ("query", "operationName", "variables", "extensions")

# A document, and a filter of a MiB in its variables.
_BODY_BYTES_MAX = 2 * 2**20
_CHARSETS = ("", "utf-8", "utf8")


class NotAcceptable(RequestError):
    """A response that has no content type accepted by the client."""

    code = "not_acceptable"
    http_status = 406


class GraphQLRoute:
    """The handlers of `/graphql`. `streaming` answers clients that prefer events."""

    def __init__(
        self,
        graphql: GraphQL,
        access: Access,
        retry_after_s: int,
        streaming: Streaming | None = None,
        answering: Callable[[Grant], Answering] | None = None,
    ) -> None:
        """`answering` returns the handler of fields that are not about a table, for clients with access."""
        self._graphql = graphql
        self._access = access
        self._retry_after_s = retry_after_s
        self._streaming = streaming
        self._answering = answering
        self._offered = (JSON, RESPONSE) if streaming is None else (JSON, RESPONSE, EVENTS)

    async def post(self, request: HttpRequest) -> Response:
        return await self._answered(request)

    async def get(self, request: HttpRequest) -> Response:
        return await self._answered(request)

    async def _answered(self, request: HttpRequest) -> Response:
        accept = Accept(request.headers.get("accept", ""))
        media_type = accept.best(self._offered)
        try:
            return await self._answer(request, accept, media_type)
        except TidelockError as error:
            return self._refusal(error, media_type)
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.BAD_REQUEST)

    async def _answer(self, request: HttpRequest, accept: Accept, media_type: str | None) -> Response:
        grant = (await self._access.grant(dict(request.scope["headers"]))).need(*SCOPES)
        if media_type is None:
            raise NotAcceptable(f"this is available as {' or '.join(self._offered)} only")
        asked, mutations = await read_http(request), request.method == "POST"
        if media_type == EVENTS and self._streaming is not None:
            return self._streaming(grant, asked, mutations)
        operation = await self._graphql.prepare(asked)
        check_allowed(operation, grant, mutations=mutations)
        if operation.kind != "subscription":
            answering = None if self._answering is None else self._answering(grant)
            payload = await self._graphql.execute(operation, grant.reads(None), answering)
            return Response(payload, media_type=media_type)
        if accept.names(EVENTS) and self._streaming is not None:
            # Some clients list every content type they know, whatever the request.
            return self._streaming(grant, asked, mutations)
        ways = f"over WebSocket (graphql-transport-ws), or as server-sent events to clients that accept {EVENTS}"
        raise NotAcceptable(f"a subscription is served {ways}")

    def _refusal(self, error: TidelockError, media_type: str | None) -> Response:
        """The response for an error, in the accepted content type, or in JSON."""
        outages.note(error)
        form = RESPONSE if media_type == RESPONSE else JSON
        failed = isinstance(error, _OF_FIELDS)
        told_by_body = failed or (form == JSON and isinstance(error, RequestRefused))
        status = HTTPStatus.OK if told_by_body else error.http_status
        told: dict[str, object] = {"errors": errors_of(error)}
        if failed:
            told["data"] = None
        elif form == JSON and not told_by_body:
            # In addition to what GraphQL clients look for, the error body of all other paths.
            told = {**body_of(error), **told}
        return Response(msgspec.json.encode(told), status, headers_of(error, self._retry_after_s), media_type=form)


class Accept:
    """The `Accept` header of a client; without one, anything is accepted."""

    def __init__(self, header: str) -> None:
        #: media range -> quality from 0 to 1, in the order given
        self._liked: dict[str, float] = {}
        for part in (header if header.strip() else "*/*").split(","):
            media_range, liked = _range(part)
            self._liked.setdefault(media_range, liked)

    def best(self, offered: Sequence[str]) -> str | None:
        """The preferred one of some media types, of equals the first; None if none is accepted."""
        best = max(offered, key=self._rank)
        return best if self._rank(best)[0] > 0 else None

    def names(self, media_type: str) -> bool:
        return self._liked.get(media_type, 0.0) > 0

    def _rank(self, media_type: str) -> tuple[float, int]:
        """By the most specific range that includes it."""
        kind = media_type.partition("/")[0]
        for media_range in (media_type, f"{kind}/*", "*/*"):
            if media_range in self._liked:
                return self._liked[media_range], -list(self._liked).index(media_range)
        return 0.0, 0


def _range(part: str) -> tuple[str, float]:
    media_range, *parameters = (piece.strip().lower() for piece in part.split(";"))
    for name, _, value in (parameter.partition("=") for parameter in parameters):
        if name.strip() == "q":
            return media_range, float(value) if _QUALITY.fullmatch(value.strip()) else 0.0
    return media_range, 1.0


async def read_http(request: HttpRequest) -> Request:
    """The request. Raises RequestError."""
    if request.method == "GET":
        return _of_url(request.scope["query_string"])
    _check_media(request.headers.get("content-type", ""), request.headers.get("content-encoding", ""))
    return read_request(await whole_body(request, _BODY_BYTES_MAX))


def _of_url(query: bytes) -> Request:
    given: dict[str, str] = {}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name in given:
            raise RequestError(f"{name[:60]} is given twice", field=name[:60])
        if name in PARAMETERS:
            given[name] = value
    if "query" not in given:
        raise without_query(given.get("extensions"))
    variables = read_variables(given["variables"]) if given.get("variables") else None
    return Request(given["query"], given.get("operationName") or None, variables, len(query))


def _check_media(content_type: str, encoding: str) -> None:
    media_type, *parameters = (part.strip().lower() for part in content_type.split(";"))
    if media_type != JSON:
        raise UnsupportedMedia(f"a GraphQL request is {JSON}, not {media_type[:60] or 'without a content type'}")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip().strip('"') not in _CHARSETS:
            raise UnsupportedMedia(f"charset {value[:60]!r} is not supported; send UTF-8")
    if encoding.strip().lower() not in ("", "identity"):
        raise UnsupportedMedia(f"content encoding {encoding[:60]!r} is not supported here; send the body uncompressed")
