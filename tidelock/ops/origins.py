"""Origins: which web pages may talk to this server through somebody's browser.

A browser names the page's origin in every request that could do harm or be read, and a page cannot change that.
Programs send none, and are not concerned. Without API keys whoever reaches the server may do everything, so only its
own pages are let in. With keys a page needs one, like any program; `cors_origins` tells browsers which pages may use
theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidelock.errors import Forbidden, TidelockError
from tidelock.ops.access import Access, is_own_page, refuse_other_pages
from tidelock.ops.problems import problem_of

#: tells of refusals in a form of its own, by the same rule in `Access`
_GRAPHQL = "/graphql"

# Credentials are not allowed, so a star is: a page that has a key may send and read any header. Browsers want this one
# by name.
_ANSWER = [(b"access-control-expose-headers", b"*"), (b"vary", b"origin")]
_PREFLIGHT = {
    "access-control-allow-methods": "GET, HEAD, POST, PATCH, DELETE",
    "access-control-allow-headers": "authorization, *",
    "access-control-max-age": "600",
}


class Origins:
    """Judges what comes from web pages before the application sees it."""

    def __init__(self, app: ASGIApp, access: Access, allowed: Collection[str], retry_after_s: int) -> None:
        self._app = app
        self._access = access
        self._allowed = frozenset(origin.encode() for origin in allowed)
        self._retry_after_s = retry_after_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Most requests come from programs, and these lines are all that it costs them.
        for name, _ in scope["headers"]:
            if name == b"origin":
                break
        else:
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        try:
            app = await self._judged(scope, headers)
        except TidelockError as error:
            app = problem_of(error, self._retry_after_s)
        if headers[b"origin"] in self._allowed and await self._keyed():
            send = _allowing(headers[b"origin"], send)
        await app(scope, receive, send)

    async def _judged(self, scope: Scope, headers: Mapping[bytes, bytes]) -> ASGIApp:
        """What answers; raises Forbidden."""
        if is_own_page(headers):
            return self._app
        if not await self._access.keys_needed(fresh=False):
            if scope["type"] == "http" and scope["path"] == _GRAPHQL:
                return self._app
            refuse_other_pages(headers)
        listed = headers[b"origin"] in self._allowed
        if scope["type"] == "websocket":
            # The one thing that browsers let every page do, and read.
            if not listed and not is_own_page(headers, proxied=True):
                raise Forbidden("pages of this origin may not connect here; cors_origins names those that may")
        elif listed and scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            return Response(status_code=204, headers=_PREFLIGHT)
        return self._app

    async def _keyed(self) -> bool:
        try:
            return await self._access.keys_needed(fresh=False)
        except TidelockError:
            return False


def _allowing(origin: bytes, send: Send) -> Send:
    """Lets the page read the answer."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            allowed = [(b"access-control-allow-origin", origin), *_ANSWER]
            message = {**message, "headers": [*message.get("headers", ()), *allowed]}
        await send(message)

    return sent
