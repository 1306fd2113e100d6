"""The catalogue: tables that can be followed and their columns, as the API's schema tells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidelock.console.api import Api, ApiError

_TABLES = "{ __schema { subscriptionType { fields { name } } } }"
_COLUMNS = "query($name: String!) { __type(name: $name) { fields { name description type { name ofType { name } } } } }"


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a table, in their order."""

    #: column -> its type in GraphQL
    types: Mapping[str, str]
    #: column -> its type as it was declared
    declared: Mapping[str, str]


async def live_tables(api: Api) -> list[str]:
    """Tables whose changes are recorded, so that they can be subscribed to and have triggers."""
    found = await query(api, _TABLES)
    fields = (found["__schema"]["subscriptionType"] or {"fields": []})["fields"]
    return [field["name"] for field in fields]


async def columns_of(api: Api, table: str) -> Columns:
    """The columns of a table; none of a table that is not there."""
    found = (await query(api, _COLUMNS, {"name": table}))["__type"] or {"fields": []}
    fields = found["fields"] or []
    types = {field["name"]: field["type"]["name"] or field["type"]["ofType"]["name"] for field in fields}
    return Columns(types, {field["name"]: field["description"] or "" for field in fields})


async def query(api: Api, text: str, variables: Mapping[str, Any] | None = None) -> Any:
    """The data that a GraphQL query gives. Raises ApiError."""
    answer = await api.send("POST", "/graphql", {"query": text, "variables": variables or {}})
    if answer.get("errors"):
        error = answer["errors"][0]
        raise ApiError(200, error.get("extensions", {}).get("code", "unknown"), error["message"])
    return answer["data"]
