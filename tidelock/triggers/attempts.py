"""Attempts: one POST to a receiver, how it ended as a value, and when to try again.

aiohttp exposes the address it is about to dial, after resolution and for every connection: the checked address is the
dialled one, whatever a name resolved to before or will resolve to next.
"""

from __future__ import annotations

import asyncio
import email.utils
import random
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Literal, get_args

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from tidelock import __version__
from tidelock.triggers.addresses import AddressRefused, check_address

#: delivered: 2xx; redirected: 3xx, which is not followed; refused: 4xx; gone: 410; throttled: 429; failed: 5xx;
#: timeout and unreachable: no response; forbidden: an address that webhooks must not use; expired: given up without
#: being sent, because the endpoint did not respond for the whole retry period
Outcome = Literal[
    "delivered",
    "redirected",
    "refused",
    "gone",
    "throttled",
    "failed",
    "timeout",
    "unreachable",
    "forbidden",
    "expired",
]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

# Jitter of a delay: what failed together should not be retried together.
_JITTER = 0.2
_DIGITS_MAX = 9

#: family, type, protocol, canonical name and socket address, as `getaddrinfo` has them
AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]
#: gives the addresses of a name
Lookup = Callable[[str, int], Awaitable[list[str]]]
#: makes the socket that is then connected to the address
Dial = Callable[[AddressInfo], socket.socket]

_DNS_CACHE_S = 10
_KEEP_ALIVE_S = 15.0
# Lookups block a thread each: names whose servers hang must not delay others.
_LOOKUPS_MAX = 32
_HEADERS = {"content-type": "application/json", "user-agent": f"tidelock/{__version__}"}


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one attempt."""

    outcome: Outcome
    #: None: there was no response
    status: int | None
    #: the beginning of the response's body, or why there was none
    response: str
    seconds: float
    #: the `Retry-After` requested by the receiver
    retry_after_s: float | None = None

    @property
    def healthy(self) -> bool:
        """Whether the endpoint works. One that refuses an event for its content works, and needs no pause."""
        return self.outcome in ("delivered", "refused", "gone")


def outcome_of(status: int) -> Outcome:
    match status:
        case _ if 200 <= status < 300:
            return "delivered"
        case _ if 300 <= status < 400:
            return "redirected"
        case 410:
            return "gone"
        case 429:
            return "throttled"
        # Too slow, or too early: about the endpoint, not about the event.
        case 408 | 425:
            return "failed"
        case _ if 400 <= status < 500:
            return "refused"
    return "failed"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Delays after the first failure, the second and so on; the failure after the last delay is final."""

    delays_s: Sequence[float]
    #: longest delay that a receiver can request
    retry_after_max_s: float = 86_400.0

    @property
    def horizon_s(self) -> float:
        """The whole retry period: an event that waited longer without being sent is given up as well."""
        return sum(self.delays_s)

    def delay_s(self, failures: int, retry_after_s: float | None, chance: random.Random) -> float | None:
        """How long to wait after this many failures; None: give up. A receiver may ask for more, not for less."""
        if failures > len(self.delays_s):
            return None
        delay_s = self.delays_s[failures - 1] * chance.uniform(1 - _JITTER, 1 + _JITTER)
        return max(delay_s, min(retry_after_s or 0.0, self.retry_after_max_s))


def parse_retry_after(header: str | None, now_s: float) -> float | None:
    """Seconds of `Retry-After`, given as a number or a date; None if unreadable."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:_DIGITS_MAX]) if len(text) <= _DIGITS_MAX else float(10**_DIGITS_MAX)
    try:
        moment = email.utils.parsedate_to_datetime(text)
        # A date without a zone means UTC, as all dates of HTTP do.
        at_s = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return max(0.0, at_s - now_s)


class _Dialled:
    """Whether an attempt has opened a new connection."""

    fresh = False


_dialled: ContextVar[_Dialled] = ContextVar("dialled")


class _RefusedAddress(OSError):
    """The refusal of an address, in the form that passes through the client."""


class WebhookSender:
    """Posts bodies and returns the outcomes. It follows no redirects, keeps no cookies and uses no proxy."""

    def __init__(
        self,
        *,
        timeout_s: float,
        response_bytes_max: int,
        allow_private: bool,
        lookup: Lookup | None = None,
        dial: Dial | None = None,
    ) -> None:
        self._response_bytes_max = response_bytes_max
        self._allow_private = allow_private
        self._dial = dial or _socket
        self._resolver = _Resolver(lookup, self._check)
        connector = aiohttp.TCPConnector(
            resolver=self._resolver,
            socket_factory=self._open,
            ttl_dns_cache=_DNS_CACHE_S,
            # Concurrency is decided per endpoint, by the caller.
            limit=0,
            keepalive_timeout=_KEEP_ALIVE_S,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("accept", "accept-encoding"),
            auto_decompress=False,
            trust_env=False,
        )
        self._timeout_s = timeout_s
        self._urls: dict[str, URL] = {}

    async def close(self) -> None:
        await self._session.close()
        await self._resolver.close()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Result:
        """One attempt. Every way to fail is a result."""
        started = time.perf_counter()
        dialled = _Dialled()
        _dialled.set(dialled)
        try:
            try:
                result = await self._post(url, headers, body)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                if dialled.fresh or isinstance(error, aiohttp.ClientConnectorError):
                    raise
                # A kept-alive connection had been closed by the other end, which is nobody's failure.
                result = await self._post(url, headers, body)
        except Exception as error:
            outcome, why = self._failure(error)
            return Result(outcome, None, why, time.perf_counter() - started)
        status, retry_after, response = result
        retry_after_s = parse_retry_after(retry_after, time.time())
        return Result(outcome_of(status), status, response, time.perf_counter() - started, retry_after_s)

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, str | None, str]:
        async with self._session.post(
            self._parsed(url), data=body, headers={**_HEADERS, **headers}, allow_redirects=False
        ) as response:
            return response.status, response.headers.get("retry-after"), await self._beginning(response)

    async def _beginning(self, response: aiohttp.ClientResponse) -> str:
        """The part of the response that is stored. The status has already decided, so the rest does not matter."""
        found = b""
        try:
            while len(found) < self._response_bytes_max and not response.content.at_eof():
                found += await response.content.read(self._response_bytes_max - len(found))
        except (aiohttp.ClientError, TimeoutError):
            pass
        return _storable(found.decode(errors="replace"))

    def _parsed(self, url: str) -> URL:
        if url not in self._urls:
            if len(self._urls) > 10_000:
                self._urls.clear()
            self._urls[url] = URL(url, encoded=True)
        return self._urls[url]

    def _check(self, host: str) -> None:
        if not self._allow_private:
            try:
                check_address(host)
            except AddressRefused as refused:
                raise _RefusedAddress(refused.message) from None

    def _open(self, info: AddressInfo) -> socket.socket:
        """The connect hook: called with the very address that is dialled next."""
        self._check(info[4][0])
        _dialled.get().fresh = True
        return self._dial(info)

    def _failure(self, error: Exception) -> tuple[Outcome, str]:
        cause = getattr(error, "os_error", error)
        if isinstance(cause, _RefusedAddress):
            return "forbidden", str(cause)
        if isinstance(error, TimeoutError):
            return "timeout", f"no response within {self._timeout_s:g} s"
        if isinstance(error, aiohttp.ServerDisconnectedError):
            return "unreachable", "the connection was closed before a response arrived"
        return "unreachable", _storable(f"{type(error).__name__}: {error}")[: self._response_bytes_max]


class _Resolver(AbstractResolver):
    """Resolves names to addresses, all of which must be allowed: a name that also leads inside is suspicious."""

    def __init__(self, lookup: Lookup | None, check: Callable[[str], None]) -> None:
        self._lookup = lookup or self._ask
        self._check = check
        self._threads = ThreadPoolExecutor(_LOOKUPS_MAX, thread_name_prefix="webhook-dns")

    async def resolve(self, host: str, port: int = 0, family: int = socket.AF_UNSPEC) -> list[ResolveResult]:
        found = await self._lookup(host, port)
        for address in found:
            self._check(address)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in found
        ]

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _ask(self, host: str, port: int) -> list[str]:
        def ask() -> list[str]:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
            return list(dict.fromkeys(_text(sockaddr) for *_, sockaddr in found))

        return await asyncio.get_running_loop().run_in_executor(self._threads, ask)


def _storable(text: str) -> str:
    """Postgres accepts neither NUL nor half a character."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")


def _text(sockaddr: tuple[Any, ...]) -> str:
    """An address with its zone, which only link-local ones have: they are refused, not lost."""
    zone = sockaddr[3] if len(sockaddr) == 4 else 0
    host = str(sockaddr[0])
    return f"{host}%{zone}" if zone and "%" not in host else host


def _socket(info: AddressInfo) -> socket.socket:
    family, kind, protocol, _, _ = info
    return socket.socket(family, kind, protocol)
