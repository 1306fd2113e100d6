"""Fuzzing: whatever comes in, the answer has its form, the server lives, and neighbours are not harmed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import schemathesis
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.core.result import Ok

from tests.budgets import examples
from tests.serving import Threaded

MEDIA_TYPES = (
    "application/json", "application/x-ndjson", "application/cloudevents+json", "application/cloudevents-batch+json",
    "text/plain", "",
)  # fmt: skip
FIELDS = (
    "tenantId", "stream", "metric", "customerRef", "resourceId", "ts", "occurredAt", "quantity", "data", "meta",
    "payload", "op", "causalityKey", "correlationId", "causationId", "idempotencyKey", "source", "specversion", "id",
    "type", "subject", "time", "unknown", "events",
)  # fmt: skip
LIMITS = settings(
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

TEXT = st.text() | st.sampled_from(["", "\0", "s", "1.0", "2026-01-01T00:00:00Z", "NaN", "1e999", "*", "_tidelock"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=15,
)
EVENTS = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=8)
VALID = json.dumps(
    {"events": [{"stream": "s", "ts": "2026-01-01T00:00:00Z", "data": {"a": [1, "\u00e4"]}}] * 3}
).encode()


@pytest.fixture(scope="module")
def client(threaded: Threaded) -> Iterator[httpx.Client]:
    with threaded() as url, httpx.Client(base_url=url) as opened:
        yield opened


def send(client: httpx.Client, body: bytes, media_type: str, encoding: str = "") -> Any:
    headers = {"content-type": media_type, "content-encoding": encoding}
    response = client.post("/v1/events", content=body, headers=headers)
    answer = response.json()
    if response.status_code == 200:
        assert set(answer) == {"accepted", "duplicates", "conflicts", "rejected", "results"}
        assert len(answer["results"]) == sum(
            answer[kind] for kind in ("accepted", "duplicates", "conflicts", "rejected")
        )
        for result in answer["results"]:
            if result["status"] == "rejected":
                assert set(result["error"]) == {"code", "message", "field"}
    else:
        assert response.status_code in (400, 413, 415), response.text
        assert set(answer["error"]) == {"code", "message", "field"}
    return answer


@LIMITS
@given(
    body=st.binary(max_size=200),
    media_type=st.sampled_from(MEDIA_TYPES),
    encoding=st.sampled_from(["", "gzip", "zstd"]),
)
def test_any_bytes_are_answered_in_form(client: httpx.Client, body: bytes, media_type: str, encoding: str) -> None:
    send(client, body, media_type, encoding)


@LIMITS
@given(data=st.data(), media_type=st.sampled_from(MEDIA_TYPES))
def test_a_damaged_body_is_answered_in_form(client: httpx.Client, data: st.DataObject, media_type: str) -> None:
    body = bytearray(VALID)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(body) - 1))
        body[position : position + data.draw(st.integers(0, 5))] = data.draw(st.binary(max_size=3))
        if not body:
            break
    packs: dict[str, Callable[[bytes], bytes]] = {"": bytes, "gzip": gzip.compress, "zstd": zstandard.compress}
    encoding = data.draw(st.sampled_from(sorted(packs)))
    send(client, packs[encoding](bytes(body)), media_type, encoding)


@LIMITS
@given(bad=st.lists(EVENTS | JSON, min_size=1, max_size=4), wrapped=st.booleans())
def test_a_good_event_beside_any_other_is_accepted(client: httpx.Client, bad: list[Any], wrapped: bool) -> None:
    good = {"stream": "good"}
    events = [good, *bad, good]
    # NaN and Infinity are no JSON: then the whole body is refused, rightly.
    text = json.dumps({"events": events} if wrapped else events)
    answer = send(client, text.encode(), "application/json")
    if "error" not in answer:
        assert len(answer["results"]) == len(events)
        assert answer["results"][0]["status"] == answer["results"][-1]["status"] == "accepted"
    else:
        assert "NaN" in text or "Infinity" in text


@LIMITS
@given(lines=st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line and line.strip()), max_size=5))
def test_a_good_line_beside_any_other_is_accepted(client: httpx.Client, lines: list[bytes]) -> None:
    body = b"\n".join([b'{"stream":"good"}', *lines, b'{"stream":"good"}'])
    answer = send(client, body, "application/x-ndjson")
    assert len(answer["results"]) == len(lines) + 2
    assert answer["results"][0]["status"] == answer["results"][-1]["status"] == "accepted"


@LIMITS
@given(
    query=st.dictionaries(
        st.sampled_from(["stream", "after", "from", "cursor", "limit", "where", "x"]) | TEXT, TEXT, max_size=3
    )
)
def test_any_query_is_answered_in_form(client: httpx.Client, query: dict[str, str]) -> None:
    for path in ("/admin/events", "/v1/causality/k", "/v1/counters", "/v1/tables/error_rows", "/v1/usage"):
        response = client.get(path, params=query)
        assert response.status_code in (200, 400, 422)
        assert set(response.json()) in ({"items", "next"}, {"error"})


#: some of whose examples must be taken, or refused
TAKEN = ("/v1/events", "/admin/events")
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.mark.parametrize("mode", [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE])
def test_every_operation_answers_as_its_description_says(
    client: httpx.Client, mode: schemathesis.GenerationMode
) -> None:
    schema = schemathesis.openapi.from_url(str(client.base_url.join("/openapi.json")))
    statuses: dict[str, set[int]] = {}
    for result in schema.get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()

        budget = 10 if operation.path in TAKEN else 5

        @settings(max_examples=examples(budget), database=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def answers(case: schemathesis.Case[Any]) -> None:
            response = case.call_and_validate(checks=CHECKS)
            statuses.setdefault(case.path, set()).add(response.status_code)

        try:
            answers()
        except Unsatisfiable:
            assert mode is schemathesis.GenerationMode.NEGATIVE, "what has no parameters cannot be asked wrongly"
    print(statuses)
    expected = 200 if mode is schemathesis.GenerationMode.POSITIVE else 400
    assert all(expected in statuses[path] for path in TAKEN)
