"""Trying meters over HTTP: what is answered, and who may try others than those in force."""

from __future__ import annotations

from typing import Any

import httpx

from tests.http.test_access import bearer, make_key
from tests.serving import Start
from tidelock.definitions import parse_definitions

EVENT = {"stream": "calls", "customerRef": "c", "quantity": 2, "ts": "2026-03-10T12:00:00Z"}


async def test_an_event_is_tried_and_not_recorded(start: Start) -> None:
    definitions = parse_definitions({"meters": {"calls": {}}})
    async with start(definitions=definitions) as serving, httpx.AsyncClient(base_url=serving.url) as api:
        found = await tried(api, {"event": EVENT})
        assert found["items"] == [
            {
                "metric": "calls", "outcome": "folded", "reason": None, "why": "it changes value and total",
                "periodStart": "2026-03-01T00:00:00Z", "periodEnd": "2026-04-01T00:00:00Z", "group": None,
                "quantity": "2", "watermark": None,
            }
        ]  # fmt: skip
        other = await tried(api, {"event": EVENT, "definitions": "[meters.calls]\nwhere = { quantity = { _gt = 2 } }"})
        assert [item["reason"] for item in other["items"]] == ["filtered"]
        assert (await api.get("/admin/events")).json()["items"] == []
        for body, status, field in (
            ({"event": EVENT, "definitions": "[meters"}, 422, "definitions"),
            ({"event": EVENT, "definitions": '[meters.calls]\naggregation = "median"'}, 422, "definitions"),
            ({"events": []}, 400, None),
            ({"event": [EVENT, EVENT]}, 413, None),
        ):
            answer = await api.post("/v1/meters/try", json=body)
            assert (answer.status_code, answer.json()["error"]["field"]) == (status, field), answer.text

        reader = await make_key(serving, "acme", ["read"])
        with_key = bearer(reader)
        answer = await api.post("/v1/meters/try", json={"event": {**EVENT, "tenantId": "other"}}, headers=with_key)
        assert answer.json()["error"]["code"] == "tenant_mismatch"
        answer = await api.post("/v1/meters/try", json={"event": EVENT, "definitions": ""}, headers=with_key)
        assert answer.status_code == 403

        admin = bearer(await make_key(serving, "*", ["read", "admin"]))
        answer = await api.post("/v1/meters/diff", json={"definitions": ""}, headers=admin)
        assert (answer.status_code, "nothing has been folded" in answer.text) == (400, True)
        theirs = bearer(await make_key(serving, "acme", ["read", "admin"]))
        for method in ("GET", "POST", "DELETE"):
            assert (await api.request(method, "/v1/meters/diff", headers=theirs)).status_code == 403
        assert (await api.post("/v1/meters/diff", headers=with_key)).status_code == 403


async def tried(api: httpx.AsyncClient, body: Any) -> Any:
    answer = await api.post("/v1/meters/try", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()
