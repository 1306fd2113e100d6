"""Settings of connections: what a client may take before anybody knows who it is."""

from __future__ import annotations

from dataclasses import dataclass

import tidelock.settings.options as fields


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of every connection, before any key is checked. What is over a limit is counted in the metrics and logged
    once a minute."""

    max: int | None = fields.integer(
        None,
        "Most connections at a time, WebSockets included. At the limit a new connection replaces one that has sent no "
        "complete request for a second or has been idle that long; if there is none, it is answered 503.",
        unset="12000, or three quarters of the limit of open files if that is less",
        maximum=1_000_000,
    )
    per_address_max: int | None = fields.integer(
        None,
        "Most connections from one address (IPv6: one /64 network) where `host` is not a loopback address. More are "
        "answered 429. Behind a proxy, set it to `connections.max`; connections from this machine are not counted.",
        unset="a quarter of `connections.max`",
        maximum=1_000_000,
    )
    health_max: int = fields.integer(
        64,
        "Connections kept beyond both limits for `/healthz`, `/readyz` and `/metrics`; other paths are refused there.",
        maximum=10_000,
    )
    head_bytes_max: int = fields.size(
        "32KiB",
        "Most bytes of a request's line and headers together. More are answered 431, or 414 if it is the line.",
        minimum="1KiB",
        maximum="1MiB",
    )
    head_timeout: int = fields.duration(
        "10s",
        "How long a new connection has until its first headers are complete, and later requests from their first byte.",
        minimum="10ms",
    )
    body_timeout: int = fields.duration(
        "10s", "How long a request's body may be slower than `connections.body_bytes_per_s`.", minimum="10ms"
    )
    body_bytes_per_s: int = fields.size(
        "1KiB", "Slowest rate of a request's body. A slower one is answered 408.", minimum="1B", maximum="1GiB"
    )
    keep_alive: int = fields.duration(
        "75s", "How long a connection may stay idle between two requests.", minimum="10ms"
    )
