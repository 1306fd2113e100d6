"""Gate: how many connections there are, which have waited too long, and what happened to them.

Everything here is before authentication, so whatever a client does must cost little. Each state with a time limit is a
queue in the order of entry: since the limit is the same for all, only the front is checked, and there is no timer per
connection or request. Refused clients are counted and logged in one line per minute: with a line per client, clients
could flood the log.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tidelock.http.access import is_loopback
from tidelock.instants import SECOND
from tidelock.settings import Settings

logger = logging.getLogger(__name__)

#: answered even on connections beyond the limits
HEALTH = frozenset(("/healthz", "/readyz", "/metrics"))

_CONNECTIONS_MAX = 12_000
# For the database, webhooks, files, and for connections accepted before the ones they replace are closed.
_OTHER_FILES_MIN = 128
_SWEEP_S = 1.0
# Connections closed before others get a turn.
_SLICE = 100
_SUMMARY_S = 60.0
# How long a client that sent too much may read the reason before the connection is reset.
_LINGER_S = 1.0
# A client silent for less may just be arriving.
_REPLACEABLE_S = 1.0
# Total bytes that unauthenticated WebSockets may have sent.
_STRANGERS_BYTES_MAX = 16 * 2**20

#: why a connection was closed or refused -> its wording in the log
REASONS = {
    "invalid_request": "were not HTTP",
    "head_too_large": "had larger headers than connections.head_bytes_max",
    "head_timeout": "sent no complete headers within connections.head_timeout",
    "body_timeout": "sent a body slower than connections.body_bytes_per_s",
    "body_unwanted": "kept sending a body after the response",
    "answer_unread": "did not read the rest of their response for connections.body_timeout",
    "stranger": "were WebSockets that sent other messages before an API key",
    "connections_max": "were above connections.max",
    "address_max": "were above connections.per_address_max",
    "replaced": "were idle and made room for new ones",
}
#: closed normally: counted, not logged
IDLE = "idle"


class Peer(Protocol):
    """A connection, as far as it can wait too long."""

    def overdue(self, waiting: Waiting) -> None:
        """Its time in this queue is up: close it, or `renew` it there."""

    def abort(self) -> None:
        """Close without a response."""


class Waiting(dict[Peer, float]):
    """Connections in one state with a time limit, oldest first, with the time each entered it."""

    def __init__(self, limit_s: float) -> None:
        super().__init__()
        self.limit_s = limit_s

    def renew(self, connection: Peer, now: float) -> None:
        del self[connection]
        self[connection] = now

    def due(self, now: float, limit_s: float | None = None) -> list[Peer]:
        """Some of those whose time is up, oldest first."""
        before = now - (self.limit_s if limit_s is None else limit_s)
        found: list[Peer] = []
        for connection, since in self.items():
            if since > before or len(found) >= _SLICE:
                break
            found.append(connection)
        return found


@dataclass(frozen=True, slots=True)
class GateLimits:
    """The limits of one listener: the settings, adjusted to the system and the address."""

    connections_max: int
    #: None: it listens on this machine only
    per_address_max: int | None
    health_max: int
    head_bytes_max: int
    #: of a body answered before its end
    unwanted_bytes_max: int
    body_bytes_per_s: int
    head_timeout_s: float
    body_timeout_s: float
    keep_alive_s: float

    @classmethod
    def of(cls, settings: Settings) -> GateLimits:
        given = settings.connections
        allowed = _allowed_by_files()
        connections_max = min(given.max or _CONNECTIONS_MAX, allowed)
        if given.max is not None and given.max > allowed:
            message = "connections.max is %d, but the limit of open files (ulimit -n) allows only %d; using that"
            logger.warning(message, given.max, allowed)
        per_address_max = given.per_address_max or max(1, connections_max // 4)
        return cls(
            connections_max=connections_max,
            per_address_max=None if is_loopback(settings.host) else per_address_max,
            health_max=given.health_max,
            head_bytes_max=given.head_bytes_max,
            unwanted_bytes_max=settings.request_bytes_max,
            body_bytes_per_s=given.body_bytes_per_s,
            head_timeout_s=given.head_timeout / SECOND,
            body_timeout_s=given.body_timeout / SECOND,
            keep_alive_s=given.keep_alive / SECOND,
        )


class Gate:
    """The connections of one listener."""

    def __init__(self, limits: GateLimits) -> None:
        self.limits = limits
        self.heads = Waiting(limits.head_timeout_s)
        self.bodies = Waiting(limits.body_timeout_s)
        #: bodies answered before their end
        self.unwanted = Waiting(limits.body_timeout_s)
        self.idle = Waiting(limits.keep_alive_s)
        #: refused, and still reading the reason
        self.leaving = Waiting(min(_LINGER_S, limits.head_timeout_s))
        #: closed as soon as the client has read the rest of its response
        self.closing = Waiting(limits.body_timeout_s)
        self._queues = (self.heads, self.bodies, self.unwanted, self.idle, self.leaving, self.closing)
        self.closed: Counter[str] = Counter()
        #: with the address it counts for; None: for none
        self._admitted: dict[Peer, str | None] = {}
        self._addresses: Counter[str] = Counter()
        #: beyond the limits, oldest first
        self._crowded: dict[Peer, None] = {}
        #: unauthenticated WebSockets: bytes sent by each, oldest first, and in total
        self._strangers: dict[Peer, int] = {}
        self._strangers_bytes = 0
        self._told: Counter[str] = Counter()
        self._tell_at = 0.0

    @property
    def open(self) -> int:
        return len(self._admitted) + len(self._crowded)

    def enter(self, connection: Peer, address: str | None, now: float) -> str | None:
        """Count a new connection. None: it is admitted; else why only health checks are answered on it."""
        counted = None if self.limits.per_address_max is None or address is None else _network(address)
        if counted is not None and self._addresses[counted] >= (self.limits.per_address_max or 0):
            reason = "address_max"
        elif len(self._admitted) >= self.limits.connections_max and not self._replace(now):
            reason = "connections_max"
        else:
            self._admitted[connection] = counted
            if counted is not None:
                self._addresses[counted] += 1
            return None
        if len(self._crowded) >= self.limits.health_max:
            # Silent ones go before those being answered, and then the oldest.
            idle = (each for each in self._crowded if any(each in queue for queue in self._queues))
            oldest = next(idle, None) or next(iter(self._crowded))
            self.leave(oldest)
            self.closed[reason] += 1
            oldest.abort()
        self._crowded[connection] = None
        return reason

    def hand_over(self, connection: Peer, successor: Peer) -> None:
        """The same connection continues with another protocol."""
        if connection in self._admitted:
            self._admitted[successor] = self._admitted.pop(connection)

    def heard(self, connection: Peer, size: int) -> int:
        """Count bytes of an unauthenticated WebSocket; returns how many it has sent. If all of them together have sent
        too much, the oldest is closed:

        a client with a key sends it at once.
        """
        total = self._strangers[connection] = self._strangers.get(connection, 0) + size
        self._strangers_bytes += size
        while self._strangers_bytes > _STRANGERS_BYTES_MAX:
            oldest = next(iter(self._strangers))
            self.trust(oldest)
            self.closed["stranger"] += 1
            oldest.abort()
        return total

    def trust(self, connection: Peer) -> None:
        """Stop counting what it sends."""
        self._strangers_bytes -= self._strangers.pop(connection, 0)

    def leave(self, connection: Peer) -> None:
        """It is closed, or nearly. May be called twice."""
        self.trust(connection)
        self._crowded.pop(connection, None)
        counted = self._admitted.pop(connection, None)
        if counted is not None:
            self._addresses[counted] -= 1
            if not self._addresses[counted]:
                del self._addresses[counted]

    def _replace(self, now: float) -> bool:
        """Make room by closing the connection that has been idle longest. False: there is none."""
        for waiting in (self.leaving, self.closing, self.heads, self.idle):
            # Tests have limits much shorter than a second.
            for connection in waiting.due(now, min(_REPLACEABLE_S, waiting.limit_s / 2)):
                if connection in self._admitted:
                    self.leave(connection)
                    self.closed["replaced"] += 1
                    connection.abort()
                    return True
        return False

    async def watch(self) -> None:
        """Close overdue connections and log what was closed, for ever."""
        loop = asyncio.get_running_loop()
        period_s = min(_SWEEP_S, *(queue.limit_s / 4 for queue in self._queues))
        expected = loop.time() + period_s
        punctual = True
        while True:
            await asyncio.sleep(period_s)
            # If this runs late, the process was busy, and what clients sent meanwhile is unread: read once more before
            # blaming anybody for being slow.
            punctual = loop.time() < expected + _SWEEP_S or not punctual
            expected = loop.time() + period_s
            if punctual:
                for queue in self._queues:
                    await _sweep(queue, loop)
            self._tell(loop.time())

    def _tell(self, now: float) -> None:
        if now < self._tell_at:
            return
        news = {reason: self.closed[reason] - self._told[reason] for reason in REASONS}
        if not any(news.values()):
            return
        logger.warning(
            "%d connections were closed or refused in the last minute: %s; %d of at most %d are open",
            sum(news.values()),
            ", ".join(f"{count} {REASONS[reason]}" for reason, count in news.items() if count),
            self.open,
            self.limits.connections_max,
        )
        self._told = self.closed.copy()
        self._tell_at = now + _SUMMARY_S


class GateMetrics(Collector):
    """The same for Prometheus."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def collect(self) -> Iterator[Metric]:
        gate = self._gate
        yield GaugeMetricFamily("tidelock_connections", "Open connections", value=gate.open)
        yield GaugeMetricFamily(
            "tidelock_connections_max", "Maximum number of connections", value=gate.limits.connections_max
        )
        family = CounterMetricFamily(
            "tidelock_connections_closed", "Connections closed or refused by the server, by reason", labels=["reason"]
        )
        for reason in (*REASONS, IDLE):
            family.add_metric([reason], gate.closed[reason])
        yield family


def raise_file_limit() -> None:
    """Let this process open as many files as it may be allowed: each connection needs one, and defaults are low."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _allowed_by_files() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return _CONNECTIONS_MAX
    return max(1, files - max(_OTHER_FILES_MIN, files // 4))


async def _sweep(queue: Waiting, loop: asyncio.AbstractEventLoop) -> None:
    while due := queue.due(loop.time()):
        for connection in due:
            try:
                connection.overdue(queue)
            except Exception:
                # A bug with one of them must not keep all others for ever.
                logger.exception("a connection that timed out could not be closed cleanly; it was aborted")
                with suppress(Exception):
                    connection.abort()
                queue.pop(connection, None)
        # Ten thousand at once must not delay the others.
        await asyncio.sleep(0)


@lru_cache(maxsize=4096)
def _network(address: str) -> str | None:
    """What connections are counted by: the address, or for IPv6 the network of one customer. None: this machine."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is None:
            return None if parsed.is_loopback else str(ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))
        parsed = parsed.ipv4_mapped
    return None if parsed.is_loopback else str(parsed)
