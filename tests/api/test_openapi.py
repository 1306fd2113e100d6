"""The API's document is complete, and its page needs nothing from elsewhere."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tidelock.http.problems import install_problems

Json = dict[str, Any]

PATHS = {"/v1/periods", "/v1/periods/close", "/v1/statements", "/v1/meters/try",
    "/v1/meters/diff", "/v1/batches", "/v1/batches/preview", "/v1/batches/revert",
    "/v1/events", "/admin/events", "/v1/causality/{key}", "/v1/usage", "/v1/counters", "/v1/adjustments", "/v1/late",
    "/v1/errors", "/v1/tables/{table}", "/graphql", "/healthz", "/readyz", "/admin/event-health", "/metrics",
    "/v1/explain",
    "/v1/triggers", "/v1/triggers/{name}", "/v1/triggers/{name}/deliveries", "/v1/triggers/{name}/redeliver",
    "/v1/triggers/{name}/deliveries/{event_id}", "/admin/activity", "/admin/definitions", "/admin/verify",
}  # fmt: skip


async def test_every_route_is_described_with_its_errors(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    assert set(document["paths"]) == PATHS
    ingest = document["paths"]["/v1/events"]["post"]
    assert set(ingest["requestBody"]["content"]) == {
        "application/json", "application/x-ndjson", "application/cloudevents+json", "application/cloudevents-batch+json"
    }  # fmt: skip
    assert set(ingest["responses"]) == {"200", "400", "401", "403", "413", "415", "429", "503"}
    listed = document["paths"]["/admin/events"]["get"]
    assert [parameter["name"] for parameter in listed["parameters"]] == [
        "tenantId", "stream", "customerRef", "causalityKey", "correlationId", "source", "batchId", "targetSequence",
        "from", "to", "after", "before", "order", "limit", "cursor",
    ]  # fmt: skip
    for path, name, meant in (
        ("/v1/usage", "window", "Length of an item"), ("/v1/late", "window", "Only this window"),
        ("/admin/events", "source", "Only those that name"), ("/v1/errors", "source", "Only errors of this stream"),
    ):  # fmt: skip
        described = document["paths"][path]["get"]["parameters"]
        assert next(each["description"] for each in described if each["name"] == name).startswith(meant)
    for path in document["paths"].values():
        for operation in path.values():
            assert operation["summary"]
            for status, response in operation["responses"].items():
                assert status == "204" or response["content"], (operation["summary"], status)


async def test_every_reference_leads_somewhere(client: httpx.AsyncClient) -> None:
    response = await client.get("/openapi.json")
    schemas = response.json()["components"]["schemas"]
    for name in re.findall(r'"#/components/schemas/(\w+)"', response.text):
        assert name in schemas


async def test_the_docs_page_takes_everything_from_this_server(client: httpx.AsyncClient) -> None:
    page = (await client.get("/docs")).text
    assert "//" not in re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL).replace("// ", "").replace("http://127", "")
    assets = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(assets) == 3
    for asset in assets:
        assert asset.startswith("/")
        assert (await client.get(asset)).status_code == 200


async def test_the_front_door_leads_to_the_docs(client: httpx.AsyncClient) -> None:
    response = await client.get("/")
    assert response.status_code == 307
    assert response.headers["location"] == "/docs"


async def test_what_the_framework_validates_has_the_same_form() -> None:
    app = FastAPI()
    install_problems(app, retry_after_s=1)

    @app.get("/typed")
    async def typed(count: int) -> int:
        return count

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        response = await client.get("/typed", params={"count": "many"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_request"
    assert response.json()["error"]["field"] == "count"


#: what is written to, or needs parameters
NOT_READ = {
    "/v1/batches/preview",
    "/v1/batches/revert",
    "/v1/events",
    "/v1/usage",
    "/v1/explain",
    "/v1/meters/try",
    "/v1/periods/close",
    "/graphql",
}


@pytest.mark.parametrize("path", sorted(path for path in PATHS - NOT_READ if "{" not in path))
async def test_what_is_described_is_there(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code == 200
