"""A port that is given to a server is still its own when the server asks for it."""

import random
import socket
from pathlib import Path

import pytest

from tidelock.errors import Unreachable
from tidelock.postgres import ports
from tidelock.postgres.ports import LOOPBACK, free_port, free_ports, is_free


def test_ports_of_one_call_differ() -> None:
    for _ in range(20):
        assert len(set(free_ports(50))) == 50


def test_no_outgoing_connection_can_take_a_port_before_the_server_does() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(port < lowest for port in free_ports(50))


def test_two_programs_with_the_same_seed_draw_different_ports() -> None:
    random.seed(1)
    first = free_ports(20)
    random.seed(1)
    assert free_ports(20) != first


def test_a_port_that_somebody_listens_on_is_not_free() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        assert not is_free(taken.getsockname()[1])
    assert is_free(free_port())


def test_a_machine_without_a_free_port_is_named_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda port: False)
    with pytest.raises(Unreachable, match=r"no free port found on 127\.0\.0\.1 between"):
        free_port()
