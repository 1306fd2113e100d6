"""Problems: every answer that is not a success has one body, `{"error": {"code", "message", "field"}}`."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response

from tidelock.errors import TidelockError
from tidelock.model import Problem

JSON = "application/json"

_MESSAGES = {
    404: "there is nothing at this path; see /docs",
    405: "this path does not take this method; see /docs",
    426: "this path speaks WebSocket only",
}
#: the client may try the same again
_RETRY = (429, 503)


class ErrorBody(msgspec.Struct, frozen=True):
    """Why a request was not answered as it was asked."""

    error: Problem


def problem(status: int, code: str, message: str, field: str | None = None) -> Response:
    body = msgspec.json.encode(ErrorBody(Problem(code, _text(message), field and _text(field))))
    return Response(body, status_code=status, media_type=JSON)


def _text(text: str) -> str:
    """With escapes for half surrogate pairs: a message may quote what was sent, and JSON can send them."""
    return text.encode(errors="backslashreplace").decode()


def problem_of(error: TidelockError, retry_after_s: int) -> Response:
    """The answer that tells an error of ours."""
    response = problem(error.http_status, error.code, error.message, error.field)
    response.headers.update(headers_of(error, retry_after_s))
    return response


def body_of(error: TidelockError) -> dict[str, object]:
    """The same as a part of a body that has more."""
    return {"error": Problem(error.code, _text(error.message), error.field and _text(error.field))}


def headers_of(error: TidelockError, retry_after_s: int) -> dict[str, str]:
    """What an error says to whoever does not read the body."""
    if error.http_status in _RETRY:
        return {"retry-after": str(retry_after_s)}
    if error.http_status == HTTPStatus.UNAUTHORIZED:
        return {"www-authenticate": 'Bearer realm="tidelock"'}
    return {}


def unexpected() -> Response:
    """The answer to what should not happen: the log has the traceback, the client gets no insides."""
    message = "the server failed on this request; its log says why"
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", message)


def install_problems(app: FastAPI, retry_after_s: int) -> None:
    """Let the app answer in this form whatever goes wrong in it."""

    async def ours(_: HTTPConnection, error: Exception) -> Response:
        assert isinstance(error, TidelockError)
        return problem_of(error, retry_after_s)

    app.add_exception_handler(TidelockError, ours)
    app.add_exception_handler(HTTPException, _of_the_framework)
    app.add_exception_handler(RequestValidationError, _of_validation)
    app.add_exception_handler(Exception, _unexpected)


async def _of_the_framework(_: HTTPConnection, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    code = status.phrase.lower().replace(" ", "_")
    response = problem(status, code, _MESSAGES.get(status, str(error.detail)))
    response.headers.update(error.headers or {})
    return response


async def _of_validation(_: HTTPConnection, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = str(first["loc"][-1]) if first["loc"] else None
    return problem(HTTPStatus.BAD_REQUEST, "invalid_request", f"{field}: {first['msg']}", field)


async def _unexpected(_: HTTPConnection, __: Exception) -> Response:
    return unexpected()
