"""Access: who sends a request, and what it may do. Once an API key was created, every request needs one."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidelock.errors import (
    Forbidden,
    RequestError,
    SettingsError,
    TidelockError,
    Unauthorized,
    Unreachable,
    UnsupportedMedia,
)
from tidelock.http.problems import problem_of
from tidelock.ingest.admit import Writer
from tidelock.ledger.apikeys import SCOPES, Holder, KeyNews, find_key, hash_key, keys_exist
from tidelock.model import ALL_TENANTS
from tidelock.postgres.pool import Connections, Flight, SingleFlight
from tidelock.sections import shown

T = TypeVar("T")

_REMEMBERED_MAX = 10_000
# How long an answer is valid while changes are not announced.
_UNTOLD_S = 1.0
_DEFAULT_PORTS = {b"http": b":80", b"https": b":443"}
_OTHER_PAGE = (
    "without API keys, only requests from this machine and its own pages are answered, and {}; create a key with "
    "`tidelock keys create`"
)

#: has its own form of refusals, by the same rule in `Access`
_GRAPHQL = "/graphql"

# Credentials are not allowed, so a star is: a page with a key may send and read any header. Browsers require this one
# by name.
_ANSWER = [(b"access-control-expose-headers", b"*"), (b"vary", b"origin")]
_PREFLIGHT = {
    "access-control-allow-methods": "GET, HEAD, POST, PATCH, DELETE",
    "access-control-allow-headers": "authorization, *",
    "access-control-max-age": "600",
}


@dataclass(frozen=True, slots=True)
class Grant:
    """What one request may do."""

    tenant_id: str
    scopes: frozenset[str]
    streams: frozenset[str] | None = None

    def need(self, *scopes: str) -> Grant:
        """This grant, if it has one of the scopes. `admin` includes `read`."""
        if not self.scopes.isdisjoint(scopes) or ("read" in scopes and "admin" in self.scopes):
            return self
        raise Forbidden(f"this needs an API key with the scope {' or '.join(scopes)}")

    def need_all_tenants(self) -> Grant:
        if self.tenant_id != ALL_TENANTS:
            raise Forbidden(f"this needs an API key of all tenants ({ALL_TENANTS})")
        return self

    def reads(self, tenant_id: str | None) -> str | None:
        """The tenant to read, given the requested one; None is every tenant."""
        if self.tenant_id == ALL_TENANTS:
            return tenant_id
        if tenant_id is not None and tenant_id != self.tenant_id:
            raise Forbidden(f"this API key has no access to tenant {shown(tenant_id)}", field="tenantId")
        return self.tenant_id

    def writer(self) -> Writer:
        return Writer(self.tenant_id, self.streams)


_OPEN = Grant(ALL_TENANTS, frozenset(SCOPES))


class _Remembered(Generic[T]):
    """A cache of answers from the database. Concurrent requests for an answer wait for the same lookup."""

    def __init__(self) -> None:
        self._answers: dict[bytes, tuple[float, Flight[T]]] = {}

    def forget(self) -> None:
        self._answers.clear()

    async def get(self, key: bytes, fetch: Callable[[], Coroutine[Any, Any, T]], lifetime_s: float) -> T:
        """An answer no older than `lifetime_s`."""
        known = self._answers.get(key)
        if known is None or known[0] + lifetime_s < time.monotonic():
            # Bounded whatever keys are tried: starting over costs one lookup per key in use.
            if len(self._answers) >= _REMEMBERED_MAX:
                self._answers.clear()
            known = self._answers[key] = (time.monotonic(), Flight(fetch()))
        try:
            return await known[1].result()
        except Exception:
            if self._answers.get(key) is known:
                del self._answers[key]
            raise


class Access:
    """Judges requests by their headers."""

    def __init__(self, connections: Connections, news: KeyNews, key_cache_s: float) -> None:
        self._connections = connections
        self._news = news
        self._key_cache_s = key_cache_s
        self._keys_exist = SingleFlight(lambda: connections.ask(keys_exist))
        #: keys exist; they are never deleted, so it stays true
        self._keyed = False
        #: no keys existed, and no change has been announced since
        self._open = False
        self._holders: _Remembered[Holder | None] = _Remembered()
        self._scrapers: dict[bytes, Grant] = {}
        self._change = asyncio.Event()
        news.on_change.append(self._forget)

    async def keys_needed(self, *, fresh: bool = True) -> bool:
        """Whether requests need a key. Unless it must be fresh, "no" is assumed until a key is announced."""
        if self._keyed:
            return True
        if self._open and not fresh and self._news.live and self._key_cache_s:
            return False
        change = self._change
        exist = await self._keys_exist()
        self._keyed = self._keyed or exist
        self._open = not exist and change is self._change
        return exist

    async def grant(self, headers: Mapping[bytes, bytes], *, fresh: bool = True) -> Grant:
        """What the request may do. Raises Unauthorized; without keys, Forbidden for a page of another origin, and
        UnsupportedMedia for a body without a type."""
        if not await self.keys_needed(fresh=fresh):
            refuse_other_pages(headers)
            _refuse_untyped_body(headers)
            return _OPEN
        hashed = hash_key(_bearer(headers.get(b"authorization", b"")))
        holder = await self._holders.get(
            hashed,
            lambda: self._connections.ask(lambda connection: find_key(connection, hashed)),
            self._key_cache_s if self._news.live else min(self._key_cache_s, _UNTOLD_S),
        )
        if holder is None:
            raise Unauthorized("this API key is unknown or was revoked")
        return Grant(holder.tenant_id, holder.scopes, holder.streams)

    async def reader(self, scope: Scope) -> Grant:
        """What a request for reading may do."""
        return (await self.grant(dict(scope["headers"]))).need("read")

    async def scraper(self, scope: Scope) -> Grant:
        """What a request for metrics may do; while the database is unavailable, what it was allowed before."""
        headers = dict(scope["headers"])
        name = hash_key(headers.get(b"authorization", b""))
        try:
            grant = (await self.grant(headers)).need("read").need_all_tenants()
        except Unreachable:
            known = self._scrapers.get(name)
            if known is None or (known is _OPEN and self._keyed):
                raise
            if known is _OPEN:
                refuse_other_pages(headers)
            return known
        except RequestError:
            self._scrapers.pop(name, None)
            raise
        if len(self._scrapers) >= _REMEMBERED_MAX:
            self._scrapers.clear()
        self._scrapers[name] = grant
        return grant

    async def changed(self, timeout_s: float) -> None:
        """Returns when keys have changed, or after a while anyway."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._change.wait()

    def _forget(self) -> None:
        self._open = False
        self._holders.forget()
        self._change.set()
        self._change = asyncio.Event()


class Origins:
    """Which web pages may talk to this server through somebody's browser.

    A browser names the page's origin in every request that could do harm or be read, and a page cannot change that.
    Programs send none and are unaffected. Without API keys anyone who reaches the server may do everything, so only its
    own pages are allowed. With keys a page needs one, like any program; `cors_origins` tells browsers which pages may
    use theirs. Requests from web pages are checked before the application sees them.
    """

    def __init__(self, app: ASGIApp, access: Access, allowed: Collection[str], retry_after_s: int) -> None:
        self._app = app
        self._access = access
        self._allowed = frozenset(origin.encode() for origin in allowed)
        self._retry_after_s = retry_after_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Most requests come from programs, for which these lines are the whole cost.
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
        """The application that answers; raises Forbidden."""
        if is_own_page(headers):
            return self._app
        if not await self._access.keys_needed(fresh=False):
            if scope["type"] == "http" and scope["path"] == _GRAPHQL:
                return self._app
            refuse_other_pages(headers)
        listed = headers[b"origin"] in self._allowed
        if scope["type"] == "websocket":
            # The one request that browsers let every page send and read.
            if not listed and not is_own_page(headers, proxied=True):
                raise Forbidden("pages of this origin may not connect; the setting cors_origins lists those that may")
        elif listed and scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            return Response(status_code=204, headers=_PREFLIGHT)
        return self._app

    async def _keyed(self) -> bool:
        try:
            return await self._access.keys_needed(fresh=False)
        except TidelockError:
            return False


def check_binding(host: str, keys_exist: bool) -> None:
    """Refuse to listen on other addresses while anybody could read and write."""
    if not keys_exist and not is_loopback(host):
        raise SettingsError(
            f"listening on {host} makes the server reachable from other machines, and there are no API keys; create "
            "one first with "
            "`tidelock keys create --tenant NAME --scope ingest --scope read`, or listen on 127.0.0.1",
            field="host",
        )


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _bearer(authorization: bytes) -> bytes:
    scheme, _, key = authorization.strip().partition(b" ")
    if scheme.lower() != b"bearer" or not key.strip():
        raise Unauthorized("this needs an API key: send the header Authorization: Bearer KEY")
    return key.strip()


def refuse_other_pages(headers: Mapping[bytes, bytes]) -> None:
    """Without keys, any web page the user visits could read and write here through their browser: it may not.

    The Host header reveals a page whose own name was made to resolve here; the Origin header reveals all others.
    """
    host = headers.get(b"host")
    if host is not None and not _names_loopback("//" + host.decode("latin-1")):
        raise Forbidden(_OTHER_PAGE.format("the Host header names another machine"))
    if b"origin" in headers and not is_own_page(headers):
        raise Forbidden(_OTHER_PAGE.format("the Origin header names another page"))


def is_own_page(headers: Mapping[bytes, bytes], *, proxied: bool = False) -> bool:
    """Whether a request with an `Origin` comes from a page of this server itself: same scheme, host and port.

    `proxied`: a proxy in front may also report them as the browser knows them. No page can send these headers without a
    preflight, which it would not pass.
    """
    host, scheme = headers.get(b"host", b""), b"http"
    if proxied:
        host = _first(headers.get(b"x-forwarded-host")) or host
        scheme = _first(headers.get(b"x-forwarded-proto")) or (
            # This server has no TLS, and a page loaded over TLS reaches other machines only over TLS: a proxy provides
            # it.
            b"https"
            if headers[b"origin"].startswith(b"https:") and not _names_loopback("//" + host.decode("latin-1"))
            else scheme
        )
    own = b"%b://%b" % (scheme.lower(), host.strip().lower())
    return host != b"" and headers[b"origin"] == own.removesuffix(_DEFAULT_PORTS.get(scheme.lower(), b"\0"))


def _first(forwarded: bytes | None) -> bytes:
    return b"" if forwarded is None else forwarded.partition(b",")[0].strip()


def _refuse_untyped_body(headers: Mapping[bytes, bytes]) -> None:
    """Browsers let every page send such a body anywhere, without a preflight; programs have no need to.

    A CloudEvent in binary form may have data without a type, and its headers cause a preflight.
    """
    if b"ce-specversion" in headers:
        return
    has_body = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
    if has_body and not headers.get(b"content-type", b"").strip():
        raise UnsupportedMedia("the body has no Content-Type; send application/json or the actual type")


@lru_cache(maxsize=1024)
def _names_loopback(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def _allowing(origin: bytes, send: Send) -> Send:
    """Lets the page read the answer."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            allowed = [(b"access-control-allow-origin", origin), *_ANSWER]
            message = {**message, "headers": [*message.get("headers", ()), *allowed]}
        await send(message)

    return sent
