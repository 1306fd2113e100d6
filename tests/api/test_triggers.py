"""Triggers over HTTP: made, changed and ended, each by an event of the ledger; what is wrong is told by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.recording import rows
from tests.serving import Start
from tests.triggers.outboxes import create_trigger, fill, transition
from tidelock.app import Serving
from tidelock.definitions import parse_definitions
from tidelock.ledger.apikeys import create_key

Json = dict[str, Any]

DEFINITIONS = parse_definitions(
    {
        "streams": {
            "trades": {
                "key": "trade_id", "columns": {"trade_id": "bigint", "symbol": "string", "price": "decimal(18,4)"}
            },
            "quiet": {"key": "id", "columns": {"id": "bigint"}, "live": False},
        }
    }
)  # fmt: skip
HOOK = "https://example.com/hook"


@pytest.fixture(scope="module")
async def server(start: Start) -> AsyncIterator[Serving]:
    async with start(definitions=DEFINITIONS) as serving:
        yield serving


def trigger(name: str, **given: Any) -> Json:
    return {"name": name, "table": "trades", "match": {"price": {"_gt": 10.5}}, "webhook": HOOK, **given}


async def made(client: httpx.AsyncClient, name: str, **given: Any) -> Json:
    response = await client.post("/v1/triggers", json=trigger(name, **given))
    assert response.status_code == 201, response.text
    found: Json = response.json()
    return found


async def events_of(server: Serving, name: str) -> list[Any]:
    of_triggers = "SELECT data FROM events WHERE data->>'type' = 'trigger'"
    query = f"{of_triggers} AND data->>'name' = '{name}' ORDER BY ingress_sequence"
    return [row[0] for row in await rows(server.ledger.database, query)]


async def test_a_trigger_is_made_by_a_control_event_and_its_secret_is_answered_once(
    server: Serving, client: httpx.AsyncClient
) -> None:
    response = await made(client, "big")
    (secret,) = response.pop("secrets")
    assert secret.startswith("whsec_")
    assert response == {
        "name": "big", "tenantId": "default", "table": "trades", "match": {"price": {"_gt": 10.5}}, "unmatch": None,
        "webhook": HOOK, "enabled": True, "snapshot": False, "createdSequence": response["createdSequence"],
    }  # fmt: skip
    assert (await client.get("/v1/triggers/big")).json() == response
    listed = (await client.get("/v1/triggers")).json()
    assert response in listed["items"]
    (event,) = await events_of(server, "big")
    assert event["match"] == '{"price":{"_gt":10.5}}'
    assert event["columns"] == {"trade_id": "bigint", "symbol": "string", "price": "decimal(18,4)"}
    text = str(await rows(server.ledger.database, "SELECT data::text FROM events"))
    assert secret not in text
    assert "whsec_" not in text


async def test_secrets_that_are_given_are_never_answered(client: httpx.AsyncClient) -> None:
    secret = "whsec_" + "A" * 32
    assert "secrets" not in await made(client, "secretive", secrets=[secret])
    assert secret not in (await client.get("/v1/triggers/secretive")).text
    changed = await client.patch("/v1/triggers/secretive", json={"secrets": [secret, "whsec_" + "B" * 32]})
    assert changed.status_code == 200
    assert "whsec_" not in changed.text


async def test_changing_secrets_alone_is_not_an_event(server: Serving, client: httpx.AsyncClient) -> None:
    await made(client, "rotated")
    assert (await client.patch("/v1/triggers/rotated", json={"secret": "whsec_" + "C" * 32})).status_code == 200
    assert (await client.patch("/v1/triggers/rotated", json={"enabled": True})).status_code == 200
    assert len(await events_of(server, "rotated")) == 1


async def test_a_change_says_the_whole_definition(server: Serving, client: httpx.AsyncClient) -> None:
    first = await made(client, "changing", unmatch={"price": {"_lt": 5}})
    response = await client.patch("/v1/triggers/changing", json={"unmatch": None, "enabled": False})
    assert response.status_code == 200
    del first["secrets"]
    assert response.json() == first | {"unmatch": None, "enabled": False}
    _, event = await events_of(server, "changing")
    assert (event["match"], event["unmatch"], event["enabled"]) == ('{"price":{"_gt":10.5}}', None, False)
    assert (await client.delete("/v1/triggers/changing")).status_code == 204
    assert (await client.get("/v1/triggers/changing")).status_code == 404
    assert (await events_of(server, "changing"))[-1]["action"] == "delete"
    assert (await made(client, "changing"))["createdSequence"] > first["createdSequence"]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"name": "a:b"}, "name"),
        ({"name": "x" * 129}, "name"),
        ({"table": "nothing"}, "table"),
        ({"table": "quiet"}, "table"),
        ({"table": "watermarks"}, "table"),
        ({"match": {"price": {"_gt": "x"}}}, "match.price._gt"),
        ({"match": {"_and": [{}, {"cost": {"_eq": 1}}]}}, "match._and[1].cost"),
        ({"match": []}, "match"),
        ({"match": None}, "match"),
        ({"unmatch": {"price": {"_eq": None}}}, "unmatch.price._eq"),
        ({"webhook": "ftp://example.com/"}, "webhook"),
        ({"webhook": "http://127.0.0.1/"}, "webhook"),
        ({"webhook": "http://2130706433/"}, "webhook"),
        ({"webhook": 7}, "webhook"),
        ({"secrets": ["x"]}, "secrets"),
        ({"secrets": []}, "secrets"),
        ({"colour": "red"}, "colour"),
        ({"enabled": "yes"}, "enabled"),
        ({"tenantId": "_tidelock"}, "tenantId"),
        ({"tenantId": ""}, "tenantId"),
    ],
)
async def test_what_cannot_be_made_is_refused_by_name(client: httpx.AsyncClient, given: Json, field: str) -> None:
    response = await client.post("/v1/triggers", json=trigger("wrong") | given)
    assert response.status_code == 422, response.text
    assert (response.json()["error"]["code"], response.json()["error"]["field"]) == ("invalid_definition", field)


async def test_bodies_that_are_no_json_are_refused(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/triggers", content=b"{", headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")
    response = await client.post("/v1/triggers", content=b"<a/>", headers={"content-type": "text/xml"})
    assert response.status_code == 415
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/deliveries"), ("POST", "/redeliver")):
        assert (await client.request(method, f"/v1/triggers/nobody{path}")).status_code == 404


async def test_every_attempt_is_reported_with_what_was_answered(server: Serving, client: httpx.AsyncClient) -> None:
    database = server.ledger.database
    told = (create_trigger(database, "attempted", HOOK), "attempted")
    await rows(database, "UPDATE triggers SET enabled = false WHERE name = 'attempted' RETURNING id")
    one = transition(told, "7", 1)
    fill(database, [one])
    await rows(
        database,
        "INSERT INTO delivery_attempts SELECT id, number, '2026-01-02T03:04:05.5Z', 0.25, 'failed', 500 + number, 'no'"
        f" FROM outbox, generate_series(1, 2) AS number WHERE event_id = '{one.event_id}' RETURNING number",
    )
    found = (await client.get(f"/v1/triggers/attempted/deliveries/{one.event_id}")).json()
    (listed,) = (await client.get("/v1/triggers/attempted/deliveries")).json()["items"]
    assert found == {
        **listed,
        "data": {"id": "7", "n": 1},
        "items": [
            {
                "number": number, "sentAt": "2026-01-02T03:04:05.5Z", "seconds": 0.25, "outcome": "failed",
                "httpStatus": 500 + number, "response": "no",
            }
            for number in (2, 1)
        ],
        "next": None,
    }  # fmt: skip
    for wrong in (one.event_id[:-1], "%00", "0" * 32):
        assert (await client.get(f"/v1/triggers/attempted/deliveries/{wrong}")).status_code == 404


async def test_of_many_who_make_one_name_at_a_time_one_does(start: Start, server: Serving) -> None:
    async with (
        start(definitions=DEFINITIONS, database_url=server.ledger.database.url) as second,
        httpx.AsyncClient(base_url=server.url) as one,
        httpx.AsyncClient(base_url=second.url) as other,
    ):
        answers = await asyncio.gather(
            *(client.post("/v1/triggers", json=trigger("raced")) for _ in range(8) for client in (one, other))
        )
    codes = sorted(answer.status_code for answer in answers)
    assert codes == [201] + [409] * 15
    assert next(a for a in answers if a.status_code == 409).json()["error"]["code"] == "exists"
    assert len(await events_of(server, "raced")) == 1


async def test_of_many_changes_at_a_time_none_is_lost(server: Serving, client: httpx.AsyncClient) -> None:
    await made(client, "busy")
    changes: list[Json] = [{"enabled": False}, {"snapshot": True}, {"unmatch": {"price": {"_lt": 1}}}, {"match": {}}]
    answers = await asyncio.gather(*(client.patch("/v1/triggers/busy", json=change) for change in changes))
    assert {answer.status_code for answer in answers} == {200}
    found = (await client.get("/v1/triggers/busy")).json()
    assert (found["enabled"], found["snapshot"], found["match"]) == (False, True, {})
    assert found["unmatch"] == {"price": {"_lt": 1}}
    assert len(await events_of(server, "busy")) == 5


async def test_triggers_are_their_tenants_own(start: Start) -> None:
    async with start(definitions=DEFINITIONS) as server:
        async with await server.ledger.database.connect() as connection:
            keys = {
                name: (await create_key(connection, tenant, [scope]))[1]
                for name, tenant, scope in (
                    ("a", "a", "triggers"), ("b", "b", "triggers"), ("reader", "a", "read"), ("all", "*", "triggers")
                )
            }  # fmt: skip
        async with httpx.AsyncClient(base_url=server.url) as client:

            def by(name: str) -> dict[str, str]:
                return {"authorization": f"Bearer {keys[name]}"}

            assert (await client.get("/v1/triggers")).status_code == 401
            assert (await client.get("/v1/triggers", headers=by("reader"))).status_code == 403
            response = await client.post("/v1/triggers", json=trigger("own"), headers=by("a"))
            assert response.json()["tenantId"] == "a"
            assert (await client.get("/v1/triggers/own", headers=by("b"))).status_code == 404
            assert (await client.delete("/v1/triggers/own", headers=by("b"))).status_code == 404
            assert (await client.get("/v1/triggers", headers=by("b"))).json()["items"] == []
            assert (await client.post("/v1/triggers", json=trigger("own"), headers=by("b"))).status_code == 409
            foreign = trigger("foreign", tenantId="a")
            assert (await client.post("/v1/triggers", json=foreign, headers=by("b"))).status_code == 403
            assert (await client.post("/v1/triggers", json=foreign, headers=by("all"))).json()["tenantId"] == "a"
            names = [item["name"] for item in (await client.get("/v1/triggers", headers=by("all"))).json()["items"]]
            assert names == ["foreign", "own"]
            page = (await client.get("/v1/triggers?limit=1", headers=by("all"))).json()
            rest = await client.get("/v1/triggers", params={"cursor": page["next"]}, headers=by("all"))
            assert [item["name"] for item in [*page["items"], *rest.json()["items"]]] == names


async def test_health_reports_triggers_from_the_first_one_on(start: Start) -> None:
    async with start(definitions=DEFINITIONS) as server, httpx.AsyncClient(base_url=server.url) as client:
        readers = (await client.get("/admin/event-health")).json()["readers"]
        assert "triggers" not in [reader["name"] for reader in readers]
        sequence = (await made(client, "first"))["createdSequence"]
        (reader,) = (await client.get("/readyz")).json()["readers"]
        assert (reader["name"], reader["ingressSequence"], reader["lagSequences"]) == ("triggers", sequence - 1, 1)
        metrics = (await client.get("/metrics")).text
        for line in (
            'tidelock_trigger_transitions_total{type="MATCH"} 0.0',
            'tidelock_outbox_depth{status="dead"} 0.0',
        ):
            assert line in metrics
        assert "tidelock_webhook_attempts_total" in metrics
        assert "tidelock_outbox_oldest_seconds" in metrics


async def asked(client: httpx.AsyncClient, document: str, **variables: Any) -> Json:
    response = await client.post("/graphql", json={"query": document, "variables": variables})
    found: Json = response.json()
    return found


async def test_triggers_are_made_listed_and_ended_in_graphql(server: Serving, client: httpx.AsyncClient) -> None:
    create = """mutation ($match: json!) {
        made: create_trigger(name: "by_graphql", table: "trades", match: $match, unmatch: {price: {_lt: 2.5}},
            webhook: "https://example.com/hook") { __typename name match unmatch enabled created_sequence secrets }
    }"""
    made = (await asked(client, create, match={"price": {"_gt": 10.10}}))["data"]["made"]
    assert made.pop("secrets")[0].startswith("whsec_")
    assert made.pop("created_sequence").isdigit()
    assert made == {
        "__typename": "trigger", "name": "by_graphql", "match": {"price": {"_gt": 10.10}},
        "unmatch": {"price": {"_lt": 2.5}}, "enabled": True,
    }  # fmt: skip
    (event,) = await events_of(server, "by_graphql")
    assert event["unmatch"] == '{"price":{"_lt":2.5}}'
    listed = (await asked(client, "{ triggers { name secrets } }"))["data"]["triggers"]
    assert {"name": "by_graphql", "secrets": None} in listed
    again = await asked(client, create, match={})
    assert again["errors"][0]["extensions"]["code"] == "exists"
    wrong = await asked(client, create.replace("by_graphql", "other"), match={"cost": {"_gt": 1}})
    assert wrong["errors"][0]["extensions"]["field"] == "match.cost"
    by_get = await client.get("/graphql", params={"query": 'mutation { delete_trigger(name: "by_graphql") { name } }'})
    assert "errors" in by_get.json()
    gone = await asked(client, 'mutation { delete_trigger(name: "by_graphql") { name table } }')
    assert gone == {"data": {"delete_trigger": {"name": "by_graphql", "table": "trades"}}}
    assert (await client.get("/v1/triggers/by_graphql")).status_code == 404
