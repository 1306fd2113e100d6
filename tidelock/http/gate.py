"""Gate: how many connections there are, which of them have waited too long, and what became of those.

Everything here is before authentication, so whatever a client does must cost little. Each state that can be too long is
a queue in the order of entry: as its time limit is the same for all, only its front needs a look, and there is no timer
per connection or request. Who is refused is counted and told in one line a minute: a log line per client would be one
more thing that a client could fill.
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

#: answered on connections beyond the limits, too
HEALTH = frozenset(("/healthz", "/readyz", "/metrics"))

_CONNECTIONS_MAX = 12_000
# For the database, webhooks, files, and for what is accepted before what it replaces is closed.
_OTHER_FILES_MIN = 128
_SWEEP_S = 1.0
# Connections that are closed before others get a turn.
_SLICE = 100
_SUMMARY_S = 60.0
# How long a client that sent too much may read why, before the connection is reset.
_LINGER_S = 1.0
# Whoever has been silent for less may just be arriving.
_REPLACEABLE_S = 1.0
# What all WebSockets that have shown no key yet may have sent.
_STRANGERS_BYTES_MAX = 16 * 2**20

#: why a connection was closed or refused -> how the log says it
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
#: closed as they should be: counted, not logged
IDLE = "idle"


class Peer(Protocol):
    """A connection, as far as it can wait for too long."""

    def overdue(self, waiting: Waiting) -> None:
        """It has been in this queue for the whole of its time: close it, or `renew` it there."""

    def abort(self) -> None:
        """Close without a word."""


class Waiting(dict[Peer, float]):
    """Connections in one state with a time limit, from old to new, and when each came into it."""

    def __init__(self, limit_s: float) -> None:
        super().__init__()
        self.limit_s = limit_s

    def renew(self, connection: Peer, now: float) -> None:
        del self[connection]
        self[connection] = now

    def due(self, now: float, limit_s: float | None = None) -> list[Peer]:
        """Some of those whose time is over, the oldest first."""
        before = now - (self.limit_s if limit_s is None else limit_s)
        found: list[Peer] = []
        for connection, since in self.items():
            if since > before or len(found) >= _SLICE:
                break
            found.append(connection)
        return found


@dataclass(frozen=True, slots=True)
class GateLimits:
    """What holds for one listener: the settings, with what the system allows and what the address asks for."""

    connections_max: int
    #: None: this machine only is listened to
    per_address_max: int | None
    health_max: int
    head_bytes_max: int
    #: of a body that was answered before its end
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
        #: bodies that were answered before their end
        self.unwanted = Waiting(limits.body_timeout_s)
        self.idle = Waiting(limits.keep_alive_s)
        #: refused, and may still read why
        self.leaving = Waiting(min(_LINGER_S, limits.head_timeout_s))
        #: closed as soon as the client has read the rest of its answer
        self.closing = Waiting(limits.body_timeout_s)
        self._queues = (self.heads, self.bodies, self.unwanted, self.idle, self.leaving, self.closing)
        self.closed: Counter[str] = Counter()
        #: with the address each is counted for, None: for none
        self._admitted: dict[Peer, str | None] = {}
        self._addresses: Counter[str] = Counter()
        #: beyond the limits, from old to new
        self._crowded: dict[Peer, None] = {}
        #: WebSockets that have shown no key yet: bytes each has sent, from old to new, and all of them together
        self._strangers: dict[Peer, int] = {}
        self._strangers_bytes = 0
        self._told: Counter[str] = Counter()
        self._tell_at = 0.0

    @property
    def open(self) -> int:
        return len(self._admitted) + len(self._crowded)

    def enter(self, connection: Peer, address: str | None, now: float) -> str | None:
        """Count a new connection. None: it is admitted; else why only questions about health are answered on it."""
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
            # Who is silent goes before who is being answered, and then the oldest.
            idle = (each for each in self._crowded if any(each in queue for queue in self._queues))
            oldest = next(idle, None) or next(iter(self._crowded))
            self.leave(oldest)
            self.closed[reason] += 1
            oldest.abort()
        self._crowded[connection] = None
        return reason

    def hand_over(self, connection: Peer, successor: Peer) -> None:
        """The same connection goes on as another protocol."""
        if connection in self._admitted:
            self._admitted[successor] = self._admitted.pop(connection)

    def heard(self, connection: Peer, size: int) -> int:
        """Count bytes of a WebSocket that has shown no key yet. Gives how many it has sent.

        Where all of them have sent too much together, the oldest goes: whoever has a key shows it at once.
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
        """What it sends is counted no more."""
        self._strangers_bytes -= self._strangers.pop(connection, 0)

    def leave(self, connection: Peer) -> None:
        """It is closed, or as good as. May be said twice."""
        self.trust(connection)
        self._crowded.pop(connection, None)
        counted = self._admitted.pop(connection, None)
        if counted is not None:
            self._addresses[counted] -= 1
            if not self._addresses[counted]:
                del self._addresses[counted]

    def _replace(self, now: float) -> bool:
        """Make room by closing whoever has waited longest with nothing under way. False: there is nobody."""
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
        """Close what is overdue and tell what was closed, for ever."""
        loop = asyncio.get_running_loop()
        period_s = min(_SWEEP_S, *(queue.limit_s / 4 for queue in self._queues))
        expected = loop.time() + period_s
        punctual = True
        while True:
            await asyncio.sleep(period_s)
            # If this comes late, the process was busy, and what clients sent meanwhile is not read yet: look once more
            # around before anybody is blamed for being slow.
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
    """Let this process open as many files as it may be allowed: each connection is one, and defaults are low."""
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
                # A defect with one of them must not let all others stay for ever.
                logger.exception("a connection that timed out could not be closed cleanly; it was aborted")
                with suppress(Exception):
                    connection.abort()
                queue.pop(connection, None)
        # Ten thousand at once must not hold up the others.
        await asyncio.sleep(0)


@lru_cache(maxsize=4096)
def _network(address: str) -> str | None:
    """What connections are counted by: the address, of IPv6 the network that one customer has. None: this machine."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is None:
            return None if parsed.is_loopback else str(ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))
        parsed = parsed.ipv4_mapped
    return None if parsed.is_loopback else str(parsed)
