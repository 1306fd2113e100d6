"""GraphQL over HTTP: queries of tables, the statuses and media types of its specification, and errors in its form."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import psycopg
import pytest

from tests.fold import folded
from tests.http.test_access import bearer, make_key
from tests.serving import Start
from tidelock.app import Serving
from tidelock.definitions import parse_definitions

Json = dict[str, Any]

JSON = "application/json"
RESPONSE = "application/graphql-response+json"
QUERY = "{ error_rows { ingress_sequence code } }"
KINDS = parse_definitions({"streams": {"kinds": {"key": "id", "columns": {"id": "bigint", "n": "decimal(18,4)"}}}})


@pytest.fixture(scope="module")
async def server(start: Start) -> AsyncIterator[Serving]:
    async with start(definitions=KINDS, graphql_document_bytes_max=4_096) as serving:
        yield serving


@pytest.fixture(scope="module")
async def connection(server: Serving) -> AsyncIterator[folded.Connection]:
    async with await server.ledger.database.connect() as opened:
        await folded.error_row(opened, "default", "s", 5, "invalid_column")
        yield opened


async def post(client: httpx.AsyncClient, query: str, accept: str = RESPONSE, **sent: Any) -> httpx.Response:
    return await client.post("/graphql", json={"query": query, **sent}, headers={"accept": accept})


def errors_of(response: httpx.Response, status: int, code: str) -> list[Json]:
    """The errors, in the one form that GraphQL has for them, without insides of the server.

    Where the answer is no success, in JSON, it has the form of all other paths too.
    """
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith((JSON, RESPONSE))
    body = response.json()
    if status != 200 and response.headers["content-type"].startswith(JSON):
        error = body.pop("error")
        assert list(error) == ["code", "message", "field"]
        assert (error["code"], error["message"]) == (code, body["errors"][0]["message"])
    assert list(body) == ["errors"]
    for error in body["errors"]:
        assert error["message"]
        assert set(error) <= {"message", "locations", "extensions"}
        assert error["extensions"]["code"] == code
    assert "Traceback" not in response.text
    assert ".py" not in response.text
    errors: list[Json] = body["errors"]
    return errors


@pytest.mark.usefixtures("connection")
@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        (None, JSON), ("", JSON), ("*/*", JSON), ("application/*", JSON), (JSON, JSON), (RESPONSE, RESPONSE),
        (f"{RESPONSE}, {JSON};q=0.9", RESPONSE), (f"{JSON};q=0.5, {RESPONSE};q=0.1", JSON),
        (f"{RESPONSE}; charset=utf-8", RESPONSE), ("text/html, */*;q=0.1", JSON),
        (f"{RESPONSE}, {JSON}, text/event-stream, multipart/mixed", RESPONSE), (f"{JSON}, {RESPONSE}", JSON),
        (f"{JSON};q=0, {RESPONSE.upper()}", RESPONSE), (f"{JSON}, text/event-stream", JSON),
    ],
)  # fmt: skip
async def test_a_query_is_answered_in_the_form_that_is_liked_best(
    client: httpx.AsyncClient, accept: str | None, media_type: str
) -> None:
    request = client.build_request("POST", "/graphql", json={"query": QUERY})
    request.headers.pop("accept")
    if accept is not None:
        request.headers["accept"] = accept
    response = await client.send(request)
    assert response.status_code == 200
    assert response.headers["content-type"] == media_type
    assert response.text == '{"data":{"error_rows":[{"ingress_sequence":"5","code":"invalid_column"}]}}'


@pytest.mark.parametrize("accept", ["text/html", f"{JSON};q=0", "image/*, text/plain", "nonsense", ";;,,q="])
async def test_a_form_that_there_is_not_is_not_acceptable(client: httpx.AsyncClient, accept: str) -> None:
    errors_of(await post(client, QUERY, accept), 406, "not_acceptable")


@pytest.mark.usefixtures("connection")
async def test_a_query_may_be_in_the_url(client: httpx.AsyncClient) -> None:
    query = "query A($w: error_rows_bool_exp) { error_rows(where: $w) { code } } query B { __typename }"
    where = json.dumps({"w": {"ingress_sequence": {"_eq": 5}}})
    parameters = {"query": query, "operationName": "A", "variables": where, "extensions": "{}", "other": "ignored"}
    response = await client.get("/graphql", params=parameters)
    assert response.json() == {"data": {"error_rows": [{"code": "invalid_column"}]}}
    response = await client.get("/graphql", params={"query": "{ __typename }", "variables": "", "operationName": ""})
    assert response.json() == {"data": {"__typename": "Query"}}


@pytest.mark.parametrize(
    ("url", "status", "code"),
    [
        ("", 400, "invalid_request"), ("query=a&query=b", 400, "invalid_request"),
        ("query={__typename}&variables={", 400, "invalid_json"),
        ("query={__typename}&variables=[]", 400, "invalid_request"),
        ('query={__typename}&variables={"a":' + "[" * 3_000, 400, "invalid_json"),
        ("query=%FF", 400, "parse_failed"), ("query=%00", 400, "parse_failed"), ("query=", 400, "parse_failed"),
        ("query={x}", 400, "validation_failed"), ("query=mutation{x}", 400, "validation_failed"),
        ("query={__typename}&operationName=A", 400, "validation_failed"),
        ("query=subscription{counters{operation}}", 406, "not_acceptable"),
    ],
)  # fmt: skip
async def test_what_is_wrong_with_a_url_is_reported(
    client: httpx.AsyncClient, url: str, status: int, code: str
) -> None:
    errors_of(await client.get(f"/graphql?{url}", headers={"accept": RESPONSE}), status, code)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"), (b"{", "invalid_json"), (b"\xff", "invalid_json"), (b"null", "invalid_request"),
        (b"[]", "invalid_request"), (b"{}", "invalid_request"), (b'{"query": 5}', "invalid_request"),
        (b'[{"query": "{ __typename }"}]', "invalid_request"), (b'{"query": "\\ud800"}', "invalid_json"),
        (b'{"query": "{ __typename }", "variables": []}', "invalid_request"),
        (b'{"query": "{ __typename }", "variables": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}", "invalid_json"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("accept", [JSON, RESPONSE])
async def test_a_body_that_is_not_a_request_is_400_whatever_is_accepted(
    client: httpx.AsyncClient, accept: str, body: bytes, code: str
) -> None:
    headers = {"content-type": JSON, "accept": accept}
    response = await client.post("/graphql", content=body, headers=headers)
    errors_of(response, 400, code)
    assert response.headers["content-type"] == accept


@pytest.mark.parametrize(
    ("query", "variables", "code"),
    [
        ("", {}, "parse_failed"),
        ("{", {}, "parse_failed"),
        ("{a" * 1_000, {}, "parse_failed"),
        ("{ nothing }", {}, "validation_failed"),
        ("{ counters { nothing } }", {}, "validation_failed"),
        ("{ counters { ts_timestamp } }", {}, "validation_failed"),
        ('{ counters(where: {ts_timestamp: {_gt: "1"}}) { value } }', {}, "validation_failed"),
        ("{ counters(where: {metric: {_eq: 5}}) { value } }", {}, "validation_failed"),
        ("mutation { x }", {}, "validation_failed"),
        ("{ counters(where: {agg_count: {_eq: null}}) { value } }", {}, "invalid_definition"),
        ('{ counters(where: {agg_count: {_eq: "x"}}) { value } }', {}, "invalid_definition"),
        ("query($w: counters_bool_exp) { counters(where: $w) { value } }", {"w": {"x": {}}}, "invalid_variables"),
        ("query($w: counters_bool_exp) { counters(where: $w) { value } }", {"w": {"value": {"_eq": "x"}}},
         "invalid_definition"),
        ("{ counters(limit: 10001) { value } }", {}, "limit_exceeded"),
        ("{ counters(offset: -1) { value } }", {}, "invalid_argument"),
        ("{ counters { value } } #" + "x" * 5_000, {}, "limit_exceeded"),
        ("query A { __typename } query B { __typename }", {}, "validation_failed"),
    ],
)  # fmt: skip
async def test_what_cannot_be_executed_is_reported_by_status_or_by_body_alone(
    client: httpx.AsyncClient, query: str, variables: Json, code: str
) -> None:
    errors_of(await post(client, query, RESPONSE, variables=variables), 400, code)
    errors_of(await post(client, query, JSON, variables=variables), 200, code)


@pytest.mark.parametrize("depth", [65, 190, 500, 10_000])
async def test_filters_of_any_depth_are_refused(client: httpx.AsyncClient, depth: int) -> None:
    query = "query($w: kinds_bool_exp) { kinds(where: $w) { id } }"
    where = '{"_not":' * depth + "{}" + "}" * depth
    body = '{"query": "%s", "variables": {"w": %s}}' % (query, where)  # noqa: UP031
    headers = {"content-type": JSON, "accept": RESPONSE}
    response = await client.post("/graphql", content=body, headers=headers)
    assert response.status_code == 400
    (error,) = response.json()["errors"]
    assert error["extensions"]["code"] in ("invalid_definition", "invalid_variables", "invalid_json")
    assert "too deep" in error["message"]


@pytest.mark.parametrize("accept", [JSON, RESPONSE, "*/*", ""])
async def test_a_subscription_is_not_for_a_plain_post(client: httpx.AsyncClient, accept: str) -> None:
    (error,) = errors_of(await post(client, "subscription { counters { operation } }", accept), 406, "not_acceptable")
    assert "graphql-transport-ws" in error["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {}, {"content-type": "text/plain"}, {"content-type": "application/graphql"}, {"content-type": "application/x"},
        {"content-type": f"{JSON}; charset=utf-16"}, {"content-type": JSON, "content-encoding": "gzip"},
        {"content-type": "application/x-www-form-urlencoded"}, {"content-type": ";"},
    ],
)  # fmt: skip
async def test_another_content_type_is_415(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    body = json.dumps({"query": QUERY})
    errors_of(await client.post("/graphql", content=body, headers=headers), 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "content_type", [f"{JSON}; charset=utf-8", f"{JSON};charset=UTF-8", JSON.upper(), f'{JSON}; charset="utf-8"; x=1']
)
async def test_utf_8_may_be_said(client: httpx.AsyncClient, content_type: str) -> None:
    headers = {"content-type": content_type}
    response = await client.post("/graphql", content=json.dumps({"query": "{ __typename }"}), headers=headers)
    assert response.json() == {"data": {"__typename": "Query"}}


async def test_a_body_has_a_largest_size(client: httpx.AsyncClient) -> None:
    body = b'{"query": "{ __typename }"' + b" " * 2**21 + b"}"
    for content in (body, _chunks(body)):
        response = await client.post("/graphql", content=content, headers={"content-type": JSON})
        errors_of(response, 413, "payload_too_large")
    smaller = body.replace(b" " * 2**20, b"", 1)
    assert (await client.post("/graphql", content=smaller, headers={"content-type": JSON})).status_code == 200


async def _chunks(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 2**16):
        yield body[start : start + 2**16]


async def test_other_methods_are_405(client: httpx.AsyncClient) -> None:
    for method in ("PUT", "DELETE", "PATCH"):
        response = await client.request(method, "/graphql")
        assert response.status_code == 405


async def test_a_client_that_hangs_up_leaves_no_trace(
    client: httpx.AsyncClient, server: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /graphql HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                 b"content-length: 1000\r\n\r\n{")  # fmt: skip
    await writer.drain()
    # What is answered after it was sent: the server has read it by then.
    assert (await post(client, "{ __typename }")).status_code == 200
    with caplog.at_level(logging.WARNING):
        writer.close()
        await writer.wait_closed()
        for _ in range(3):
            assert (await post(client, "{ __typename }")).status_code == 200
    assert not caplog.records


@pytest.mark.usefixtures("connection")
async def test_numbers_are_exact_both_ways(client: httpx.AsyncClient, server: Serving) -> None:
    async with await server.ledger.database.connect() as connection:
        tables = await folded.define(connection, KINDS)
        await folded.create(connection, tables["kinds"])
        for number in (2**53, 2**53 + 1):
            row = {"id": number, "n": "12345678901234.5678"}
            await folded.put(connection, tables["kinds"], "default", str(number), row)
    query = "query($id: bigint, $n: numeric) { kinds(where: {id: {_gte: $id}, n: {_eq: $n}}) { id n } }"
    for sent in (
        b'{"id": 9007199254740993, "n": 12345678901234.5678}', b'{"id": "9007199254740993", "n": "12345678901234.5678"}'
    ):  # fmt: skip
        body = b'{"query": %b, "variables": %b}' % (json.dumps(query).encode(), sent)
        response = await client.post("/graphql", content=body, headers={"content-type": JSON})
        assert response.text == '{"data":{"kinds":[{"id":"9007199254740993","n":"12345678901234.5678"}]}}'


async def test_a_key_reads_its_own_tenant_by_every_way(start: Start) -> None:
    async with start(key_cache_s=0) as serving, httpx.AsyncClient(base_url=serving.url) as client:
        async with await serving.ledger.database.connect() as connection:
            for tenant in ("a", "b", "default"):
                await folded.error_row(connection, tenant, "s", 1, tenant)
        own = await make_key(serving, "a", ["read"])
        every = await make_key(serving, "*", ["read"])
        writes = await make_key(serving, "a", ["ingest"])

        async def asked(key: str, query: str) -> Any:
            response = await client.post("/graphql", json={"query": query}, headers=bearer(key))
            return response.json()["data"]

        listed = "{ error_rows { tenant_id code } }"
        assert await asked(own, listed) == {"error_rows": [{"tenant_id": "a", "code": "a"}]}
        assert len((await asked(every, listed))["error_rows"]) == 3
        assert await asked(own, '{ error_rows(where: {tenant_id: {_eq: "b"}}) { code } }') == {"error_rows": []}
        one = '{ error_rows_by_pk(source: "s", ingress_sequence: 1 %s) { code } }'
        for key, tenant, found in (
            (own, "", "a"), (own, ', tenant_id: "a"', "a"), (own, ', tenant_id: "b"', None),
            (every, "", "default"), (every, ', tenant_id: "b"', "b"),
        ):  # fmt: skip
            row = (await asked(key, one % tenant))["error_rows_by_pk"]
            assert row == (None if found is None else {"code": found})
        refused = await client.post("/graphql", json={"query": listed})
        errors_of(refused, 401, "unauthorized")
        assert refused.headers["www-authenticate"].startswith("Bearer")
        errors_of(await client.post("/graphql", json={"query": listed}, headers=bearer(writes)), 403, "forbidden")
        errors_of(await client.get("/graphql", params={"query": listed}), 401, "unauthorized")


async def test_a_web_page_from_elsewhere_reads_nothing(client: httpx.AsyncClient) -> None:
    headers = {"origin": "https://evil.example"}
    errors_of(await client.post("/graphql", json={"query": QUERY}, headers=headers), 403, "forbidden")


async def test_a_database_that_is_away_is_503_with_retry_after(start: Start) -> None:
    async with start() as serving, httpx.AsyncClient(base_url=serving.url) as client:
        assert (await post(client, QUERY)).status_code == 200
        url = serving.ledger.settings.database_url
        assert url is not None
        base, _, name = url.rpartition("/")
        with psycopg.connect(f"{base}/postgres", autocommit=True) as administrator:
            administrator.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            administrator.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
            response = await post(client, QUERY)
            administrator.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        errors_of(response, 503, "unavailable")
        assert response.headers["retry-after"]


async def test_clients_that_send_a_hash_are_asked_to_send_the_document(client: httpx.AsyncClient) -> None:
    """As Apollo's and urql's do, which look for this code or this message."""
    extensions = {"persistedQuery": {"version": 1, "sha256Hash": "ecf4"}}
    for answer in (
        await client.post("/graphql", json={"operationName": "All", "extensions": extensions}),
        await client.get("/graphql", params={"operationName": "All", "extensions": json.dumps(extensions)}),
    ):
        (error,) = answer.json()["errors"]
        assert (answer.status_code, error["message"]) == (200, "PersistedQueryNotSupported")
        assert error["extensions"]["code"] == "PERSISTED_QUERY_NOT_SUPPORTED"
    for text in ("{", "[]", "{}", "5"):
        assert (await client.get("/graphql", params={"extensions": text})).status_code == 400
