"""Bad input: a status and an error that names what is wrong; never a 500, never a lost neighbour."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import psycopg
import pytest
import zstandard

from tests.budgets import HANG_S
from tests.recording import until_waited_for
from tests.serving import Start
from tidelock.app import Serving

Json = dict[str, Any]
JSON = {"content-type": "application/json"}
HEAD = b"POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
async def client(server: Serving) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, headers=JSON) as opened:
        yield opened


def error_of(response: httpx.Response, status: int, code: str) -> Json:
    """The error, which must have the one shape that all have."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"]
    error: Json = body["error"]
    assert list(error) == ["code", "message", "field"]
    assert error["code"] == code
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("event", "code", "field"),
    [
        ({}, "invalid_event", "stream"),
        ({"stream": ""}, "invalid_event", "stream"),
        ({"stream": None}, "invalid_event", "stream"),
        ({"stream": "_tidelock"}, "invalid_event", "stream"),
        ({"stream": 5}, "invalid_event", "stream"),
        ({"stream": "s" * 256}, "invalid_event", "stream"),
        ({"stream": "s", "metric": "s"}, "invalid_event", "metric"),
        ({"stream": "s", "strem": "s"}, "invalid_event", "strem"),
        ({"stream": "s", "tenantId": ""}, "invalid_event", "tenantId"),
        ({"stream": "s", "tenantId": "*"}, "invalid_event", "tenantId"),
        ({"stream": "s", "customerRef": ["c"]}, "invalid_event", "customerRef"),
        ({"stream": "s", "customerRef": "\ud800"}, "invalid_event", "customerRef"),
        ({"stream": "s", "source": "a\0b"}, "invalid_event", "source"),
        ({"stream": "s", "data": {"a": ["\0"]}}, "invalid_event", "data"),
        ({"stream": "s", "data": {"\udfff": 1}}, "invalid_event", "data"),
        ({"stream": "s", "meta": "\0"}, "invalid_event", "data"),
        ({"stream": "s", "data": 1, "payload": 1}, "invalid_event", "payload"),
        ({"stream": "s", "data": {"a": "x" * 2**20}}, "payload_too_large", "data"),
        ({"stream": "s", "op": "replace"}, "invalid_event", "op"),
        ({"stream": "s", "idempotencyKey": ""}, "invalid_event", "idempotencyKey"),
        ({"stream": "s", "idempotencyKey": "k" * 1025}, "invalid_event", "idempotencyKey"),
        ({"stream": "s", "idempotencyKey": "ä" * 513}, "invalid_event", "idempotencyKey"),
        ({"stream": "s", "ts": "yesterday"}, "invalid_timestamp", "ts"),
        ({"stream": "s", "ts": "2026-02-30T00:00:00Z"}, "invalid_timestamp", "ts"),
        ({"stream": "s", "ts": "2026-01-01T00:00:00.0000000001Z"}, "invalid_timestamp", "ts"),
        ({"stream": "s", "ts": "1600-01-01T00:00:00Z"}, "invalid_timestamp", "ts"),
        ({"stream": "s", "ts": 1.5}, "invalid_timestamp", "ts"),
        ({"stream": "s", "ts": 10**40}, "invalid_timestamp", "ts"),
        ({"stream": "s", "occurredAt": True}, "invalid_timestamp", "occurredAt"),
        ({"stream": "s", "ts": "2026-01-01T00:00:00Z", "occurredAt": 1}, "invalid_event", "occurredAt"),
        ({"stream": "s", "quantity": "1.0000000001"}, "invalid_quantity", "quantity"),
        ({"stream": "s", "quantity": "1e18"}, "invalid_quantity", "quantity"),
        ({"stream": "s", "quantity": "NaN"}, "invalid_quantity", "quantity"),
        ({"stream": "s", "quantity": True}, "invalid_quantity", "quantity"),
        ({"stream": "s", "quantity": [1]}, "invalid_quantity", "quantity"),
        (7, "invalid_event", None),
        ("text", "invalid_event", None),
        (None, "invalid_event", None),
        ([], "invalid_event", None),
    ],
)
async def test_a_bad_event_is_reported_by_field_and_leaves_its_neighbours_alone(
    client: httpx.AsyncClient, tenant: str, event: object, code: str, field: str | None
) -> None:
    good = {"tenantId": tenant, "stream": "s"}
    response = await client.post("/v1/events", content=json.dumps([good, event, good]))
    assert response.status_code == 200, response.text
    first, bad, last = response.json()["results"]
    assert (first["status"], bad["status"], last["status"]) == ("accepted", "rejected", "accepted")
    assert set(bad) == {"status", "error"}
    assert (bad["error"]["code"], bad["error"]["field"]) == (code, field)
    assert bad["error"]["message"]


@pytest.mark.parametrize("deep", [b"[" * 10**6 + b"]" * 10**6, b'{"a":' * 10**6 + b"1" + b"}" * 10**6])
async def test_a_million_levels_of_data_leave_their_neighbour_alone(
    client: httpx.AsyncClient, tenant: str, deep: bytes
) -> None:
    good = json.dumps({"tenantId": tenant, "stream": "s"}).encode()
    bad = b'{"stream":"s","data":' + deep + b"}"
    for body, kind in ((b"[%s,%s]" % (bad, good), "json"), (b"%s\n%s" % (bad, good), "x-ndjson")):
        response = await client.post("/v1/events", content=body, headers={"content-type": f"application/{kind}"})
        assert [result["status"] for result in response.json()["results"]] == ["rejected", "accepted"]


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        (b"", 400, "invalid_json", None),
        (b"{", 400, "invalid_json", None),
        (b'{"events":[{"stream":"s"}', 400, "invalid_json", None),
        (b'[{"stream":"s"},]', 400, "invalid_json", None),
        (b'[{"stream":"s"}] x', 400, "invalid_json", None),
        (b'[{"stream":"\xff"}]', 400, "invalid_json", None),
        (b"[" * 10**6, 400, "invalid_json", None),
        (b"NaN", 400, "invalid_json", None),
        (b"null", 400, "invalid_request", None),
        (b'"text"', 400, "invalid_request", None),
        (b"17", 400, "invalid_request", None),
        (b'{"events":{}}', 400, "invalid_request", "events"),
        (b'{"events":[],"more":1}', 400, "invalid_request", "more"),
        (b"[" + b",".join([b"{}"] * 10_001) + b"]", 413, "payload_too_large", None),
    ],
)
async def test_a_body_that_cannot_be_read_is_refused_as_a_whole(
    client: httpx.AsyncClient, body: bytes, status: int, code: str, field: str | None
) -> None:
    error = error_of(await client.post("/v1/events", content=body), status, code)
    assert error["field"] == field


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1", "json", "é", "a/b;c=d;;"],
)
async def test_an_unknown_content_type_is_415(client: httpx.AsyncClient, content_type: str) -> None:
    headers = {b"content-type": content_type.encode()}
    error_of(await client.post("/v1/events", content=b"[]", headers=headers), 415, "unsupported_media_type")


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "é"])
async def test_an_unknown_content_encoding_is_415(client: httpx.AsyncClient, encoding: str) -> None:
    headers = {b"content-encoding": encoding.encode()}
    error_of(await client.post("/v1/events", content=b"[]", headers=headers), 415, "unsupported_media_type")


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("body", [b"", b"[]", gzip.compress(b"[]", mtime=0)[:-3], zstandard.compress(b"[]" * 99)[:-3]])
async def test_a_damaged_compressed_body_is_400(client: httpx.AsyncClient, encoding: str, body: bytes) -> None:
    response = await client.post("/v1/events", content=body, headers={"content-encoding": encoding})
    assert response.status_code == 400
    assert response.json()["error"]["message"]


@pytest.mark.parametrize("packed", [gzip.compress, zstandard.compress])
async def test_a_body_that_unpacks_to_too_much_is_413(client: httpx.AsyncClient, packed: Any) -> None:
    body = packed(b"[" + b" " * 2**25 + b"]")
    assert len(body) < 100_000
    encoding = "gzip" if packed is gzip.compress else "zstd"
    response = await client.post("/v1/events", content=body, headers={"content-encoding": encoding})
    error_of(response, 413, "payload_too_large")


async def test_a_body_over_the_limit_is_413_declared_or_not(client: httpx.AsyncClient) -> None:
    body = b" " * (2**24 + 1)

    async def chunks() -> Any:
        for start in range(0, len(body), 2**20):
            yield body[start : start + 2**20]

    error_of(await client.post("/v1/events", content=body), 413, "payload_too_large")
    error_of(await client.post("/v1/events", content=chunks()), 413, "payload_too_large")
    assert (await client.post("/v1/events", content=b"[]" + b" " * (2**24 - 2))).status_code == 200


async def test_a_declared_size_over_the_limit_is_refused_before_the_body_is_sent(server: Serving) -> None:
    answer = await raw(
        server,
        HEAD + b"content-length: 99999999999\r\n\r\n",
    )
    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_what_is_not_http_is_answered_in_the_same_form(server: Serving) -> None:
    for request in (
        b"\0\1\2\3\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"NONSENSE / HTTP/1.1\r\n\r\n",
    ):
        head, _, body = (await raw(server, request)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(body)["error"]["code"] == "invalid_request"


async def raw(server: Serving, request: bytes) -> bytes:
    """The beginning of the answer to bytes on the wire."""
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(65_536), HANG_S)
    writer.close()
    return answer


async def test_a_client_that_hangs_up_amid_its_body_harms_nobody(
    server: Serving, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(HEAD + b"content-length: 1000\r\n\r\n[{")
    await writer.drain()
    # What is answered after it was sent: the server has read it by then.
    assert (await client.get("/healthz")).status_code == 200
    writer.close()
    await writer.wait_closed()
    for _ in range(3):
        assert (await client.get("/healthz")).status_code == 200
    assert (await client.get("/healthz")).status_code == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("POST", "/v1/events/", 404, "not_found"),
        ("GET", "/docs/assets/../../../etc/passwd", 404, "not_found"),
        ("GET", "/v1/events", 405, "method_not_allowed"),
        ("DELETE", "/admin/events", 405, "method_not_allowed"),
        ("POST", "/healthz", 405, "method_not_allowed"),
        ("GET", "/ws", 426, "upgrade_required"),
    ],
)
async def test_wrong_paths_and_methods_have_the_same_form(
    client: httpx.AsyncClient, method: str, path: str, status: int, code: str
) -> None:
    response = await client.request(method, path)
    error_of(response, status, code)


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/events", "OPTIONS, POST"), ("/admin/events", "GET, HEAD, OPTIONS"),
        ("/v1/triggers", "GET, HEAD, OPTIONS, POST"), ("/v1/triggers/t", "DELETE, GET, HEAD, OPTIONS, PATCH"),
        ("/v1/triggers/t/deliveries", "GET, HEAD, OPTIONS"), ("/admin/verify", "DELETE, GET, HEAD, OPTIONS, POST"),
        ("/graphql", "GET, OPTIONS, POST"), ("/v1/causality/a/b", "GET, HEAD, OPTIONS"),
        ("/ws", "GET, HEAD, OPTIONS"), ("/docs", "GET, HEAD, OPTIONS"), ("/openapi.json", "GET, HEAD, OPTIONS"),
        ("/docs/assets/swagger-ui.css", "GET, HEAD, OPTIONS"),
        ("/", "GET, HEAD, OPTIONS"), ("/healthz", "GET, HEAD, OPTIONS"),
    ],
)  # fmt: skip
async def test_a_path_names_every_method_it_takes(client: httpx.AsyncClient, path: str, methods: str) -> None:
    refused = await client.put(path)
    error_of(refused, 405, "method_not_allowed")
    asked = await client.options(path)
    assert (asked.status_code, asked.content) == (204, b"")
    assert refused.headers["allow"] == asked.headers["allow"] == methods


@pytest.mark.parametrize("path", ["/admin/events?limit=1", "/v1/counters", "/metrics", "/admin/events?limit=no"])
async def test_head_is_what_get_answers_without_its_body(client: httpx.AsyncClient, path: str) -> None:
    got, headed = await client.get(path), await client.head(path)
    assert (headed.status_code, headed.content) == (got.status_code, b"")
    assert headed.headers["content-type"] == got.headers["content-type"]


async def test_a_path_that_is_none_has_no_methods(client: httpx.AsyncClient) -> None:
    error_of(await client.options("/v1/nothing"), 404, "not_found")


async def test_a_full_queue_is_429_with_retry_after_and_what_waits_is_still_recorded(start: Start) -> None:
    async with (
        start(queue_events_max=5, retry_after_s=7) as server,
        httpx.AsyncClient(base_url=server.url, headers=JSON) as client,
        await psycopg.AsyncConnection.connect(server.ledger.database.url) as holder,
    ):
        await holder.execute("SELECT 1 FROM ledger_head FOR UPDATE")
        body = json.dumps([{"stream": "s"}] * 5)
        waiting = []
        # The first is under way, the second fills the queue.
        waiting.append(asyncio.create_task(client.post("/v1/events", content=body)))
        await until_waited_for(server.ledger.database)
        waiting.append(asyncio.create_task(client.post("/v1/events", content=body)))
        async with asyncio.timeout(HANG_S):
            while server.ledger.sequencer.queued_events < 5:  # noqa: ASYNC110  (nobody tells)
                await asyncio.sleep(0.005)
        refused = await client.post("/v1/events", content=body)
        error_of(refused, 429, "overloaded")
        assert refused.headers["retry-after"] == "7"
        await holder.rollback()
        assert [(await answer).json()["accepted"] for answer in waiting] == [5, 5]


async def test_the_unexpected_is_a_500_of_the_same_form_with_its_trace_in_the_log(
    server: Serving, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by design of this test")

    monkeypatch.setattr(type(server.ledger.intake), "take", fail)
    error = error_of(await client.post("/v1/events", content=b"[]"), 500, "internal_error")
    assert "by design" not in error["message"]
    traced = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert list(map(repr, traced)) == ["ZeroDivisionError('by design of this test')"]
