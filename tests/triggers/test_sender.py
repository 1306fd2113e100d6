"""The sender: every way that receivers answer or do not, and that nothing is dialled but the public internet.

The tests dial loopback only: what would be dialled is asserted where names are looked up and sockets are made.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import formatdate
from time import time
from typing import Any

import pytest

from tests.triggers import receiver as replies
from tests.triggers.receiver import Reply, receiving
from tidelock.triggers.attempts import AddressInfo, Dial, Lookup, WebhookSender

PUBLIC, INNER = "93.184.216.34", "10.0.0.7"


@asynccontextmanager
async def sending(
    *, allow_private: bool = True, timeout_s: float = 5, lookup: Lookup | None = None, dial: Dial | None = None
) -> AsyncIterator[WebhookSender]:
    sender = WebhookSender(
        timeout_s=timeout_s, response_bytes_max=100, allow_private=allow_private, lookup=lookup, dial=dial
    )  # fmt: skip
    try:
        yield sender
    finally:
        await sender.close()


async def test_a_delivery_is_a_post_of_json_with_the_headers_given() -> None:
    async with receiving() as receiver, sending() as sender:
        result = await sender.post(f"{receiver.url}?a=b%20c", {"webhook-id": "1"}, b'{"a":1}')
    assert (result.outcome, result.status, result.response) == ("delivered", 200, "ok")
    (request,) = receiver.requests
    assert (request.path, request.body) == ("/hook?a=b%20c", b'{"a":1}')
    assert request.headers["webhook-id"] == "1"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["user-agent"].startswith("tidelock/")
    assert "accept-encoding" not in request.headers


@pytest.mark.parametrize(
    ("reply", "outcome", "status"),
    [
        (Reply(204, b""), "delivered", 204),
        (replies.SHORT, "delivered", 200),
        (Reply(302, headers={"Location": "http://169.254.169.254/latest"}), "redirected", 302),
        (Reply(400), "refused", 400),
        (Reply(410), "gone", 410),
        (Reply(429), "throttled", 429),
        (Reply(500), "failed", 500),
        (replies.CLOSE, "unreachable", None),
        (replies.CUT, "unreachable", None),
        (replies.GARBAGE, "unreachable", None),
        (replies.HANG, "timeout", None),
        (Reply(headers={"X": "y" * 20_000}), "unreachable", None),
    ],
)
async def test_whatever_a_receiver_does_is_an_outcome(reply: Reply | str, outcome: str, status: int | None) -> None:
    async with receiving(lambda _: reply) as receiver, sending(timeout_s=0.5) as sender:
        result = await sender.post(receiver.url, {}, b"{}")
        assert (result.outcome, result.status) == (outcome, status), result
        assert len(receiver.requests) == 1
        assert len(result.response) <= 100


async def test_a_redirect_is_not_followed() -> None:
    async with receiving() as inside, sending() as sender:
        async with receiving(lambda _: Reply(307, headers={"Location": inside.url})) as receiver:
            assert (await sender.post(receiver.url, {}, b"{}")).outcome == "redirected"
        assert not inside.requests


async def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with sending() as sender:
            result = await sender.post(f"http://127.0.0.1:{taken.getsockname()[1]}/", {}, b"")
    assert result.outcome == "unreachable"


async def test_a_receiver_asks_for_patience_by_seconds_or_by_a_date() -> None:
    async with receiving() as receiver, sending() as sender:
        receiver.behave = lambda _: Reply(429, headers={"Retry-After": "17"})
        assert (await sender.post(receiver.url, {}, b"")).retry_after_s == 17
        receiver.behave = lambda _: Reply(503, headers={"Retry-After": formatdate(time() + 60, usegmt=True)})
        assert (await sender.post(receiver.url, {}, b"")).retry_after_s == pytest.approx(60, abs=3)


async def test_of_a_long_answer_only_the_beginning_is_read_and_kept() -> None:
    async with receiving(lambda _: Reply(500, b"\0\xff" + b"x" * 10_000_000)) as receiver, sending() as sender:
        result = await sender.post(receiver.url, {}, b"")
        assert result.response == "��" + "x" * 98
        receiver.behave = lambda _: Reply()
        assert (await sender.post(receiver.url, {}, b"")).outcome == "delivered"


async def test_connections_are_kept_and_one_that_was_closed_meanwhile_is_not_a_failure() -> None:
    async with receiving() as receiver, sending() as sender:
        for _ in range(3):
            assert (await sender.post(receiver.url, {}, b"")).outcome == "delivered"
        assert receiver.connections == 1

        first = receiver.requests[-1].connection
        receiver.behave = lambda request: replies.CLOSE if request.connection == first else Reply()
        assert (await sender.post(receiver.url, {}, b"")).outcome == "delivered"
        receiver.behave = lambda _: replies.CLOSE
        assert (await sender.post(receiver.url, {}, b"")).outcome == "unreachable"


async def test_neither_proxies_of_the_environment_nor_cookies_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with receiving(lambda _: Reply(headers={"Set-Cookie": "a=b"})) as receiver, sending() as sender:
        for _ in range(2):
            assert (await sender.post(receiver.url, {}, b"")).outcome == "delivered"
        assert all("cookie" not in request.headers for request in receiver.requests)


class Network:
    """What names resolve to, and what was dialled. Nothing leaves it."""

    def __init__(self, *answers: list[str]) -> None:
        self._answers = list(answers)
        self.looked_up: list[str] = []
        self.dialled: list[str] = []

    async def lookup(self, host: str, port: int) -> list[str]:
        self.looked_up.append(host)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def dial(self, info: AddressInfo) -> socket.socket:
        self.dialled.append(info[4][0])
        raise OSError("nothing is dialled in this test")


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "10.0.0.1", "169.254.169.254", "[::1]", "[::ffff:127.0.0.1]", "[fd00:ec2::254]", "[fe80::1]",
     "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[::]", "0.0.0.0", "100.64.0.1"],
)  # fmt: skip
async def test_an_inner_address_is_refused_before_a_socket_is_made(host: str) -> None:
    network = Network([PUBLIC])
    async with sending(allow_private=False, lookup=network.lookup, dial=network.dial) as sender:
        result = await sender.post(f"http://{host}/", {}, b"")
    assert result.outcome == "forbidden", result
    assert not network.dialled


@pytest.mark.parametrize(
    "host",
    ["127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "017700000001", "127.0.0.1.", "0", "localhost",
     "localhost.", "[::1%25lo]", "[fe80::1%25eth0]", "[0:0:0:0:0:ffff:7f00:1]", "①②⑦.⓪.⓪.①"],
)  # fmt: skip
async def test_no_spelling_of_an_inner_address_gets_through(host: str) -> None:
    dialled: list[Any] = []

    def dial(info: AddressInfo) -> socket.socket:
        dialled.append(info)
        raise OSError

    # With the system's own resolver, which reads these as any other program does.
    async with receiving() as receiver, sending(allow_private=False, dial=dial) as sender:
        port = receiver.url.rsplit(":", 1)[1].split("/")[0]
        result = await sender.post(f"http://{host}:{port}/hook", {}, b"")
        assert result.outcome in ("forbidden", "unreachable"), result
        assert not dialled
        assert not receiver.connections


@pytest.mark.parametrize("answer", [[INNER], [PUBLIC, INNER], ["::1"], ["fe80::1%2"], ["::ffff:127.0.0.1"]])
async def test_a_name_that_resolves_to_an_inner_address_is_refused(answer: list[str]) -> None:
    network = Network(answer)
    async with sending(allow_private=False, lookup=network.lookup, dial=network.dial) as sender:
        result = await sender.post("https://hooks.example/", {}, b"")
    assert (result.outcome, network.looked_up, network.dialled) == ("forbidden", ["hooks.example"], [])


async def test_the_address_that_was_judged_is_the_one_that_is_dialled() -> None:
    network = Network([PUBLIC, "2606:4700::1111"], [INNER])
    async with sending(allow_private=False, lookup=network.lookup, dial=network.dial) as sender:
        result = await sender.post("https://hooks.example/", {}, b"")
    assert result.outcome == "unreachable"
    assert network.looked_up == ["hooks.example"], "a second look could give another address"
    assert sorted(network.dialled) == ["2606:4700::1111", PUBLIC]


async def test_a_name_that_changes_is_judged_again_at_every_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelock.triggers.attempts._DNS_CACHE_S", 0)
    network = Network([PUBLIC], [PUBLIC], ["127.0.0.1"])
    async with receiving() as receiver:
        port = receiver.url.rsplit(":", 1)[1].split("/")[0]
        async with sending(allow_private=False, lookup=network.lookup, dial=network.dial) as sender:
            outcomes = [(await sender.post(f"http://rebind.example:{port}/", {}, b"")).outcome for _ in range(4)]
        assert outcomes == ["unreachable", "unreachable", "forbidden", "forbidden"]
        assert set(network.dialled) == {PUBLIC}
        assert not receiver.connections


async def test_even_a_resolver_that_was_fooled_does_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two seams are independent: a name's judgement is skipped here, and the socket's still holds."""
    network = Network([INNER])
    async with sending(allow_private=False, lookup=network.lookup, dial=network.dial) as sender:
        monkeypatch.setattr(sender._resolver, "_check", lambda _: None)
        assert (await sender.post("http://hooks.example/", {}, b"")).outcome == "forbidden"
    assert not network.dialled


async def test_names_that_hang_do_not_hold_up_others() -> None:
    async def lookup(host: str, port: int) -> list[str]:
        await asyncio.sleep(0 if host == "good.example" else 60)
        return ["127.0.0.1"]

    async with receiving() as receiver, sending(timeout_s=0.5, lookup=lookup) as sender:
        port = receiver.url.rsplit(":", 1)[1].split("/")[0]
        hanging = [asyncio.create_task(sender.post(f"http://h{n}.example:{port}/", {}, b"")) for n in range(50)]
        assert (await sender.post(f"http://good.example:{port}/", {}, b"")).outcome == "delivered"
        assert {result.outcome for result in await asyncio.gather(*hanging)} == {"timeout"}
