"""API keys: who may do what, to which tenant; and who may not even listen."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import websockets

from tests.budgets import HANG_S
from tests.serving import Start
from tidelock.app import Serving
from tidelock.errors import SettingsError
from tidelock.http.access import check_binding
from tidelock.ledger.apikeys import KeyNews, create_key, list_keys, revoke_key

EVENT = {"stream": "s"}


@pytest.fixture(scope="module")
async def server(start: Start) -> AsyncIterator[Serving]:
    """A server that has keys, and forgets them at once."""
    async with start(key_cache_s=0) as serving:
        await make_key(serving, "nobody", ["triggers"])
        yield serving


async def make_key(server: Serving, tenant: str, scopes: list[str], **options: Any) -> str:
    async with await server.ledger.database.connect() as connection:
        return (await create_key(connection, tenant, scopes, **options))[1]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Basic dXNlcjpwYXNz",
        "tdl_nothing",
        "Bearer tdl_nothing",
        "Bearer \xff",
        "Bearer a b",
    ],
)
async def test_a_request_without_a_known_key_is_401(client: httpx.AsyncClient, authorization: str | None) -> None:
    headers = {} if authorization is None else {b"authorization": authorization.encode("latin-1")}
    for method, path in (("POST", "/v1/events"), ("GET", "/admin/events"), ("GET", "/v1/causality/k"),
                         ("GET", "/admin/event-health"), ("GET", "/metrics"), ("GET", "/v1/usage"),
                         ("GET", "/v1/counters"), ("GET", "/v1/tables/counters")):  # fmt: skip
        response = await client.request(method, path, headers=headers)
        assert response.status_code == 401, path
        assert response.json()["error"]["code"] == "unauthorized"
        assert response.headers["www-authenticate"].startswith("Bearer")


async def test_health_and_docs_need_no_key(client: httpx.AsyncClient) -> None:
    for path in ("/healthz", "/readyz", "/docs", "/openapi.json"):
        assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [("ingest", {"/v1/events"}), ("read", {"/admin/events", "/v1/causality/k", "/admin/event-health"}),
     ("admin", {"/admin/events", "/v1/causality/k", "/admin/event-health"}), ("triggers", set())],
)  # fmt: skip
async def test_a_scope_opens_what_it_says_and_the_refusal_names_the_one_needed(
    server: Serving, client: httpx.AsyncClient, tenant: str, scope: str, allowed: set[str]
) -> None:
    key = await make_key(server, tenant, [scope])
    for path in ("/v1/events", "/admin/events", "/v1/causality/k", "/admin/event-health"):
        method = "POST" if path == "/v1/events" else "GET"
        response = await client.request(method, path, headers=bearer(key), json=[] if method == "POST" else None)
        assert response.status_code == (200 if path in allowed else 403), path
        if path not in allowed:
            needed = "ingest" if path == "/v1/events" else "read"
            assert response.json()["error"]["message"].endswith(f"scope {needed}")


async def test_a_tenants_key_writes_that_tenant_only(server: Serving, client: httpx.AsyncClient, tenant: str) -> None:
    key = await make_key(server, tenant, ["ingest", "read"])
    events = [EVENT, {**EVENT, "tenantId": tenant}, {**EVENT, "tenantId": "other"}]
    results = (await client.post("/v1/events", json=events, headers=bearer(key))).json()["results"]
    assert [result["status"] for result in results] == ["accepted", "accepted", "rejected"]
    assert results[2]["error"]["code"] == "tenant_mismatch"
    assert results[2]["error"]["field"] == "tenantId"


async def test_a_keys_streams_are_the_only_ones_it_writes(
    server: Serving, client: httpx.AsyncClient, tenant: str
) -> None:
    key = await make_key(server, tenant, ["ingest"], streams=["a", "b"])
    events = [{"stream": "a"}, {"stream": "c"}, {"metric": "b"}]
    results = (await client.post("/v1/events", json=events, headers=bearer(key))).json()["results"]
    assert [result["status"] for result in results] == ["accepted", "rejected", "accepted"]
    assert results[1]["error"]["code"] == "key_not_allowed"


async def test_a_tenants_key_reads_that_tenant_only(server: Serving, client: httpx.AsyncClient, tenant: str) -> None:
    other = f"{tenant}-other"
    for name in (tenant, other):
        key = await make_key(server, name, ["ingest"])
        event = {**EVENT, "causalityKey": "k", "idempotencyKey": "cause", "causationId": "cause"}
        await client.post("/v1/events", json=event, headers=bearer(key))
    key = await make_key(server, tenant, ["read"])
    for path in ("/admin/events", "/v1/causality/k"):
        items = (await client.get(path, headers=bearer(key))).json()["items"]
        assert [item["tenantId"] for item in items] == [tenant]
        named = await client.get(path, headers=bearer(key), params={"tenantId": tenant})
        assert named.json()["items"] == items
        refused = await client.get(path, headers=bearer(key), params={"tenantId": other})
        assert refused.status_code == 403
        assert refused.json()["error"]["field"] == "tenantId"


async def test_a_key_of_every_tenant_reads_all_or_the_one_it_asks_for(
    server: Serving, client: httpx.AsyncClient, tenant: str
) -> None:
    key = await make_key(server, "*", ["ingest", "read"])
    await client.post("/v1/events", json=[{**EVENT, "tenantId": tenant}, EVENT], headers=bearer(key))
    one = (await client.get("/admin/events", headers=bearer(key), params={"tenantId": tenant})).json()["items"]
    assert [item["tenantId"] for item in one] == [tenant]
    everybody = (await client.get("/admin/events", headers=bearer(key), params={"limit": 1000})).json()["items"]
    assert {tenant, "default"} <= {item["tenantId"] for item in everybody}


async def test_metrics_are_for_readers_of_every_tenant(server: Serving, client: httpx.AsyncClient, tenant: str) -> None:
    own, every = await make_key(server, tenant, ["admin"]), await make_key(server, "*", ["read"])
    assert (await client.get("/metrics", headers=bearer(own))).status_code == 403
    assert (await client.get("/metrics", headers=bearer(every))).status_code == 200


async def test_a_revoked_key_opens_nothing_and_ends_its_live_tail(
    server: Serving, client: httpx.AsyncClient, tenant: str
) -> None:
    key = await make_key(server, tenant, ["read"], label="to be revoked")
    async with (
        websockets.connect(server.url.replace("http", "ws") + "/ws", additional_headers=bearer(key)) as tail,
        await server.ledger.database.connect() as connection,
    ):
        (made,) = [each for each in await list_keys(connection) if each.tenant_id == tenant]
        assert made.label == "to be revoked"
        assert made.revoked_at is None
        assert await revoke_key(connection, made.id)
        assert not await revoke_key(connection, made.id)
        assert not await revoke_key(connection, "key_unknown")
        assert (await client.get("/admin/events", headers=bearer(key))).status_code == 401
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await asyncio.wait_for(tail.recv(), HANG_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4401


@pytest.mark.parametrize(
    ("key_scopes", "query", "status"), [([], "", 401), (["ingest"], "", 403), (["read"], "?tenantId=other", 403)]
)
async def test_the_live_tail_asks_for_the_same_keys(
    server: Serving, tenant: str, key_scopes: list[str], query: str, status: int
) -> None:
    headers = bearer(await make_key(server, tenant, key_scopes) if key_scopes else "tdl_unknown")
    url = server.url.replace("http", "ws") + "/ws" + query
    with pytest.raises(websockets.InvalidStatus) as refused:
        await websockets.connect(url, additional_headers=headers)
    assert refused.value.response.status_code == status
    assert b'"error"' in (refused.value.response.body or b"")


async def test_a_tenants_key_follows_that_tenant_only(server: Serving, client: httpx.AsyncClient, tenant: str) -> None:
    own = await make_key(server, tenant, ["ingest", "read"])
    other = await make_key(server, f"{tenant}-other", ["ingest"])
    url = server.url.replace("http", "ws") + "/ws?after=0"
    async with websockets.connect(url, additional_headers=bearer(own)) as tail:
        for key in (other, own, other, own):
            await client.post("/v1/events", json=EVENT, headers=bearer(key))
        seen = [json.loads(await asyncio.wait_for(tail.recv(), HANG_S)) for _ in range(2)]
        assert [event["tenantId"] for event in seen] == [tenant, tenant]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(tail.recv(), 0.2)


async def test_the_first_key_ever_made_closes_the_door_and_revoking_it_does_not_open_it_again(start: Start) -> None:
    async with start(key_cache_s=0) as server, httpx.AsyncClient(base_url=server.url) as client:
        assert (await client.get("/admin/events")).status_code == 200
        await make_key(server, "t", ["read"])
        assert (await client.get("/admin/events")).status_code == 401
        async with await server.ledger.database.connect() as connection:
            (made,) = await list_keys(connection)
            await revoke_key(connection, made.id)
        assert (await client.get("/admin/events")).status_code == 401


async def until_401(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    """Long before anything that is remembered for an hour would be forgotten."""
    async with asyncio.timeout(HANG_S):
        while (await client.post("/v1/events", json=[], headers=headers)).status_code != 401:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def revoke_all(server: Serving) -> None:
    async with await server.ledger.database.connect() as connection:
        for key in await list_keys(connection):
            await revoke_key(connection, key.id)


@pytest.fixture
def news(monkeypatch: pytest.MonkeyPatch) -> list[KeyNews]:
    """What hears of keys, of every server of this test."""
    made: list[KeyNews] = []
    usual = KeyNews.__init__

    def making(self: KeyNews, *given: Any) -> None:
        usual(self, *given)
        made.append(self)

    monkeypatch.setattr(KeyNews, "__init__", making)
    return made


async def until_heard(news: list[KeyNews], live: bool = True) -> None:
    async with asyncio.timeout(HANG_S):
        while {each.live for each in news} != {live}:  # noqa: ASYNC110  (nobody tells)
            await asyncio.sleep(0.005)


async def test_a_key_that_is_made_or_revoked_is_heard_of_at_once_by_every_server(
    start: Start, news: list[KeyNews]
) -> None:
    async with (
        start(key_cache_s=3600) as one,
        start(key_cache_s=3600, database_url=one.ledger.database.url) as other,
        httpx.AsyncClient(base_url=one.url) as here,
        httpx.AsyncClient(base_url=other.url) as there,
    ):
        await until_heard(news)
        for client in (here, there):
            for _ in range(2):
                assert (await client.post("/v1/events", json=EVENT)).status_code == 200
        key = await make_key(one, "t", ["ingest", "read"])
        for client in (here, there):
            assert (await client.get("/admin/events")).status_code == 401
            await until_401(client, {})
            assert (await client.post("/v1/events", json=EVENT, headers=bearer(key))).status_code == 200
        await revoke_all(one)
        for client in (here, there):
            await until_401(client, bearer(key))


@pytest.mark.usefixtures("_deaf")
async def test_that_there_are_no_keys_is_not_believed_by_a_server_that_does_not_hear_of_them(start: Start) -> None:
    async with start(key_cache_s=3600) as server, httpx.AsyncClient(base_url=server.url) as client:
        assert (await client.post("/v1/events", json=EVENT)).status_code == 200
        key = await make_key(server, "t", ["ingest"])
        assert (await client.post("/v1/events", json=EVENT)).status_code == 401
        assert (await client.post("/v1/events", json=EVENT, headers=bearer(key))).status_code == 200
        await revoke_all(server)
        await until_401(client, bearer(key))


async def test_a_listener_that_lost_its_connection_believes_nothing_and_listens_again(
    start: Start, news: list[KeyNews]
) -> None:
    async with start(key_cache_s=3600) as server, httpx.AsyncClient(base_url=server.url) as client:
        await until_heard(news)
        assert (await client.post("/v1/events", json=EVENT)).status_code == 200
        async with await server.ledger.database.connect() as connection:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'tidelock keys'"
            )
            await until_heard(news, live=False)
            key = await make_key(server, "t", ["ingest"])
            assert (await client.post("/v1/events", json=EVENT)).status_code == 401
            assert (await client.post("/v1/events", json=EVENT, headers=bearer(key))).status_code == 200
        await until_heard(news)
        assert (await client.post("/v1/events", json=EVENT, headers=bearer(key))).status_code == 200
        await revoke_all(server)
        await until_401(client, bearer(key))


async def test_without_keys_only_the_servers_own_pages_write_and_read(start: Start) -> None:
    async with start() as server, httpx.AsyncClient(base_url=server.url) as client:
        port = server.url.rpartition(":")[2]
        others = [
            {"host": "evil.example"}, {"host": "[::"}, {"origin": "https://evil.example"}, {"origin": "null"},
            {"origin": f"http://localhost:{port}"}, {"origin": "http://127.0.0.1:3000"}, {"origin": "http://127.0.0.1"},
            {"origin": server.url.replace("http", "https")}, {"origin": f"{server.url}/"}, {"origin": ""},
            {"origin": "http://evil.example", "host": "evil.example"},
            {"origin": "http://localhost:3000", "x-forwarded-host": "localhost:3000"},
        ]  # fmt: skip
        for headers in others:
            for method, path in (("POST", "/v1/events"), ("GET", "/admin/events"), ("GET", "/v1/triggers")):
                body = EVENT if method == "POST" else None
                assert (await client.request(method, path, json=body, headers=headers)).status_code == 403, headers
        for own in (server.url, "http://localhost:1", "http://localhost", "http://[::1]:80"):
            headers = {"origin": own.removesuffix(":80"), "host": own.removeprefix("http://")}
            assert (await client.post("/v1/events", json=EVENT, headers=headers)).status_code == 200, own


async def test_without_keys_a_body_without_a_type_is_refused_and_with_one_it_is_json_as_ever(start: Start) -> None:
    async with start(key_cache_s=0) as server, httpx.AsyncClient(base_url=server.url) as client:
        paths = ("/v1/events", "/graphql", "/v1/triggers", "/v1/triggers/t/redeliver", "/admin/verify")
        for path in paths:
            for headers in ({}, {"content-type": ""}):
                refused = await client.post(path, content=b'{"stream":"s"}', headers=headers)
                assert (refused.status_code, refused.json()["error"]["code"]) == (415, "unsupported_media_type"), path
        assert (await client.patch("/v1/triggers/t", content=b"{}")).status_code == 415
        assert (await client.post("/v1/triggers/t/redeliver")).status_code == 404, "no body needs no type"
        key = bearer(await make_key(server, "*", ["ingest"]))
        assert (await client.post("/v1/events", content=b'{"stream":"s"}', headers=key)).json()["accepted"] == 1


async def test_with_keys_origins_that_are_named_are_told_so_and_others_are_answered_without(start: Start) -> None:
    app, other = "https://app.example.com", "https://other.example.com"
    async with start(key_cache_s=0, cors_origins=(app,)) as server, httpx.AsyncClient(base_url=server.url) as client:
        asking = {"origin": app, "access-control-request-method": "POST"}
        assert (await client.options("/v1/events", headers=asking)).status_code == 403, "there are no keys"
        key = bearer(await make_key(server, "*", ["ingest", "read"]))
        allowed = await client.options("/v1/events", headers=asking)
        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (204, app)
        assert "access-control-allow-credentials" not in allowed.headers
        assert allowed.headers["access-control-allow-headers"].startswith("authorization")
        refused = await client.options("/v1/events", headers={**asking, "origin": other})
        assert (refused.status_code, "access-control-allow-origin" in refused.headers) == (204, False)
        for path, status in (("/admin/events", 200), ("/v1/nothing", 404), ("/v1/usage", 400)):
            answer = await client.get(path, headers={**key, "origin": app})
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, app)
            assert (
                "access-control-allow-origin" not in (await client.get(path, headers={**key, "origin": other})).headers
            )
        ws = server.url.replace("http", "ws")
        for path in ("/ws", "/graphql"):
            async with websockets.connect(ws + path, origin=websockets.Origin(app), additional_headers=key):
                pass
            async with websockets.connect(ws + path, additional_headers=key):
                pass
            with pytest.raises(websockets.InvalidStatus) as stranger:
                await websockets.connect(ws + path, origin=websockets.Origin(other), additional_headers=key)
            assert stranger.value.response.status_code == 403


async def test_a_key_is_256_random_bits_and_only_its_hash_is_stored(server: Serving, tenant: str) -> None:
    key = await make_key(server, tenant, ["read"])
    prefix, _, text = key.partition("_")
    assert prefix == "tdl"
    assert len(base64.urlsafe_b64decode(text + "=")) == 32
    async with await server.ledger.database.connect() as connection:
        rows = await (await connection.execute("SELECT api_keys::text FROM api_keys")).fetchall()
    assert not any(text in row[0] for row in rows)


@pytest.mark.parametrize(
    ("tenant_id", "scopes", "streams", "field"),
    [
        ("", ["read"], None, "tenant"),
        ("_tidelock", ["read"], None, "tenant"),
        ("a\0", ["read"], None, "tenant"),
        ("t" * 256, ["read"], None, "tenant"),
        ("t", [], None, "scopes"),
        ("t", ["write"], None, "scopes"),
        ("t", ["read"], [], "streams"),
        ("t", ["read"], [""], "streams"),
        ("t", ["read"], ["a", "_tidelock"], "streams"),
    ],
)
async def test_a_key_that_makes_no_sense_is_not_made(
    server: Serving, tenant_id: str, scopes: list[str], streams: list[str] | None, field: str
) -> None:
    with pytest.raises(SettingsError) as error:
        await make_key(server, tenant_id, scopes, streams=streams)
    assert error.value.field == field


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]", "dev.localhost"])
def test_this_machine_may_be_listened_on_without_keys(host: str) -> None:
    check_binding(host, keys_exist=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.com", "localhost.example.com"])
def test_beyond_this_machine_keys_are_needed(host: str) -> None:
    check_binding(host, keys_exist=True)
    with pytest.raises(SettingsError, match="tidelock keys create"):
        check_binding(host, keys_exist=False)


async def test_a_server_without_keys_refuses_to_listen_beyond_this_machine(start: Start) -> None:
    with pytest.raises(SettingsError, match="tidelock keys create"):
        async with start(host="0.0.0.0"):
            pass
