"""Access: who asks, and what they may. As soon as one API key was made, every request needs one."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar
from urllib.parse import urlsplit

from starlette.types import Scope

from tidelock.errors import Forbidden, SettingsError, Unauthorized
from tidelock.ingest.admit import Writer
from tidelock.ledger.apikeys import SCOPES, Holder, find_key, hash_key, keys_exist
from tidelock.ledger.connections import Connections
from tidelock.model import ALL_TENANTS

T = TypeVar("T")

_REMEMBERED_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Grant:
    """What one request may do."""

    tenant_id: str
    scopes: frozenset[str]
    streams: frozenset[str] | None = None

    def need(self, scope: str) -> Grant:
        """This grant, if it has the scope. `admin` includes `read`."""
        if scope in self.scopes or (scope == "read" and "admin" in self.scopes):
            return self
        raise Forbidden(f"this needs an API key with the scope {scope}")

    def need_all_tenants(self) -> Grant:
        if self.tenant_id != ALL_TENANTS:
            raise Forbidden(f"this needs an API key of every tenant ({ALL_TENANTS})")
        return self

    def reads(self, tenant_id: str | None) -> str | None:
        """The tenant to read, given the one that was asked for; None is every tenant."""
        if self.tenant_id == ALL_TENANTS:
            return tenant_id
        if tenant_id is not None and tenant_id != self.tenant_id:
            raise Forbidden("this API key reads another tenant only", field="tenantId")
        return self.tenant_id

    def writer(self) -> Writer:
        return Writer(self.tenant_id, self.streams)


_OPEN = Grant(ALL_TENANTS, frozenset(SCOPES))


class _Remembered(Generic[T]):
    """Answers of the database, kept for a while. Who asks while one is fetched waits for the same one."""

    def __init__(self, lifetime_s: float) -> None:
        self._lifetime_s = lifetime_s
        self._answers: dict[bytes, tuple[float, asyncio.Future[T]]] = {}

    async def get(self, key: bytes, fetch: Callable[[], Awaitable[T]]) -> T:
        known = self._answers.get(key)
        if known is None or known[0] < time.monotonic():
            # Bounded whatever keys are tried: starting over costs a look-up per key in use.
            if len(self._answers) >= _REMEMBERED_MAX:
                self._answers.clear()
            known = (time.monotonic() + self._lifetime_s, asyncio.ensure_future(fetch()))
            # Seen here even if whoever asked has hung up meanwhile; otherwise asyncio complains of it.
            known[1].add_done_callback(lambda future: future.cancelled() or future.exception())
            self._answers[key] = known
        try:
            # Shielded: one that hangs up must not take the answer from the others.
            return await asyncio.shield(known[1])
        except Exception:
            if self._answers.get(key) is known:
                del self._answers[key]
            raise


class Access:
    """Judges requests by their headers."""

    def __init__(self, connections: Connections, key_cache_s: float) -> None:
        self._connections = connections
        self._needed: _Remembered[bool] = _Remembered(key_cache_s)
        self._holders: _Remembered[Holder | None] = _Remembered(key_cache_s)

    async def grant(self, headers: Mapping[bytes, bytes]) -> Grant:
        """What the request may do. Raises Unauthorized, or Forbidden for a foreign web page."""
        if not await self._needed.get(b"", lambda: self._connections.ask(keys_exist)):
            _refuse_foreign_pages(headers)
            return _OPEN
        key = _bearer(headers.get(b"authorization", b""))
        hashed = hash_key(key)
        holder = await self._holders.get(
            hashed, lambda: self._connections.ask(lambda connection: find_key(connection, hashed))
        )
        if holder is None:
            raise Unauthorized("this API key is not known, or was revoked")
        return Grant(holder.tenant_id, holder.scopes, holder.streams)

    async def reader(self, scope: Scope) -> Grant:
        """What a request for reading may do."""
        return (await self.grant(dict(scope["headers"]))).need("read")


def check_binding(host: str, keys_exist: bool) -> None:
    """Refuse to listen beyond this machine while everybody could read and write."""
    if not keys_exist and not is_loopback(host):
        raise SettingsError(
            f"listening on {host} lets other machines in, and there are no API keys; make one first with "
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


def _refuse_foreign_pages(headers: Mapping[bytes, bytes]) -> None:
    """Without keys, any web page the user visits could read and write here through their browser: it may not."""
    for name, prefix in ((b"host", "//"), (b"origin", "")):
        value = headers.get(name)
        if value is not None and not _names_loopback(prefix + value.decode("latin-1")):
            raise Forbidden(
                f"without API keys only this machine is answered, and {name.decode().title()} names another; "
                "make a key with `tidelock keys create`"
            )


@lru_cache(maxsize=1024)
def _names_loopback(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False
