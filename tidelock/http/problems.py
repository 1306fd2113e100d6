"""Problems: every response that is not a success has the same body, `{"error": {"code", "message", "field"}}`."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from http import HTTPStatus

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from tidelock.errors import TidelockError, Unreachable
from tidelock.model import Problem

JSON = "application/json"

_MESSAGES = {
    404: "there is nothing at this path; see /docs",
    405: "this method is not allowed on this path; see /docs",
    426: "this path accepts WebSocket connections only",
}
#: the client may try the same again
_RETRY = (429, 503)
_QUIET_S = 60.0
_KINDS_MAX = 100

logger = logging.getLogger(__name__)


class ErrorBody(msgspec.Struct, frozen=True):
    """Why a request failed."""

    error: Problem


def problem(status: int, code: str, message: str, field: str | None = None) -> Response:
    body = msgspec.json.encode(ErrorBody(Problem(code, _text(message), field and _text(field))))
    return Response(body, status_code=status, media_type=JSON)


def _text(text: str) -> str:
    """With escapes for lone surrogates: a message may quote what was sent, and JSON can contain them."""
    return text.encode(errors="backslashreplace").decode()


class Outages:
    """Logs why clients get a 503: each reason once a minute, however many requests there are."""

    def __init__(self) -> None:
        #: reason -> when it was logged, and how often it occurred since; oldest first
        self._told: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def note(self, error: BaseException) -> None:
        if not isinstance(error, Unreachable):
            return
        now = time.monotonic()
        logged_at, since = self._told.get(error.message, (-_QUIET_S, 0))
        if now - logged_at < _QUIET_S:
            self._told[error.message] = logged_at, since + 1
            return
        said = error.detail or str(error.__cause__ or "")
        insides = "" if said in error.message else f" [{' '.join(said.split())}]"
        more = f" ({since} more like this were not logged)" if since else ""
        logger.warning("a request was answered 503: %s%s%s", error.message, insides, more)
        self._told[error.message] = now, 0
        self._told.move_to_end(error.message)
        if len(self._told) > _KINDS_MAX:
            self._told.popitem(last=False)


#: one per process, like its log
outages = Outages()


def problem_of(error: TidelockError, retry_after_s: int) -> Response:
    """The response for one of our errors."""
    outages.note(error)
    response = problem(error.http_status, error.code, error.message, error.field)
    response.headers.update(headers_of(error, retry_after_s))
    return response


def body_of(error: TidelockError) -> dict[str, object]:
    """The same as part of a larger body."""
    return {"error": Problem(error.code, _text(error.message), error.field and _text(error.field))}


def headers_of(error: TidelockError, retry_after_s: int) -> dict[str, str]:
    """The headers of an error, for clients that do not read the body."""
    if error.http_status in _RETRY:
        return {"retry-after": str(retry_after_s)}
    if error.http_status == HTTPStatus.UNAUTHORIZED:
        return {"www-authenticate": 'Bearer realm="tidelock"'}
    return {}


def unexpected() -> Response:
    """The response to an unexpected failure: the log has the traceback; the client gets no internals."""
    message = "the server could not process this request because of an internal error; see its log"
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", message)


def install_problems(app: FastAPI, retry_after_s: int) -> None:
    """Let the app report every failure in this form."""

    async def ours(_: HTTPConnection, error: Exception) -> Response:
        assert isinstance(error, TidelockError)
        return problem_of(error, retry_after_s)

    app.add_exception_handler(TidelockError, ours)
    app.add_exception_handler(HTTPException, _of_the_framework)
    app.add_exception_handler(RequestValidationError, _of_validation)
    app.add_exception_handler(Exception, _unexpected)


async def _of_the_framework(connection: HTTPConnection, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        allow = {"allow": _methods(connection.scope)}
        if connection.scope["method"] == "OPTIONS":
            return Response(status_code=HTTPStatus.NO_CONTENT, headers=allow)
        error.headers = {**(error.headers or {}), **allow}
    code = status.phrase.lower().replace(" ", "_")
    response = problem(status, code, _MESSAGES.get(status, str(error.detail)))
    response.headers.update(error.headers or {})
    return response


def _methods(scope: Scope) -> str:
    """Every method of the path: the framework knows only those of its first route."""
    # A mount that let the request in has moved the root.
    asked = {**scope, "root_path": scope.get("app_root_path", scope.get("root_path", ""))}
    methods = {"OPTIONS"}
    for route in scope["app"].routes:
        if isinstance(route, Route) and route.matches(asked)[0] is not Match.NONE:
            methods |= route.methods or set()
    # No route of the API: files and pages.
    return ", ".join(sorted(methods if len(methods) > 1 else methods | {"GET", "HEAD"}))


async def _of_validation(_: HTTPConnection, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = str(first["loc"][-1]) if first["loc"] else None
    return problem(HTTPStatus.BAD_REQUEST, "invalid_request", f"{field}: {first['msg']}", field)


async def _unexpected(_: HTTPConnection, __: Exception) -> Response:
    return unexpected()
