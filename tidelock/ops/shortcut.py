"""The shortcut: the one route that is called all the time goes past the framework, which costs more than it does."""

from __future__ import annotations

import logging

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tidelock.errors import TidelockError
from tidelock.ops.ingest import IngestRoute
from tidelock.ops.problems import problem_of, unexpected

logger = logging.getLogger(__name__)


class Shortcut:
    """Sends events straight to ingest and everything else to the application. Both answer errors alike."""

    path = "/v1/events"
    #: what the metrics call it, as they do the framework's routes
    path_format = path

    def __init__(self, app: ASGIApp, ingest: IngestRoute, retry_after_s: int) -> None:
        self._app = app
        self._ingest = ingest
        self._retry_after_s = retry_after_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != self.path or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        scope["route"] = self
        try:
            # Nothing is sent before everything that may fail is done.
            await self._ingest(scope, receive, send)
        except Exception as error:
            await self._refusal(error)(scope, receive, send)

    def _refusal(self, error: Exception) -> Response:
        if isinstance(error, TidelockError):
            return problem_of(error, self._retry_after_s)
        logger.error("a request failed unexpectedly", exc_info=error)
        return unexpected()
