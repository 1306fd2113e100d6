"""Free ports of this machine, for servers that must be told theirs before they start."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

from tidelock.errors import Unreachable

LOOPBACK = "127.0.0.1"
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: where ports of outgoing connections begin, if the system does not say
_OUTGOING = 32_768
_LOWEST = 10_000
_ATTEMPTS = 1_000


def free_ports(count: int) -> list[int]:
    """Different ports that nobody uses. Raises Unreachable.

    A port that the system chooses is one of those that it also gives to outgoing connections and to the next caller,
    and any of them may take it before the server does. These come from below that range, at random.
    """
    # Not `random`: where tests seed it, several processes would choose the same ports.
    draw = secrets.SystemRandom()
    highest = _outgoing_from()
    found: list[int] = []
    for _ in range(_ATTEMPTS):
        if len(found) == count:
            return found
        port = draw.randrange(_LOWEST, highest)
        if port not in found and is_free(port):
            found.append(port)
    raise Unreachable(
        f"no free port found on {LOOPBACK} between {_LOWEST} and {highest}; stop programs that listen there"
    )


def free_port() -> int:
    """A port that nobody uses. Raises Unreachable."""
    return free_ports(1)[0]


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Connections of an earlier server that are still being closed are in nobody's way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def _outgoing_from() -> int:
    try:
        lowest = int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        lowest = _OUTGOING
    # Where nearly all ports are for outgoing connections, there is no better range.
    return lowest if lowest > 2 * _LOWEST else 65_536
