"""The site: its pages, its requests, who may sign in, and when NiceGUI starts and stops.

It does not import NiceGUI: the server knows its paths and signs visitors in before NiceGUI is loaded.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import mimetypes
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any
from urllib.parse import parse_qs, quote

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidelock.api.docs import asks_for_pages
from tidelock.console.api import Api
from tidelock.errors import Forbidden, RequestError, Unreachable
from tidelock.http.access import Access, Grant, is_own_page
from tidelock.http.clients import trust
from tidelock.settings import Settings

#: where the console's own files are
ASSETS = "/_console/"
#: key of this server's console in the scope of requests to NiceGUI
SITE = "tidelock.site"

_LOGIN, _LOGOUT = "/login", "/logout"
_NICEGUI = ("/_nicegui/", "/_nicegui_ws/")
_KEY_BYTES_MAX = 4096
_MISSING = (
    "The console is not installed. Install it with:\n\n    pip install 'tidelock[console]'\n\nThe API is at /docs.\n"
)
_PATH_SHOWN = 120
# No framing by other sites: it would allow clickjacking.
_UNFRAMED = [(b"content-security-policy", b"frame-ancestors 'none'"), (b"x-frame-options", b"DENY")]
_CROWDED = "the console has too many visitors; try again in a minute"

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Tidelock</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="{favicon}"><script src="{script}"></script><link rel="stylesheet" href="{style}"></head>
<body class="tl-login"><form method="post" action="/login?next={wanted}">
<div class="tl-brand"><span class="tl-mark"></span>Tidelock</div>
<h1>Sign in with an API key</h1>
<p>It needs the scope <code>read</code>. It stays on the server; this browser keeps a session only.</p>
<label for="key">API key</label>
<input id="key" name="key" type="password" autocomplete="current-password" spellcheck="false" autofocus required>
{trouble}<button type="submit">Open the console</button>
<p class="tl-faint">No key yet? <code>tidelock keys create --tenant NAME --scope read</code></p>
</form></body></html>
"""

_NOWHERE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Not found · Tidelock</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="{favicon}"><script src="{script}"></script><link rel="stylesheet" href="{style}"></head>
<body class="tl-login"><main class="tl-nowhere">
<a class="tl-brand" href="/"><span class="tl-mark"></span>Tidelock</a>
<h1>There is no page here</h1>
<p><code>{path}</code> is neither a page of the console nor a route of the API.</p>
<nav>{links}<a class="tl-link" href="/docs">API</a></nav>
</main></body></html>
"""
# Their errors are for programs, even if a browser asks.
_FOR_PROGRAMS = ("/v1/", "/admin/", "/_nicegui", "/docs/")

COOKIE = "tidelock_console"


@dataclass(frozen=True, slots=True)
class Entry:
    """A page and all paths below it."""

    path: str
    title: str
    icon: str
    #: in `tidelock.console.pages`
    module: str
    #: in the bar on a phone; the others are under "More"
    near: bool = False

    def has(self, path: str) -> bool:
        return path == self.path or (self.path != "/" and path.startswith(f"{self.path}/"))


ENTRIES = (
    Entry("/", "Overview", "pulse", "overview", near=True),
    Entry("/events", "Events", "rows", "events", near=True),
    Entry("/counters", "Counters", "bars", "counters", near=True),
    Entry("/windows", "Windows", "window", "windows", near=True),
    Entry("/tables", "Tables", "table", "tables"),
    Entry("/subscriptions", "Subscriptions", "broadcast", "subscriptions"),
    Entry("/triggers", "Triggers", "bolt", "triggers"),
    Entry("/meters", "Meters", "gauge", "meters"),
    Entry("/streams", "Definitions", "layers", "streams"),
    Entry("/verify", "Verify", "shield", "verify"),
)


def entry_of(path: str) -> Entry | None:
    return next((entry for entry in ENTRIES if entry.has(path)), None)


class Sessions:
    """A bounded number of sessions; the least recently used one is dropped."""

    def __init__(self, *, sessions_max: int, lifetime_s: float) -> None:
        self._sessions_max = sessions_max
        self._lifetime_s = lifetime_s
        #: token -> time of last use, and key
        self._keys: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def open(self, key: str) -> str:
        token = secrets.token_urlsafe(32)
        self._keys[token] = (time.monotonic(), key)
        while len(self._keys) > self._sessions_max:
            self._keys.popitem(last=False)
        return token

    def key(self, token: str | None, *, renew: bool = True) -> str | None:
        """The key of a live session. `renew`: used by a person, not by a page that refreshes."""
        used, key = self._keys.get(token or "", (0.0, ""))
        if token is None or not key:
            return None
        if used + self._lifetime_s < time.monotonic():
            del self._keys[token]
            return None
        if renew:
            self._keys[token] = (time.monotonic(), key)
            self._keys.move_to_end(token)
        return key

    def close(self, token: str | None) -> None:
        self._keys.pop(token or "", None)


class Site:
    """The console of one server. Servers in one process share its NiceGUI."""

    #: set once, by `attach`
    _api: ASGIApp
    _access: Access

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sessions = Sessions(
            sessions_max=settings.console_sessions_max, lifetime_s=settings.console_session_lifetime / 1e9
        )
        self._opening = asyncio.Lock()
        self._open = AsyncExitStack()
        self._pages: ASGIApp | None = None
        self._visitors: Callable[[], int] = lambda: 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, send = scope["path"], _unframed(send)
        if scope["type"] == "http" and path.startswith(ASSETS):
            await _asset(path.removeprefix(ASSETS))(scope, receive, send)
        elif path.startswith(_NICEGUI):
            _refuse_other_pages(scope)
            await self._admit(scope)
            await (await self._started())(scope, receive, send)
        elif scope["type"] == "http" and (path in (_LOGIN, _LOGOUT) or (entry_of(path) and asks_for_pages(scope))):
            _refuse_other_pages(scope)
            await (await self._answer(Request(scope, receive)))(scope, receive, send)
        elif scope["type"] == "http" and asks_for_pages(scope) and not path.startswith(_FOR_PROGRAMS):
            await nowhere(path)(scope, receive, send)
        else:
            raise HTTPException(404)

    def attach(self, api: ASGIApp, access: Access) -> None:
        """Attach the API that pages use, and the access control for visitors."""
        self._api = api
        self._access = access

    async def close(self) -> None:
        """Stop what the first visitor started."""
        await self._open.aclose()

    def api(self, connection: HTTPConnection) -> Api:
        """The API for this visitor, for as long as they are signed in."""
        token = connection.cookies.get(COOKIE)
        return Api(self._api, lambda: self._sessions.key(token, renew=False))

    async def grant(self, connection: HTTPConnection) -> Grant:
        """What this visitor may do. Raises RequestError if not signed in."""
        headers = dict(connection.scope["headers"])
        key = self._sessions.key(connection.cookies.get(COOKIE))
        if key is not None:
            headers[b"authorization"] = f"Bearer {key}".encode()
        return (await self._access.grant(headers)).need("read")

    async def keyed(self) -> bool:
        return await self._access.keys_needed()

    async def _answer(self, request: Request) -> ASGIApp:
        if request.url.path == _LOGIN:
            return await self._login(request)
        if request.url.path == _LOGOUT:
            return self._logout(request)
        if request.method not in ("GET", "HEAD"):
            raise HTTPException(405)
        if importlib.util.find_spec("nicegui") is None:
            return PlainTextResponse(_MISSING)
        try:
            await self.grant(request)
        except RequestError as error:
            if error.http_status != 401:
                raise
            wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            return RedirectResponse(_LOGIN if wanted == "/" else f"{_LOGIN}?next={quote(wanted)}", 303)
        pages = await self._started()
        if self._visitors() >= self._settings.console_visitors_max:
            raise Unreachable(_CROWDED)
        return pages

    async def _login(self, request: Request) -> Response:
        wanted = local_path(request.query_params.get("next"))
        if not await self.keyed():
            return RedirectResponse(wanted, 303)
        if request.method != "POST":
            return login_page(wanted)
        form = parse_qs((await _small_body(request)).decode("latin-1"))
        key = form.get("key", [""])[0].strip()
        try:
            (await self._access.grant({b"authorization": f"Bearer {key}".encode()})).need("read")
        except RequestError as error:
            return login_page(wanted, login_error(error, key), status=error.http_status)
        self._sessions.close(request.cookies.get(COOKIE))
        response = RedirectResponse(wanted, 303)
        response.set_cookie(COOKIE, self._sessions.open(key), httponly=True, samesite="lax", secure=_secure(request))
        return response

    def _logout(self, request: Request) -> Response:
        self._sessions.close(request.cookies.get(COOKIE))
        response = RedirectResponse(_LOGIN, 303)
        response.delete_cookie(COOKIE)
        return response

    async def _admit(self, scope: Scope) -> None:
        """Files of NiceGUI are public; its socket is for visitors who may see the pages."""
        if scope["type"] == "websocket":
            await self.grant(HTTPConnection(scope))
            trust(scope)

    async def _started(self) -> ASGIApp:
        async with self._opening:
            if self._pages is None:
                # In a thread: other requests should not wait while its modules are imported.
                pages = await asyncio.to_thread(_load)
                await self._open.enter_async_context(pages.running())
                self._pages, self._visitors = pages.app, pages.visitors
        found = self._pages

        async def with_site(scope: Scope, receive: Receive, send: Send) -> None:
            assert found is not None
            await found({**scope, SITE: self, "root_path": ""}, receive, send)

        return with_site


def login_page(wanted: str, trouble: str | None = None, *, status: int = 200) -> HTMLResponse:
    text = _PAGE.format(
        favicon=asset_url("mark.svg"),
        script=asset_url("theme.js"),
        style=asset_url("theme.css"),
        wanted=quote(wanted, safe=""),
        trouble=f'<p class="tl-trouble" role="alert">{escape(trouble)}</p>' if trouble else "",
    )
    return HTMLResponse(text, status, headers={"cache-control": "no-store"})


def nowhere(path: str) -> HTMLResponse:
    """The page for an unknown path."""
    shown = path if len(path) <= _PATH_SHOWN else path[:_PATH_SHOWN] + "…"
    text = _NOWHERE.format(
        favicon=asset_url("mark.svg"),
        script=asset_url("theme.js"),
        style=asset_url("theme.css"),
        path=escape(shown),
        links="".join(f'<a class="tl-link" href="{entry.path}">{entry.title}</a>' for entry in ENTRIES),
    )
    return HTMLResponse(text, 404, headers={"cache-control": "no-store"})


def login_error(error: RequestError, key: str) -> str:
    """Why a key was not accepted."""
    if not key:
        return "Enter an API key."
    if error.http_status == 401:
        return "This key is unknown or was revoked. Check for missing characters."
    return f"This key does not open the console: {error.message}."


def local_path(wanted: str | None) -> str:
    """The path to go to after signing in: on this server only."""
    ours = wanted is not None and wanted.startswith("/") and not wanted.startswith(("//", "/\\"))
    return wanted if wanted is not None and ours else "/"


def _load() -> Any:
    return importlib.import_module("tidelock.console.nice")


def _secure(request: Request) -> bool:
    """Whether the browser uses TLS, to us or to a proxy in front. A client that forges the header harms only itself."""
    forwarded = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip()
    return "https" in (request.url.scheme, forwarded.lower())


def _unframed(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_UNFRAMED]}
        await send(message)

    return sent


def _refuse_other_pages(scope: Scope) -> None:
    """Browsers send the session cookie with requests of same-site pages: refuse all pages but our own."""
    headers = dict(scope["headers"])
    if b"origin" in headers and not is_own_page(headers, proxied=True):
        raise Forbidden(
            "the request's Origin does not match the console's address; a proxy in between must forward Host and "
            "X-Forwarded-Proto"
        )


async def _small_body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _KEY_BYTES_MAX:
            raise HTTPException(413)
    return body


@cache
def _assets() -> dict[str, Traversable]:
    """Assets by name. Requests are looked up here and never on disk: the name may be anything."""
    return {found.name: found for found in (files("tidelock.console") / "assets").iterdir() if found.is_file()}


def _asset(name: str) -> Response:
    """One of the console's own files."""
    found = _assets().get(name.rpartition("/")[2])
    if found is None:
        raise HTTPException(404)
    media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response(found.read_bytes(), media_type=media_type, headers={"cache-control": "public, max-age=31536000"})


def asset_url(name: str) -> str:
    """The address of one of the console's own files, which changes with its contents."""
    content = (files("tidelock.console") / "assets" / name).read_bytes()
    return f"{ASSETS}{hashlib.sha256(content).hexdigest()[:12]}/{name}"
