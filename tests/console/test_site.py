"""The console's door: who is let in, what is the API's, and what happens where it is not there."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import websockets
from nicegui import Client

from tests.http.test_access import make_key
from tests.serving import Start
from tidelock.app import Serving
from tidelock.console.site import COOKIE, Sessions, local_path
from tidelock.http.access import is_own_page

UNFRAMED = ("frame-ancestors 'none'", "DENY")
PROXIED = {"x-forwarded-host": "a", "x-forwarded-proto": "https"}
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture(scope="module")
async def server(start: Start) -> AsyncIterator[Serving]:
    async with start(key_cache_s=0, console_visitors_max=3) as serving:
        yield serving


@pytest.fixture
async def client(server: Serving) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as opened:
        yield opened


async def test_browsers_get_pages_and_programs_the_api(client: httpx.AsyncClient) -> None:
    page = await client.get("/", headers=BROWSER)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "Overview · Tidelock" in page.text
    assert (page.headers["content-security-policy"], page.headers["x-frame-options"]) == UNFRAMED
    assert (await client.get("/")).headers["location"] == "/docs"
    for path in ("/events", "/events/1", "/streams", "/nothing", "/_nicegui", "/_console/nothing.css"):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), path


async def test_a_path_that_leads_nowhere_is_a_page_for_people_and_an_error_for_programs(
    client: httpx.AsyncClient,
) -> None:
    long = "x" * 300
    for path in (
        "/nothing",
        "/events/1/2",
        f"/{long}",
        "/<script>",
        "/_nicegui/nothing",
        "/_console/../site.py",
        "/_console/x/..",
    ):
        page = await client.get(path, headers=BROWSER)
        assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8"), path
        assert "There is no page here" in page.text
        assert "<script>/" not in page.text
        assert 'href="/counters"' in page.text
    for path in (
        "/v1/nothing", "/admin/nothing", f"/_console/x/{long}",
        f"/_console/{long}.css", "/_console/x/%00", "/_console/x/",
    ):  # fmt: skip
        answer = await client.get(path, headers=BROWSER)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), path
    assert (await client.post("/events", headers=BROWSER)).status_code == 405
    assert (await client.get("/admin/events", headers=BROWSER)).json()["items"] == []


async def test_its_own_files_are_kept_by_browsers(client: httpx.AsyncClient) -> None:
    page = (await client.get("/login", headers=BROWSER, follow_redirects=False)).status_code
    assert page == 303, "without keys there is nobody to ask"
    theme = await client.get("/_console/anything/theme.css")
    assert theme.headers["content-type"].startswith("text/css")
    assert "max-age" in theme.headers["cache-control"]


async def test_without_keys_no_foreign_page_gets_in(client: httpx.AsyncClient, server: Serving) -> None:
    for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
        refused = await client.get("/", headers={**BROWSER, **headers})
        assert refused.status_code == 403
    socket = server.url.replace("http:", "ws:") + "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    with pytest.raises(websockets.InvalidStatus) as caught:
        await websockets.connect(socket, origin=websockets.Origin("https://evil.example"))
    assert caught.value.response.status_code == 403


async def _socket_status(client: httpx.AsyncClient, origin: str, **headers: str) -> int:
    """What the console's socket answers to a page of that origin, with the client's session."""
    path = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    cookies = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    try:
        async with websockets.connect(
            str(client.base_url).rstrip("/").replace("http:", "ws:") + path,
            origin=websockets.Origin(origin),
            additional_headers={"cookie": cookies, **headers},
        ):
            return 101
    except websockets.InvalidStatus as refused:
        return refused.response.status_code


@pytest.mark.parametrize(
    ("headers", "proxied", "own"),
    [
        ({"origin": "http://a:1", "host": "a:1"}, False, True),
        ({"origin": "https://a", "host": "a"}, False, False),
        ({"origin": "https://a", "host": "a"}, True, True),
        ({"origin": "https://localhost", "host": "localhost"}, True, False),
        (
            {"origin": "https://a", "host": "127.0.0.1:8080", "x-forwarded-host": "a", "x-forwarded-proto": "https"},
            True,
            True,
        ),
        (
            {"origin": "https://a", "host": "127.0.0.1:8080", "x-forwarded-host": "a", "x-forwarded-proto": "https"},
            False,
            False,
        ),
        ({"origin": "http://a", "host": "a", "x-forwarded-proto": "https"}, True, False),
        ({"origin": "https://a", "host": "b"}, True, False),
        ({"origin": "https://a:444", "host": "a"}, True, False),
        ({"origin": "null", "host": "a"}, True, False),
        ({"origin": "http://"}, True, False),
    ],
)
def test_a_page_is_the_servers_own_by_scheme_host_and_port(headers: dict[str, str], proxied: bool, own: bool) -> None:
    sent = {name.encode(): value.encode() for name, value in headers.items()}
    assert is_own_page(sent, proxied=proxied) is own


async def test_as_many_pages_are_open_as_are_allowed(client: httpx.AsyncClient) -> None:
    answers = [await client.get("/verify", headers=BROWSER) for _ in range(4)]
    assert answers[-1].status_code == 503
    assert answers[-1].json()["error"]["code"] == "unavailable"
    assert "retry-after" in answers[-1].headers


async def test_it_can_be_left_out(start: Start) -> None:
    async with start(console=False) as server, httpx.AsyncClient(base_url=server.url, headers=BROWSER) as client:
        assert (await client.get("/")).headers["location"] == "/docs"
        assert (await client.get("/events")).status_code == 404


async def test_where_it_is_not_installed_it_says_how_to_get_it(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "nicegui" else real(name, *rest)
    )
    answer = await client.get("/", headers=BROWSER)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert "pip install" in answer.text


async def test_with_keys_a_session_is_needed(client: httpx.AsyncClient, server: Serving) -> None:
    key = await make_key(server, "acme", ["read"])
    sender = await make_key(server, "acme", ["ingest"])
    asking = await client.get("/login")
    assert (asking.headers["content-security-policy"], asking.headers["x-frame-options"]) == UNFRAMED
    proxied = await client.post("/login", data={"key": key}, headers={"x-forwarded-proto": "https"})
    assert "Secure" in proxied.headers["set-cookie"]
    client.cookies.clear()
    asked = await client.get("/events?stream=a%26b", headers=BROWSER)
    assert (asked.status_code, asked.headers["location"]) == (303, "/login?next=/events%3Fstream%3Da%2526b")
    for given, told in (("", "Enter an API key"), ("tdl_no", "is unknown"), (sender, "scope read")):
        refused = await client.post(asked.headers["location"], data={"key": given})
        assert refused.status_code in (401, 403)
        assert told in refused.text
        assert "set-cookie" not in refused.headers
    assert (await client.post("/login", content=b"key=" + b"x" * 10_000)).status_code == 413
    taken = await client.post(asked.headers["location"], data={"key": f" {key} "})
    assert (taken.status_code, taken.headers["location"]) == (303, "/events?stream=a%26b")
    cookie = taken.headers["set-cookie"]
    assert key not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Secure" not in cookie, "this server has no TLS"
    # The three pages that were opened before would be forgotten only after a minute.
    for visitor in list(Client.instances.values()):
        visitor.delete()
    for origin, status in ((str(client.base_url), 101), ("http://127.0.0.1:3000", 403), ("https://evil.example", 403)):
        assert await _socket_status(client, origin.rstrip("/")) == status
        posted = await client.post("/login", data={"key": "tdl_no"}, headers={"origin": origin.rstrip("/")})
        assert posted.status_code == (401 if status == 101 else 403)
    shown = await client.get("/events", headers=BROWSER)
    assert (shown.status_code, "Events · Tidelock" in shown.text) == (200, True)
    await client.get("/logout")
    gone = await client.get("/events", headers={**BROWSER, "cookie": cookie.split(";")[0]})
    assert gone.status_code == 303, "a session that was ended is over, whoever kept its name"


@pytest.mark.parametrize(
    ("wanted", "path"),
    [(None, "/"), ("/events?a=b", "/events?a=b"), ("//evil", "/"), ("/\\evil", "/"), ("https://evil", "/"), ("", "/")],
)
def test_after_the_login_one_stays_on_this_server(wanted: str | None, path: str) -> None:
    assert local_path(wanted) == path


def test_sessions_are_bounded_and_end() -> None:
    sessions = Sessions(sessions_max=2, lifetime_s=60)
    first, second = sessions.open("a"), sessions.open("b")
    assert sessions.key(first) == "a"
    third = sessions.open("c")
    assert [sessions.key(token) for token in (first, second, third)] == ["a", None, "c"]
    sessions.close(first)
    assert sessions.key(first) is None
    assert sessions.key(None) is None
    over: Any = Sessions(sessions_max=2, lifetime_s=-1)
    assert over.key(over.open("a")) is None
    assert COOKIE
