"""graphql-transport-ws: who keeps to the protocol is served, who does not hears its own close code."""

from __future__ import annotations

import json

import pytest

from tests.graphql.sockets import connected, opened
from tests.serving import Start
from tidelock.app import Serving

QUERY = "{ counters { metric } }"
FOLLOW = "subscription { counters { operation } }"


@pytest.mark.parametrize("protocols", [(), ("graphql-ws",), ("mqtt", "soap")], ids=str)
async def test_another_sub_protocol_is_not_acceptable(server: Serving, protocols: tuple[str, ...]) -> None:
    async with opened(server.url, protocols=protocols) as socket:
        code, reason = await socket.closing()
        assert code == 4406
        assert "graphql-transport-ws" in str(reason)


async def test_the_sub_protocol_is_chosen_among_others(server: Serving) -> None:
    async with opened(server.url, protocols=("graphql-ws", "graphql-transport-ws")) as socket:
        assert socket.connection.subprotocol == "graphql-transport-ws"
        await socket.init()


async def test_a_client_that_does_not_introduce_itself_is_sent_away(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelock.graphql.websocket._INIT_S", 0.3)
    async with opened(server.url) as socket:
        await socket.say("ping")
        assert await socket.hear() == {"type": "pong"}
        assert (await socket.closing())[0] == 4408


async def test_a_client_that_subscribes_before_it_was_let_in_is_sent_away(server: Serving) -> None:
    async with opened(server.url) as socket:
        await socket.subscribe(QUERY)
        assert (await socket.closing())[0] == 4401


async def test_one_introduction_is_enough(server: Serving) -> None:
    async with connected(server.url) as socket:
        await socket.say("connection_init")
        assert (await socket.closing())[0] == 4429


async def test_pings_are_answered(server: Serving) -> None:
    async with connected(server.url) as socket:
        await socket.say("ping", payload={"any": ["thing", "ü"]})
        assert await socket.hear() == {"type": "pong", "payload": {"any": ["thing", "ü"]}}
        await socket.say("ping", payload=None)
        assert await socket.hear() == {"type": "pong"}
        await socket.say("pong")
        assert await socket.silent()


async def test_a_client_that_hears_nothing_is_pinged(start: Start) -> None:
    async with start(live_keep_alive=200_000_000) as server, connected(server.url) as socket:
        for _ in range(3):
            assert json.loads(await socket.connection.recv()) == {"type": "ping"}


async def test_a_query_is_one_next_and_complete(server: Serving) -> None:
    async with connected(server.url) as socket:
        for name in ("a", "b", "a"):
            await socket.subscribe(QUERY, name)
            assert await socket.next(name) == {"counters": []}
            assert await socket.hear() == {"id": name, "type": "complete"}


async def test_an_id_is_taken_until_its_operation_is_complete(server: Serving) -> None:
    async with connected(server.url) as socket:
        await socket.subscribe(FOLLOW, "a")
        await socket.say("complete", id="a")
        await socket.say("complete", id="never heard of")
        await socket.subscribe(FOLLOW, "a")
        await socket.subscribe(FOLLOW, "a")
        assert await socket.closing() == (4409, "Subscriber for a already exists")


@pytest.mark.parametrize(
    "message",
    [
        "", "hello", "[]", "null", "{}", b"{}", '{"type":5}', '{"type":"start"}', '{"type":"connection_ack"}',
        '{"type":"subscribe"}', '{"type":"subscribe","id":"1"}',
        '{"type":"subscribe","id":1,"payload":{"query":"{x}"}}',
        '{"type":"subscribe","id":"","payload":{"query":"{x}"}}', '{"type":"subscribe","id":"1","payload":[]}',
        '{"type":"subscribe","id":"1","payload":{}}', '{"type":"subscribe","id":"1","payload":{"query":5}}',
        '{"type":"subscribe","id":"1","payload":{"query":"{x}","variables":[]}}',
        json.dumps({"type": "subscribe", "id": "i" * 256, "payload": {"query": "{x}"}}),
        '{"type":"ping","payload":5}', '{"type":"ping","payload":[]}', '{"type":"pong","payload":"text"}',
        '{"type":"complete"}', "[" * 100_000, '{"type":"ping","payload":' + "[" * 100_000,
    ],
    ids=lambda message: str(message)[:60],
)  # fmt: skip
async def test_a_message_that_is_none_of_the_protocol_is_the_end(server: Serving, message: str | bytes) -> None:
    async with connected(server.url) as neighbour, connected(server.url) as socket:
        await socket.connection.send(message)
        code, reason = await socket.closing()
        assert code == 4400
        assert str(reason).startswith("Invalid message")
        await neighbour.subscribe(QUERY)
        assert await neighbour.next() == {"counters": []}


async def test_a_frame_that_is_too_large_is_the_end(server: Serving) -> None:
    async with connected(server.url) as neighbour, connected(server.url) as socket:
        await socket.connection.send(" " * (2**20 + 1))
        assert (await socket.closing())[0] == 1009
        await neighbour.subscribe(QUERY)
        assert await neighbour.next() == {"counters": []}
