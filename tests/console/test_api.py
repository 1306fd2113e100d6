"""The API as pages call it: with the key of the session as it is now, and never without an end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from tidelock.console import api as calling
from tidelock.console.api import Api, ApiError
from tidelock.console.pages.subscriptions import SubscriptionTap
from tidelock.console.site import Sessions

UPDATE = (
    b'event: next\ndata: {"data": {"t": {"operation": "insert", "fields": [], "ts_timestamp": "1", "data": {}}}}\n\n'
)


async def answer(send: Send, body: bytes, *, more: bool = False) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def key_told(scope: Scope, _: Receive, send: Send) -> None:
    """Answers with the key that it was asked with."""
    await answer(send, b'"' + dict(scope["headers"]).get(b"authorization", b"none") + b'"')


async def endless(_: Scope, __: Receive, send: Send) -> None:
    """Says one thing, and then nothing for ever."""
    await answer(send, UPDATE, more=True)
    await asyncio.Event().wait()


async def until(done: Callable[[], Any]) -> None:
    for _ in range(1000):
        if done():
            return
        await asyncio.sleep(0.01)
    pytest.fail("not within ten seconds")


@pytest.fixture
def sessions() -> Sessions:
    return Sessions(sessions_max=2, lifetime_s=60)


async def test_a_client_that_has_signed_out_asks_without_a_key(sessions: Sessions) -> None:
    token = sessions.open("k")
    api = Api(key_told, lambda: sessions.key(token, renew=False))
    assert await api.get("/") == "Bearer k"
    sessions.close(token)
    assert await api.get("/") == "none"


async def test_a_subscription_of_who_signs_out_ends_though_nothing_comes(sessions: Sessions) -> None:
    token = sessions.open("k")
    listening = SubscriptionTap(Api(endless, lambda: sessions.key(token, renew=False)))
    listening.start("subscription { t { operation } }", "t")
    await until(lambda: listening.counts)
    assert listening.active
    sessions.close(token)
    await until(lambda: not listening.active)
    assert listening.trouble == "you have signed out"


async def test_a_page_waits_for_an_answer_so_long_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "_TIMEOUT_S", 0.05)
    with pytest.raises(ApiError, match="did not respond") as refused:
        await Api(endless, lambda: None).get("/")
    assert refused.value.status == 503


def test_a_page_that_asks_again_keeps_no_session_alive(monkeypatch: pytest.MonkeyPatch, sessions: Sessions) -> None:
    now: Any = [0.0]
    monkeypatch.setattr("tidelock.console.site.time.monotonic", lambda: now[0])
    token = sessions.open("k")
    now[0] = 50.0
    assert sessions.key(token, renew=False) == "k"
    now[0] = 61.0
    assert sessions.key(token, renew=False) is None
