"""Web pages of another origin, in a real browser: what they get from a server without keys, and with."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page

from tests.conftest import Databases
from tests.serving import Threaded
from tidelock.ledger.apikeys import create_key

#: every way in, as a page would try it; each tells what it got
WAYS = """
async (server) => {
  const ws = server.replace('http', 'ws');
  const told = {};
  const fetched = async (path, options) => {
    try { return String((await fetch(server + path, options)).status); } catch { return 'blocked'; }
  };
  const socket = (path, protocol, first) => new Promise((done) => {
    const opened = new WebSocket(ws + path, protocol);
    opened.onopen = () => first && opened.send(first);
    opened.onmessage = (message) => { done('heard ' + String(message.data).slice(0, 30)); opened.close(); };
    opened.onclose = (closed) => done('closed');
  });
  const json = { 'content-type': 'application/json' };
  const trigger = JSON.stringify({ name: 'stolen', table: 'counters', match: {}, webhook: 'https://evil.example/x' });
  told.read = await fetched('/admin/events');
  told.write = await fetched('/v1/events', { method: 'POST', body: '{"stream":"s"}', headers: json });
  told.health = await fetched('/healthz');
  const blind = (text) => ({ method: 'POST', mode: 'no-cors', body: new Blob([text]) });
  told.blind_event = await fetched('/v1/events', blind('{"stream":"s"}'));
  told.blind_trigger = await fetched('/v1/triggers', blind(trigger));
  told.graphql = await fetched('/graphql', { method: 'POST', body: '{"query":"{ __typename }"}', headers: json });
  told.console = await fetched('/', { headers: { accept: 'text/html' } });
  told.tail = await socket('/ws?after=0', [], null);
  told.live = await socket('/graphql', ['graphql-transport-ws'], '{"type":"connection_init"}');
  told.socket_io = await socket('/_nicegui_ws/socket.io/?EIO=4&transport=websocket', [], null);
  told.events = await new Promise((done) => {
    const source = new EventSource(server + '/graphql?query=subscription{counters(where:{}){operation}}');
    source.onopen = () => { done('opened'); source.close(); };
    source.onerror = () => { done('refused'); source.close(); };
  });
  return told;
}
"""
#: what a page of the server itself gets, without keys
OWN = {
    "read": "200", "write": "200", "health": "200", "blind_event": "415", "blind_trigger": "415", "graphql": "200",
    "console": "200", "tail": 'heard {"ingressSequence":1', "live": 'heard {"type":"connection_ack"}',
    "socket_io": "heard 0{", "events": "opened",
}  # fmt: skip
#: what every other page gets: status 0 is an answer that it may not look at
REFUSED = {
    "read": "blocked", "write": "blocked", "health": "blocked", "blind_event": "0", "blind_trigger": "0",
    "graphql": "blocked", "console": "blocked", "tail": "closed", "live": "closed", "socket_io": "closed",
    "events": "refused",
}  # fmt: skip


class _Blank(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title>")

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[int]:
    """The port of somebody else's page on this machine."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Blank) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield served.server_port
        served.shutdown()
        thread.join()


@dataclass(frozen=True, slots=True)
class Servers:
    """They start before the browser, whose loop runs in the thread of the tests."""

    open: str
    keyed: str
    key: str


@pytest.fixture(scope="module")
def servers(databases: Databases, threaded: Threaded, elsewhere: int) -> Iterator[Servers]:
    with databases() as database:

        async def key() -> str:
            async with await database.connect() as connection:
                return (await create_key(connection, "*", ["ingest", "read", "triggers"]))[1]

        made = asyncio.run(key())
        named = (f"http://localhost:{elsewhere}",)
        with threaded() as url, threaded(database_url=database.url, cors_origins=named) as keyed:
            yield Servers(url, keyed, made)


@contextmanager
def opened(browser: Browser, url: str) -> Iterator[Page]:
    page = browser.new_page()
    page.goto(url)
    yield page
    page.close()


def check(told: dict[str, str], expected: dict[str, str]) -> None:
    assert {way: told[way][: len(got)] for way, got in expected.items()} == expected


def test_without_keys_pages_of_other_ports_get_nothing_by_any_way_and_our_own_get_all(
    servers: Servers, browser: Browser, elsewhere: int
) -> None:
    url = servers.open
    own = url.replace("127.0.0.1", "localhost")
    httpx.post(f"{url}/v1/events", json={"stream": "s"}).raise_for_status()
    for page_url in (f"http://localhost:{elsewhere}/", f"http://127.0.0.1:{elsewhere}/"):
        with opened(browser, page_url) as page:
            check(page.evaluate(WAYS, own), REFUSED)
    assert httpx.get(f"{url}/admin/events").json()["items"][1:] == []
    assert httpx.get(f"{url}/v1/triggers").json()["items"] == []
    with opened(browser, f"{own}/docs") as page:
        check(page.evaluate(WAYS, own), OWN)


USING_A_KEY = """
async ([server, key]) => {
  const headers = { authorization: 'Bearer ' + key };
  const ws = server.replace('http', 'ws');
  const hello = JSON.stringify({ type: 'connection_init', payload: { authorization: 'Bearer ' + key } });
  const fetched = async (path, options = {}) => {
    try { return String((await fetch(server + path, { headers, ...options })).status); } catch { return 'blocked'; }
  };
  const socket = (path, protocol) => new Promise((done) => {
    const opened = new WebSocket(ws + path, protocol);
    opened.onopen = () => opened.send(hello);
    opened.onmessage = () => { done('heard'); opened.close(); };
    opened.onclose = () => done('closed');
  });
  const json = { ...headers, 'content-type': 'application/json' };
  const event = { method: 'POST', body: '{"stream":"s"}', headers: json };
  const query = JSON.stringify({ query: 'subscription { counters(where: {}) { operation } }' });
  const streamed = { method: 'POST', headers: { ...json, accept: 'text/event-stream' }, body: query };
  return {
    write: await fetched('/v1/events', event),
    once: await fetched('/v1/events', { ...event, headers: { ...json, 'idempotency-key': 'k' } }),
    binary: await fetched('/v1/events', { ...event, headers: { ...json, 'ce-specversion': '1.0' } }),
    change: await fetched('/v1/triggers/none', { method: 'PATCH', body: '{}', headers: json }),
    read: await fetched('/admin/events'),
    missing: await fetched('/v1/triggers/none', { method: 'DELETE' }),
    stranger: await fetched('/admin/events', { headers: { authorization: 'Bearer none' } }),
    events: await fetched('/graphql', streamed),
    tail: await socket('/ws?after=0', []),
    live: await socket('/graphql', ['graphql-transport-ws']),
    console: await socket('/_nicegui_ws/socket.io/?EIO=4&transport=websocket', []),
  };
}
"""


def test_with_keys_pages_of_the_origins_that_are_named_use_them_and_others_cannot(
    servers: Servers, browser: Browser, elsewhere: int
) -> None:
    url, key = servers.keyed, servers.key
    with opened(browser, f"http://localhost:{elsewhere}") as page:
        assert page.evaluate(USING_A_KEY, [url, key]) == {
            "write": "200", "once": "200", "binary": "200", "change": "404", "read": "200", "missing": "404",
            "stranger": "401", "events": "200", "tail": "heard",
            "live": "heard", "console": "closed",
        }  # fmt: skip
        with_cookies = f"fetch('{url}/healthz', {{credentials: 'include'}}).catch(() => 'blocked')"
        assert page.evaluate(with_cookies) == "blocked"
    with opened(browser, f"http://127.0.0.1:{elsewhere}") as page:
        told = page.evaluate(USING_A_KEY, [url, key])
        assert set(told.values()) == {"blocked", "closed"}, told
