"""`POST /v1/events`: every form a producer may send, and the verdict for each event."""

from __future__ import annotations

import asyncio
import gzip
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import zstandard
from cloudevents.core.bindings.http import to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent

from tests.javascript import CLIENTS, need_javascript
from tests.serving import Start
from tidelock.app import Serving
from tidelock.definitions import parse_definitions

Json = dict[str, Any]


async def post(client: httpx.AsyncClient, body: Any, content_type: str = "application/json", **headers: str) -> Json:
    """The answer to a body, which must be 200."""
    headers["content-type"] = content_type
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = await client.post("/v1/events", content=content, headers=headers)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    counts = [result["status"] for result in answer["results"]]
    assert answer["accepted"] == counts.count("accepted")
    assert answer["duplicates"] == counts.count("duplicate")
    assert answer["conflicts"] == counts.count("conflict")
    assert answer["rejected"] == counts.count("rejected")
    return answer


async def recorded(client: httpx.AsyncClient, tenant: str) -> list[Json]:
    items: list[Json] = (await client.get("/admin/events", params={"tenantId": tenant, "limit": 1000})).json()["items"]
    return items


async def test_an_accepted_event_has_every_field_of_its_verdict_and_comes_back_as_sent(
    client: httpx.AsyncClient, tenant: str
) -> None:
    event = {
        "tenantId": tenant, "stream": "api_calls", "customerRef": "cus_1", "resourceId": None,
        "ts": "2026-01-31T23:59:59.5Z", "quantity": "1.50", "data": {"region": "eu", "b": 1.0, "a": None},
        "op": "upsert", "causalityKey": "run-42", "correlationId": "c-1", "causationId": None, "idempotencyKey": None,
        "source": "sdk", "reason": "as agreed", "batchId": "b-1",
    }  # fmt: skip
    (verdict,) = (await post(client, {"events": [event]}, "application/json"))["results"]
    assert set(verdict) == {
        "status", "ingressSequence", "idempotencyKey", "keySource", "receivedAt", "sourceTimestamp"
    }  # fmt: skip
    assert verdict["keySource"] == "derived"
    assert verdict["sourceTimestamp"].isdecimal()
    assert verdict["receivedAt"].endswith("Z")
    (stored,) = await recorded(client, tenant)
    assert stored.pop("commitId") > 0
    assert stored == {
        **{name: value for name, value in event.items() if name != "ts"},
        "occurredAt": "2026-01-31T23:59:59.5Z",
        "quantity": "1.5",
        "ingressSequence": verdict["ingressSequence"],
        "idempotencyKey": verdict["idempotencyKey"],
        "keySource": "derived",
        "receivedAt": verdict["receivedAt"],
        "sourceTimestamp": verdict["sourceTimestamp"],
        "target": None,
        "targetSequence": None,
    }


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON; charset=UTF-8"])
async def test_json_comes_wrapped_as_an_array_or_alone_with_any_spelling_of_its_type(
    client: httpx.AsyncClient, tenant: str, content_type: str
) -> None:
    event = {"tenantId": tenant, "stream": "s"}
    for body, count in (({"events": [event, event]}, 2), ([event], 1), (event, 1)):
        assert (await post(client, body, content_type))["accepted"] == count


async def test_no_events_are_answered_with_zeros(client: httpx.AsyncClient) -> None:
    bodies: list[Any] = [{"events": []}, []]
    for body in bodies:
        answer = await post(client, body)
        assert answer == {"accepted": 0, "duplicates": 0, "conflicts": 0, "rejected": 0, "results": []}


async def test_aliases_say_the_same(client: httpx.AsyncClient, tenant: str) -> None:
    first = {"tenantId": tenant, "stream": "s", "ts": "2026-01-01T00:00:00Z", "data": {"a": 1}}
    second = {"tenantId": tenant, "metric": "s", "occurredAt": 1767225600000, "meta": {"a": 1}}
    third = {"tenantId": tenant, "metric": "s", "occurredAt": "2026-01-01T01:00:00+01:00", "payload": {"a": 1}}
    answer = await post(client, [first, second, third])
    assert [result["status"] for result in answer["results"]] == ["accepted", "duplicate", "duplicate"]


async def test_lines_are_events_and_a_bad_one_is_one_rejected_result(client: httpx.AsyncClient, tenant: str) -> None:
    good = json.dumps({"tenantId": tenant, "stream": "s"})
    body = f"{good}\n\n   \r\n{{broken\n{good}\r\n[1]\n{good}".encode()
    answer = await post(client, body, "application/x-ndjson")
    assert [result["status"] for result in answer["results"]] == [
        "accepted", "rejected", "accepted", "rejected", "accepted"
    ]  # fmt: skip
    assert answer["results"][1]["error"]["code"] == "invalid_json"
    assert answer["results"][3]["error"]["code"] == "invalid_event"


def cloudevent(tenant: str, **attributes: Any) -> CloudEvent:
    given = {"type": "orders", "source": "/shop", "subject": "cus_1", "time": datetime(2026, 1, 1, tzinfo=UTC)}
    return CloudEvent({**given, "tenantid": tenant, **attributes}, {"total": 5})


async def test_a_cloudevent_of_the_official_package_is_an_event(client: httpx.AsyncClient, tenant: str) -> None:
    event = cloudevent(tenant, id="1", quantity="2.50", causalitykey="run-1", other="ignored")
    message = to_structured_event(event)
    answer = await post(client, message.body, message.headers["content-type"])
    assert answer["results"][0]["idempotencyKey"] == '["/shop","1"]'
    assert answer["results"][0]["keySource"] == "client"
    assert (await post(client, message.body, message.headers["content-type"]))["duplicates"] == 1
    (stored,) = await recorded(client, tenant)
    assert stored["stream"] == "orders"
    assert stored["customerRef"] == "cus_1"
    assert stored["source"] == "/shop"
    assert stored["quantity"] == "2.5"
    assert stored["data"] == {"total": 5}
    assert stored["causalityKey"] == "run-1"
    assert stored["occurredAt"] == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("change", "attribute", "code"),
    [
        ({"time": "yesterday"}, "time", "invalid_timestamp"),
        ({"time": "2999-01-01T00:00:00Z"}, "time", "invalid_timestamp"),
        ({"time": "2261-01-01T00:00:00Z"}, "time", "future_timestamp"),
        ({"type": "_tidelock"}, "type", "invalid_event"),
        ({"type": "a\0"}, "type", "invalid_event"),
        ({"tenantid": "*"}, "tenantid", "invalid_event"),
        ({"subject": "a\0"}, "subject", "invalid_event"),
        ({"causalitykey": "a\0"}, "causalitykey", "invalid_event"),
        ({"quantity": "many"}, "quantity", "invalid_quantity"),
    ],
    ids=str,
)
async def test_what_is_wrong_with_a_cloudevent_is_told_in_its_own_words(
    client: httpx.AsyncClient, tenant: str, change: Json, attribute: str, code: str
) -> None:
    good = {"specversion": "1.0", "type": "t", "source": "/s", "id": "1", "tenantid": tenant}
    answer = await post(client, [good, good | {"id": "2"} | change], "application/cloudevents-batch+json")
    assert [result["status"] for result in answer["results"]] == ["accepted", "rejected"]
    error = answer["results"][1]["error"]
    assert (error["field"], error["code"]) == (attribute, code)
    assert not {"stream", "customerRef", "causalityKey"} & set(error["message"].split())


async def test_a_cloudevent_in_binary_form_is_the_same_event(client: httpx.AsyncClient, tenant: str) -> None:
    """As PyPI's cloudevents sends it: attributes in headers, percent-encoded, and the data in the body."""
    event = cloudevent(tenant, id="ü 1", subject='Euro € "😀"', quantity="2.50", op="upsert")
    sent = to_binary_event(event)
    assert sent.headers["ce-specversion"] == "1.0"
    assert sent.headers["ce-subject"].isascii()
    # Without a type of its own the data is JSON, and the package sends none.
    response = await client.post("/v1/events", content=sent.body, headers=sent.headers)
    answer, content_type = response.json(), "application/json"
    assert answer["results"][0]["idempotencyKey"] == '["/shop","ü 1"]'
    structured = to_structured_event(event)
    for _ in range(2):
        assert (await post(client, structured.body, structured.headers["content-type"]))["duplicates"] == 1
    (stored,) = await recorded(client, tenant)
    assert (stored["stream"], stored["customerRef"], stored["quantity"]) == ("orders", 'Euro € "😀"', "2.5")
    assert (stored["data"], stored["occurredAt"]) == ({"total": 5}, "2026-01-01T00:00:00Z")

    # Structured content wins; what is wrong has the attribute's name; a body that is not what it says is unreadable.
    wins = await post(client, structured.body, structured.headers["content-type"], **sent.headers | {"ce-id": "2"})
    assert wins["duplicates"] == 1
    old = await post(client, b"{}", content_type, **sent.headers | {"ce-specversion": "0.3"})
    assert old["results"][0]["error"]["field"] == "specversion"
    late = await post(client, b"{}", content_type, **sent.headers | {"ce-id": "3", "ce-time": "now"})
    assert late["results"][0]["error"]["field"] == "time"
    for body in (b"{", b'{"a":"\xff"}'):
        response = await client.post("/v1/events", content=body, headers={"content-type": content_type, **sent.headers})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")
    foreign = {"content-type": "text/plain; charset=utf-16", **sent.headers}
    assert (await client.post("/v1/events", content=b"x", headers=foreign)).status_code == 415
    for body in (b'{"a":"\\u0000"}', b'{"a":"\\ud800"}', b'{"a":%s}' % (b"1" * 401), b"[" * 5000 + b"]" * 5000):
        answer = await post(client, body, content_type, **sent.headers | {"ce-id": "4"})
        assert answer["results"][0]["error"]["code"] == "invalid_event"


async def test_what_npms_cloudevents_sends_is_taken_with_its_identity(
    server: Serving, client: httpx.AsyncClient, tenant: str
) -> None:
    need_javascript()
    common = {"type": "orders", "source": "/npm", "tenantid": tenant, "time": "2026-01-01T00:00:00Z"}
    events = [
        {**common, "id": "1", "subject": "cus ü", "data": {"total": 5}}, {**common, "id": "1", "data": {"total": 6}},
        {**common, "id": "2", "data": "plain", "datacontenttype": "text/plain"},
        {**common, "id": "3", "bytes": "AP+A", "datacontenttype": "application/octet-stream"},
    ]  # fmt: skip
    command = ["node", str(CLIENTS / "produce.mjs"), server.url, json.dumps(events)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    answered, _ = await process.communicate()
    results = [json.loads(line)["results"][0] for line in answered.splitlines()]
    assert [result["status"] for result in results] == ["accepted", "conflict", "accepted", "accepted"]
    stored = await recorded(client, tenant)
    assert [event["data"] for event in stored] == [{"total": 5}, "plain", "AP+A"]
    assert [event["idempotencyKey"] for event in stored] == [f'["/npm","{number}"]' for number in (1, 2, 3)]
    assert stored[0]["customerRef"] == "cus ü"


async def test_the_idempotency_key_of_a_request_is_that_of_its_only_event(
    client: httpx.AsyncClient, tenant: str
) -> None:
    event = {"tenantId": tenant, "stream": "s"}
    for key, read in (
        ('"order-1"', "order-1"),
        ("order-1", "order-1"),
        ('"a \\"b\\""', 'a "b"'),
        ("order-2", "order-2"),
    ):
        for body in (event, [event], {"events": [event]}, {"events": [event | {"idempotencyKey": read}]}):
            (result,) = (await post(client, body, **{"idempotency-key": key}))["results"]
            assert (result["idempotencyKey"], result["keySource"]) == (read, "client")
    assert len(await recorded(client, tenant)) == 3
    assert (await post(client, {"events": []}, **{"idempotency-key": "k"}))["accepted"] == 0
    assert (await post(client, {"no": 1}, **{"idempotency-key": "k"}))["rejected"] == 1

    cloud, cloud_type = to_structured_event(cloudevent(tenant, id="1")).body, "application/cloudevents+json"
    twice = [("idempotency-key", "a"), ("idempotency-key", "b")]
    for sent, content_type, keys in (
        (json.dumps([event, event]), "application/json", [("idempotency-key", "k")]),
        (json.dumps([event, {"no": 1}]), "application/json", [("idempotency-key", "k")]),
        (json.dumps(event | {"idempotencyKey": "own"}), "application/json", [("idempotency-key", "k")]),
        (json.dumps(event), "application/json", [("idempotency-key", '""')]),
        (json.dumps(event), "application/json", twice),
        (cloud, cloud_type, [("idempotency-key", "k")]),
    ):
        response = await client.post("/v1/events", content=sent, headers=[("content-type", content_type), *keys])
        assert (response.status_code, response.json()["error"]["field"]) == (400, "Idempotency-Key")
    assert len(await recorded(client, tenant)) == 3
    (result,) = (await post(client, event, **{"idempotency-key": "x" * 1025}))["results"]
    assert (result["error"]["code"], result["error"]["field"]) == ("invalid_event", "idempotencyKey")


async def test_corrections_come_in_every_form_and_are_found_by_their_batch(
    client: httpx.AsyncClient, tenant: str
) -> None:
    events = [{"tenantId": tenant, "stream": "s", "idempotencyKey": f"k{n}", "quantity": n} for n in range(5)]
    await post(client, events)
    void = {"tenantId": tenant, "stream": "s", "op": "void", "batchId": "fix", "reason": "so"}
    lines = "\n".join(json.dumps(void | {"target": f"k{n}"}) for n in (0, 0, 9))
    cloud = {"specversion": "1.0", "source": "/fixes", "id": "1", "type": "s", "tenantid": tenant}
    cloud |= {"op": "amend", "target": "k1", "quantity": "7", "reason": "so", "batchid": "fix"}
    headers = {f"ce-{name}": str(value) for name, value in (cloud | {"id": "2", "target": "k2"}).items()}
    found = [
        await post(client, lines.encode(), "application/x-ndjson"),
        await post(client, void | {"target": "k3"}),
        await post(client, {"events": [void | {"target": "k4"}]}),
        await post(client, cloud, "application/cloudevents+json"),
        await post(client, b"", **headers),
        await post(client, [cloud | {"id": "3", "op": "void"}], "application/cloudevents-batch+json"),
    ]
    assert [[result["status"] for result in answer["results"]] for answer in found] == [
        ["accepted", "duplicate", "rejected"], ["accepted"], ["accepted"], ["accepted"], ["accepted"], ["rejected"]
    ]  # fmt: skip
    assert found[0]["results"][2]["error"]["code"] == "unknown_target"
    error = found[5]["results"][0]["error"]
    assert (error["code"], error["field"]) == ("invalid_event", "quantity")
    query = {"tenantId": tenant, "batchId": "fix"}
    items = (await client.get("/admin/events", params=query)).json()["items"]
    assert [(item["op"], item["target"], item["quantity"], item["reason"]) for item in items] == [
        ("void", "k0", None, "so"), ("void", "k3", None, "so"), ("void", "k4", None, "so"),
        ("amend", "k1", "7", "so"), ("amend", "k2", "7", "so"),
    ]  # fmt: skip
    originals = {item["idempotencyKey"]: item["ingressSequence"] for item in await recorded(client, tenant)}
    assert [item["targetSequence"] for item in items] == [originals[item["target"]] for item in items]


async def test_a_batch_of_cloudevents_is_taken_event_by_event(client: httpx.AsyncClient, tenant: str) -> None:
    bodies = [json.loads(to_structured_event(cloudevent(tenant, id=str(number))).body) for number in range(3)]
    del bodies[1]["source"]
    answer = await post(client, bodies, "application/cloudevents-batch+json; charset=utf-8")
    assert [result["status"] for result in answer["results"]] == ["accepted", "rejected", "accepted"]
    assert answer["results"][1]["error"]["field"] == "source"


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [("gzip", gzip.compress), ("GZIP", gzip.compress), ("zstd", zstandard.compress), ("identity", bytes)],
)
async def test_compressed_bodies_are_the_same_bodies(
    client: httpx.AsyncClient, tenant: str, encoding: str, packed: Any
) -> None:
    body = json.dumps([{"tenantId": tenant, "stream": "s", "data": "x" * 1000}] * 500).encode()
    answer = await post(client, packed(body), "application/json", **{"content-encoding": encoding})
    assert answer["accepted"] == 500


async def test_a_chunked_body_is_a_body(client: httpx.AsyncClient, tenant: str) -> None:
    async def chunks() -> Any:
        for part in (b'[{"stream":', b'"s","tenantId":"', tenant.encode(), b'"}]'):
            yield part

    headers = {"content-type": "application/json"}
    response = await client.post("/v1/events", content=chunks(), headers=headers)
    assert response.json()["accepted"] == 1


async def test_a_repeat_in_one_batch_or_between_requests_has_the_originals_sequence(
    client: httpx.AsyncClient, tenant: str
) -> None:
    event = {
        "tenantId": tenant,
        "stream": "s",
        "customerRef": "c",
        "ts": "2026-01-01T00:00:00Z",
        "data": {"a": 1, "b": 2},
    }
    reordered = {**event, "data": {"b": 2, "a": 1}}
    first = (await post(client, [event, event, reordered]))["results"]
    assert [result["status"] for result in first] == ["accepted", "duplicate", "duplicate"]
    again = (await post(client, event))["results"][0]
    assert {result["ingressSequence"] for result in [*first, again]} == {first[0]["ingressSequence"]}
    assert set(again) == {"status", "ingressSequence", "idempotencyKey", "keySource"}


async def test_of_concurrent_sends_exactly_one_is_accepted(client: httpx.AsyncClient, tenant: str) -> None:
    events = [
        {"tenantId": tenant, "stream": "s", "customerRef": str(number), "ts": "2026-01-01T00:00:00Z"}
        for number in range(20)
    ]
    answers = await asyncio.gather(*(post(client, events) for _ in range(8)))
    for number in range(20):
        statuses = sorted(answer["results"][number]["status"] for answer in answers)
        assert statuses == ["accepted"] + ["duplicate"] * 7
        assert len({answer["results"][number]["ingressSequence"] for answer in answers}) == 1


async def test_other_content_under_one_key_is_a_conflict_and_the_original_stays(
    client: httpx.AsyncClient, tenant: str
) -> None:
    event = {"tenantId": tenant, "stream": "s", "idempotencyKey": "k", "quantity": 1, "data": {"a": 1}}
    answer = await post(
        client, [event, {**event, "quantity": 2}, {**event, "data": {"a": True}}, {**event, "source": "x"}]
    )
    assert [result["status"] for result in answer["results"]] == ["accepted", "conflict", "conflict", "duplicate"]
    assert answer["results"][1] == {
        "status": "conflict", "idempotencyKey": "k", "keySource": "client",
        "ingressSequence": answer["results"][0]["ingressSequence"],
    }  # fmt: skip
    assert [stored["quantity"] for stored in await recorded(client, tenant)] == ["1"]


async def test_without_time_and_key_a_retry_is_not_safe_and_the_verdict_says_so(
    client: httpx.AsyncClient, tenant: str
) -> None:
    answers = [(await post(client, {"tenantId": tenant, "stream": "s"}))["results"][0] for _ in range(2)]
    assert [answer["retrySafe"] for answer in answers] == [False, False]
    assert answers[0]["keySource"] == "none"
    assert answers[0]["idempotencyKey"] is None
    assert len(await recorded(client, tenant)) == 2


async def test_a_timestamp_too_far_ahead_is_rejected_and_one_nearby_taken(
    client: httpx.AsyncClient, tenant: str
) -> None:
    now = datetime.now(UTC)
    near, far = (now + timedelta(minutes=minutes) for minutes in (55, 65))
    answer = await post(client, [{"tenantId": tenant, "stream": "s", "ts": at.isoformat()} for at in (near, far)])
    assert answer["results"][0]["status"] == "accepted"
    assert answer["results"][1]["error"]["code"] == "future_timestamp"
    assert answer["results"][1]["error"]["field"] == "ts"


async def test_array_order_is_ledger_order_and_one_request_has_one_time(client: httpx.AsyncClient, tenant: str) -> None:
    events = [
        {"tenantId": tenant, "stream": "s", "ts": f"2026-01-0{9 - number}T00:00:00Z", "data": number}
        for number in range(1, 9)
    ]
    answer = await post(client, events)
    sequences = [result["ingressSequence"] for result in answer["results"]]
    assert sequences == list(range(sequences[0], sequences[0] + 8))
    assert len({result["sourceTimestamp"] for result in answer["results"]}) == 1
    assert [stored["data"] for stored in await recorded(client, tenant)] == list(range(1, 9))


async def test_only_declared_and_metered_streams_are_taken_unless_they_are_open(start: Start) -> None:
    definitions = parse_definitions({"streams": {"declared": {}}, "meters": {"metered": {"aggregation": "sum"}}})
    async with (
        start(streams_open=False, definitions=definitions) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        answer = await post(client, [{"stream": "declared"}, {"stream": "metered"}, {"stream": "other"}])
    assert [result["status"] for result in answer["results"]] == ["accepted", "accepted", "rejected"]
    assert answer["results"][2]["error"]["code"] == "unknown_stream"


async def test_a_keyed_stream_takes_its_row_key_from_data(start: Start) -> None:
    definitions = parse_definitions({"streams": {"trades": {"key": "id", "columns": {"id": "bigint"}}}})
    async with start(definitions=definitions) as server, httpx.AsyncClient(base_url=server.url) as client:
        trade = {"stream": "trades", "ts": "2026-01-01T00:00:00Z"}
        answer = await post(client, [{**trade, "data": {"id": 1}}, {**trade, "data": {"id": 2}}, trade])
    assert [result["status"] for result in answer["results"]] == ["accepted", "accepted", "rejected"]
    assert answer["results"][2]["error"]["field"] == "id"


async def test_a_missing_tenant_is_the_default_one(start: Start) -> None:
    async with start() as server, httpx.AsyncClient(base_url=server.url) as client:
        await post(client, {"stream": "s"})
        assert [stored["stream"] for stored in await recorded(client, "default")] == ["s"]
