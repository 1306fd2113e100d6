"""The fold's tables over HTTP: every row once, in its form, to whom it belongs."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from datetime import date
from typing import Any

import httpx
import psycopg
import pytest

from tests.api.test_events import listed
from tests.fold import folded
from tests.http.test_access import bearer, make_key
from tests.serving import Start
from tidelock.app import Serving
from tidelock.definitions import Definitions, parse_definitions

Json = dict[str, Any]

MARCH = "2026-03-01T00:00:00Z"
#: a stream with a column of every type, and names that need care
KINDS = parse_definitions(
    {
        "streams": {
            "kinds": {
                "key": ["order", "i"],
                "columns": {
                    "order": "string", "i": "int", "b": "bigint", "d": "double", "n": "decimal(18,4)", "o": "boolean",
                    "t": "timestamp", "day": "date", "j": "json",
                },
            },
            "events": {"key": "customer_ref"},
        }
    }
)  # fmt: skip


@pytest.fixture(scope="module")
async def server(start: Start) -> AsyncIterator[Serving]:
    async with start(definitions=KINDS) as serving:
        yield serving


@pytest.fixture(scope="module")
async def connection(server: Serving) -> AsyncIterator[folded.Connection]:
    async with await server.ledger.database.connect() as opened:
        yield opened


@pytest.fixture(scope="module")
async def tables(connection: folded.Connection) -> Any:
    tables = await folded.define(connection, KINDS)
    for name in ("kinds", "events"):
        await folded.create(connection, tables[name])
    return tables


async def failed(client: httpx.AsyncClient, path: str, **parameters: Any) -> tuple[int, str, str | None]:
    response = await client.get(path, params=parameters)
    error = response.json()["error"]
    return response.status_code, error["code"], error["field"]


@pytest.mark.usefixtures("tables")
async def test_every_type_has_its_form(
    client: httpx.AsyncClient, connection: folded.Connection, tables: Any, tenant: str
) -> None:
    row = {
        "order": "é\"'%\\", "i": -5, "b": 2**62, "d": 1e-7, "n": "-10.5000", "o": False, "t": 1_500_000_001,
        "day": date(2026, 1, 31), "j": '{"b": 1.50, "a": [1]}',
    }  # fmt: skip
    await folded.put(connection, tables["kinds"], tenant, "1", row)
    await folded.put(connection, tables["kinds"], tenant, "2", {"n": "100", "t": 0, "j": "null"})
    response = await client.get("/v1/tables/kinds", params={"tenantId": tenant})
    assert response.text == (
        f'{{"items":[{{"tenant_id":"{tenant}","order":"é\\"\'%\\\\","i":-5,"b":{2**62},"d":1e-7,"n":"-10.5","o":false,'
        '"t":"1970-01-01T00:00:01.500000001Z","day":"2026-01-31","j":{"b": 1.50, "a": [1]}},'
        f'{{"tenant_id":"{tenant}","order":null,"i":null,"b":null,"d":null,"n":"100","o":null,'
        '"t":"1970-01-01T00:00:00Z","day":null,"j":null}],"next":null}'
    )


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize(
    "where",
    [
        {"order": {"_eq": "%s {x} 'q' \\ $1"}},
        {"i": {"_gt": 4}},
        {"b": {"_in": ["9007199254740993"]}},
        {"n": {"_lte": "0.0001"}},
        {"t": {"_gte": "2026-01-01T00:00:00Z"}},
        {"day": {"_lt": "2026-01-02"}},
        {"o": {"_eq": True}},
        {"j": {"_is_null": False}},
        {"_not": {"d": {"_is_null": True}}},
        {"_or": [{"i": {"_eq": 5}}, {"_and": []}]},
    ],
)
async def test_a_filter_finds_what_it_says(
    client: httpx.AsyncClient, connection: folded.Connection, tables: Any, tenant: str, where: Json
) -> None:
    row = {
        "order": "%s {x} 'q' \\ $1", "i": 5, "b": 9007199254740993, "d": 1.0, "n": "0.0001", "o": True,
        "t": 1_767_225_600_000_000_000, "day": date(2026, 1, 1), "j": "{}",
    }  # fmt: skip
    await folded.put(connection, tables["kinds"], tenant, "1", row)
    await folded.put(connection, tables["kinds"], tenant, "2", {})
    found = await listed(client, "/v1/tables/kinds", tenantId=tenant, where=json.dumps(where))
    assert [item["i"] for item in found] == ([5, None] if "_or" in where else [5])


async def test_the_tenant_can_be_filtered_by(client: httpx.AsyncClient, connection: folded.Connection) -> None:
    for tenant in ("filtered-1", "filtered-2"):
        await folded.error_row(connection, tenant, "s", 1, "invalid_column")
    where = json.dumps({"tenant_id": {"_in": ["filtered-2", "nobody"]}})
    assert [item["tenant_id"] for item in await listed(client, "/v1/errors", where=where)] == ["filtered-2"]


@pytest.mark.parametrize(
    ("where", "field"),
    [
        ("{", None), ("[]", None), ("", None), ('{"nothing": {"_eq": 1}}', "nothing"),
        ('{"source_timestamp": {"_gt": 1}}', "source_timestamp"), ('{"$key": {"_eq": "x"}}', "$key"),
        ('{"adj_sum": {"_eq": 1}}', "adj_sum"), ('{"value": {"_eq": "x"}}', "value._eq"),
        ('{"value": {"_like": "x"}}', "value._like"), ('{"metric": {"_eq": null}}', "metric._eq"),
        (r'{"metric": {"_eq": "\ud800"}}', "metric._eq"), (r'{"\udfff": {"_eq": "x"}}', r"\udfff"),
    ],
)  # fmt: skip
async def test_a_filter_that_means_nothing_is_422_and_names_the_place(
    client: httpx.AsyncClient, where: str, field: str | None
) -> None:
    assert await failed(client, "/v1/counters", where=where) == (422, "invalid_definition", field)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 1000])
async def test_pages_put_together_are_the_table_in_order_of_tenant_and_key(
    client: httpx.AsyncClient, connection: folded.Connection, limit: int
) -> None:
    sources = ["a", "B", "é", "\U0001f600", "a,b", 'q"', "z\n"]
    for n, source in enumerate(sources):
        await folded.error_row(connection, f"paged-{limit}-{n % 2}", source, n, f"paged-{limit}")
    items = await listed(client, "/v1/errors", code=f"paged-{limit}", limit=limit)
    keys = [(item["tenant_id"], item["source"]) for item in items]
    assert len(keys) == len(sources)
    assert keys == sorted(keys, key=lambda key: (key[0], json.dumps([key[1]], ensure_ascii=False)))
    assert list(items[0]) == ["tenant_id", "source", "ingress_sequence", "code", "message"]


async def test_a_list_continues_after_rows_that_are_gone_or_new(
    client: httpx.AsyncClient, connection: folded.Connection, tenant: str
) -> None:
    for n in (1, 3, 5):
        await folded.error_row(connection, tenant, "s", n, "c")
    first = (await client.get("/v1/errors", params={"tenantId": tenant, "limit": 1})).json()
    await connection.execute(
        "DELETE FROM tidelock_tables.error_rows WHERE tenant_id = %s AND ingress_sequence = 1", (tenant,)
    )
    await folded.error_row(connection, tenant, "s", 2, "c")
    rest = await listed(client, "/v1/errors", tenantId=tenant, cursor=first["next"])
    assert [item["ingress_sequence"] for item in rest] == [2, 3, 5]


async def test_a_page_ends_where_its_texts_are_large(start: Start) -> None:
    async with (
        start(page_bytes_max=1000) as server,
        httpx.AsyncClient(base_url=server.url) as client,
        await server.ledger.database.connect() as connection,
    ):
        for n, size in enumerate((1, 2000, 300, 300)):
            await folded.error_row(connection, "t", "s", n, "x" * size)
        pages = []
        cursor: Json = {}
        while True:
            page = (await client.get("/v1/errors", params=cursor)).json()
            pages.append([item["ingress_sequence"] for item in page["items"]])
            if page["next"] is None:
                break
            cursor = {"cursor": page["next"]}
        assert pages == [[0], [1], [2, 3]]


@pytest.mark.parametrize("cursor", ["x", "ä", "YXNjOjE", "WyJjb3VudGVycyIsInQiLCJrIl0", "WyJlcnJvcl9yb3dzIiwiAA"])
async def test_a_cursor_that_the_list_has_not_given_is_400(client: httpx.AsyncClient, cursor: str) -> None:
    assert await failed(client, "/v1/errors", cursor=cursor) == (400, "invalid_request", "cursor")


async def test_counters_are_found_by_metric_customer_and_period(
    client: httpx.AsyncClient, connection: folded.Connection, tenant: str
) -> None:
    for metric in ("calls", "calls2", 'c"alls'):
        for customer in ("c", "c2", "ü,\t", ""):
            for month in ("02", "03"):
                await folded.counter(connection, tenant, metric, customer, f"2026-{month}-01T00:00:00Z", value="1.50")

    async def found(**parameters: str) -> list[tuple[str, str, str]]:
        items = await listed(client, "/v1/counters", tenantId=tenant, **parameters)
        return [(item["metric"], item["customer_ref"], item["period_start"][5:7]) for item in items]

    assert len(await found()) == 24
    assert len(await found(metric="calls")) == 8
    assert len(await found(customerRef="c")) == 6
    for metric in ("calls", 'c"alls'):
        for customer in ("c", "ü,\t", ""):
            expected = [(metric, customer, "02"), (metric, customer, "03")]
            assert await found(metric=metric, customerRef=customer) == expected
    assert await found(metric="calls", customerRef="c", **{"from": MARCH}) == [("calls", "c", "03")]
    assert await found(metric="calls", customerRef="c", to=MARCH) == [("calls", "c", "02")]
    assert await found(metric="calls", customerRef="c", where='{"value": {"_gt": 2}}') == []
    assert await found(metric="nothing") == []


async def test_a_counter_has_its_columns_and_not_its_state(
    client: httpx.AsyncClient, connection: folded.Connection, tenant: str
) -> None:
    await folded.counter(connection, tenant, "calls", "c", MARCH, value="10.250000000", total="11")
    (item,) = await listed(client, "/v1/counters", tenantId=tenant)
    assert item == {
        "tenant_id": tenant, "metric": "calls", "customer_ref": "c", "period_start": MARCH, "agg_sum": "10.25",
        "agg_count": 1, "agg_max": None, "agg_min": None, "agg_last": None, "watermark_ts": MARCH, "value": "10.25",
        "total": "11",
    }  # fmt: skip
    assert [item] == await listed(client, "/v1/tables/counters", tenantId=tenant)


async def test_adjustments_and_errors_are_lists_of_their_own(
    client: httpx.AsyncClient, connection: folded.Connection, tenant: str
) -> None:
    await folded.adjustment(connection, tenant, "calls", "c", 7)
    await folded.adjustment(connection, tenant, "calls", "d", 8)
    await folded.error_row(connection, tenant, "calls", 9, "missing_quantity")
    await folded.error_row(connection, tenant, "trades", 9, "invalid_column")
    (item,) = await listed(client, "/v1/adjustments", tenantId=tenant, metric="calls", customerRef="c")
    assert item == {
        "tenant_id": tenant, "metric": "calls", "customer_ref": "c", "period_start": "1970-01-01T00:00:00Z",
        "ingress_sequence": 7, "quantity": None, "amount": "1.5", "reason": "late",
        "occurred_at": "1970-01-01T00:00:00.000000001Z",
    }  # fmt: skip
    for chosen in ({"source": "trades"}, {"code": "invalid_column"}):
        (item,) = await listed(client, "/v1/errors", tenantId=tenant, **chosen)
        assert item == {
            "tenant_id": tenant, "source": "trades", "ingress_sequence": 9, "code": "invalid_column", "message": "m"
        }  # fmt: skip


@pytest.mark.usefixtures("tables")
async def test_a_stream_named_like_a_table_of_the_ledger_is_its_own_table(
    client: httpx.AsyncClient, connection: folded.Connection, tables: Any, tenant: str
) -> None:
    await folded.put(connection, tables["events"], tenant, "c", {"customer_ref": "c", "data": '{"a":1}', "quantity": 1})
    assert await listed(client, "/v1/tables/events", tenantId=tenant) == [
        {"tenant_id": tenant, "customer_ref": "c", "resource_id": None, "occurred_at": None, "quantity": "1",
         "data": {"a": 1}}
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["nothing", "api_keys", "ledger_head", "COUNTERS", "pg_class", 'counters"', "counters;--", "a%20b", "_"]
)
async def test_a_table_that_the_fold_does_not_keep_is_404(client: httpx.AsyncClient, name: str) -> None:
    response = await client.get(f"/v1/tables/{name}")
    assert response.status_code == 404
    assert "counters" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "name"), [("/v1/errors", "metric"), ("/v1/tables/counters", "metric"), ("/v1/counters", "order")]
)
async def test_a_parameter_that_a_list_does_not_have_is_named(client: httpx.AsyncClient, path: str, name: str) -> None:
    assert await failed(client, path, **{name: "x"}) == (400, "invalid_request", name)


async def test_before_the_fold_has_run_declared_tables_are_empty(start: Start) -> None:
    async with start(definitions=KINDS) as server, httpx.AsyncClient(base_url=server.url) as client:
        for path in ("/v1/tables/kinds", "/v1/tables/events", "/v1/tables/counters", "/v1/counters", "/v1/errors"):
            response = await client.get(path, params={"where": "{}"})
            assert (response.status_code, response.json()) == (200, {"items": [], "next": None}), path
        async with await server.ledger.database.connect() as connection:
            tables = await folded.define(connection, KINDS)
            await folded.create(connection, tables["kinds"])
            await folded.put(connection, tables["kinds"], "t", "k", {"i": 1})
        assert len((await client.get("/v1/tables/kinds")).json()["items"]) == 1


async def test_a_new_version_of_the_tables_is_seen_at_once(start: Start) -> None:
    async with (
        start() as server,
        httpx.AsyncClient(base_url=server.url) as client,
        await server.ledger.database.connect() as connection,
    ):
        await folded.define(connection, Definitions(), 1)
        assert (await client.get("/v1/tables/kinds")).status_code == 404
        tables = await folded.define(connection, KINDS, 2)
        await folded.create(connection, tables["kinds"])
        assert (await client.get("/v1/tables/kinds")).status_code == 200


PATHS = ("/v1/counters", "/v1/adjustments", "/v1/late", "/v1/errors", "/v1/tables/counters", "/v1/tables/kinds")


async def test_a_tenants_key_reads_its_own_rows_whatever_it_asks(start: Start) -> None:
    async with (
        start(definitions=KINDS, key_cache_s=0) as server,
        httpx.AsyncClient(base_url=server.url) as client,
        await server.ledger.database.connect() as connection,
    ):
        tables = await folded.define(connection, KINDS)
        await folded.create(connection, tables["kinds"])
        for tenant in ("acme", "zeta"):
            await folded.counter(connection, tenant, "calls", "c", MARCH, value="1")
            await folded.adjustment(connection, tenant, "calls", "c", 1)
            await folded.error_row(connection, tenant, "s", 1, "c")
            await folded.late_row(connection, tenant, "w", 1, MARCH)
            await folded.put(connection, tables["kinds"], tenant, "k", {"i": 1})
        own, every = await make_key(server, "acme", ["read"]), await make_key(server, "*", ["read"])
        writer = await make_key(server, "acme", ["ingest"])
        for path in PATHS:

            async def tenants(key: str, path: str = path, **parameters: str) -> list[str] | int:
                response = await client.get(path, params=parameters, headers=bearer(key))
                if response.status_code != 200:
                    return response.status_code
                return [item["tenant_id"] for item in response.json()["items"]]

            assert await tenants(own) == ["acme"]
            assert await tenants(own, tenantId="acme") == ["acme"]
            assert await tenants(own, tenantId="zeta") == 403
            assert await tenants(own, where='{"tenant_id": {"_eq": "zeta"}}') == []
            for anything in ('{"_or": [{}, {"tenant_id": {"_eq": "zeta"}}]}', '{"_not": {"_or": []}}'):
                assert await tenants(own, where=anything) == ["acme"]
            assert await tenants(every) == ["acme", "zeta"]
            assert await tenants(every, tenantId="zeta") == ["zeta"]
            following = (await client.get(path, params={"limit": "1"}, headers=bearer(every))).json()["next"]
            assert await tenants(own, cursor=following) == []
            assert await tenants(writer) == 403
            assert (await client.get(path)).status_code == 401


async def test_a_page_of_a_thousand_counters_takes_this_process_little_time(
    client: httpx.AsyncClient, connection: folded.Connection, tenant: str
) -> None:
    await connection.execute(
        "INSERT INTO tidelock_tables.counters SELECT %s, jsonb_build_array('m', 'c' || n)::text, 'm', 'c' || n, 0, "
        "1.5, 1, 1.5, 1.5, 1.5, n, 1.5, 1.5, 1, NULL, 0, 0, NULL, NULL FROM generate_series(1, 3000) AS n",
        (tenant,),
    )
    times = []
    for _ in range(5):
        # Of the processor: another program may have the machine.
        started = time.process_time()
        response = await client.get("/v1/counters", params={"tenantId": tenant, "limit": "1000"})
        times.append(time.process_time() - started)
        assert len(response.json()["items"]) == 1000
    assert min(times) < 0.5


async def test_a_list_that_hangs_is_given_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelock.postgres.pool._SESSION", "SET statement_timeout = '200ms'")
    async with (
        start() as server,
        httpx.AsyncClient(base_url=server.url) as client,
        await psycopg.AsyncConnection.connect(server.ledger.database.url) as holder,
    ):
        await holder.execute("LOCK TABLE tidelock_tables.counters")
        assert (await client.get("/v1/counters")).status_code == 503
        await holder.rollback()
        assert (await client.get("/v1/counters")).status_code == 200
