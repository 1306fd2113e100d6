"""Short ways to read documents over the tables of these tests, and to have them answered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.graphql.tables import DEFINITIONS, SHAPE, TABLES
from tidelock.graphql.documents import Documents, Operation
from tidelock.graphql.execution import GraphQL
from tidelock.graphql.fields import RowsField
from tidelock.graphql.requests import Request, RequestRefused, read_variables
from tidelock.graphql.schema import make_schema
from tidelock.postgres.database import Database
from tidelock.postgres.pool import Connections
from tidelock.settings import Settings
from tidelock.views.catalog import silent_tables

Json = dict[str, Any]

DOCUMENTS = Documents(make_schema(TABLES.values(), silent_tables(SHAPE)), document_bytes_max=65_536)


def read(query: str, variables: Json | None = None, name: str | None = None) -> Operation:
    return DOCUMENTS.read(Request(query, name, variables, len(query)))


def rows(query: str, variables: Json | None = None) -> RowsField:
    (field,) = read(query, variables).fields
    assert isinstance(field, RowsField)
    return field


def refused(query: str, variables: Json | None = None, name: str | None = None) -> list[Json]:
    with pytest.raises(RequestRefused) as raised:
        read(query, variables, name)
    for error in raised.value.errors:
        assert error["message"]
        assert set(error) <= {"message", "locations", "extensions"}
    return raised.value.errors


def where(filter_: str, column: str = "") -> str:
    return f"{{ kinds(where: {filter_}) {{ id {column} }} }}"


class Asker:
    """Asks as a tenant, or as all of them (None)."""

    def __init__(self, database: Database, **settings: Any) -> None:
        self.connections = Connections(database, size_max=4)
        given = Settings(**{"definitions": DEFINITIONS, **settings})
        self.graphql = GraphQL(self.connections, self.connections, given)

    async def __call__(self, query: str, tenant: str | None = None, **variables: Any) -> Any:
        return json.loads(await self.text(query, tenant, json.dumps(variables)))["data"]

    async def text(self, query: str, tenant: str | None, variables: str = "{}") -> str:
        operation = await self.graphql.prepare(Request(query, None, read_variables(variables), len(variables)))
        return (await self.graphql.execute(operation, tenant)).decode()

    async def refused(self, query: str, tenant: str | None = None) -> Json:
        with pytest.raises(RequestRefused) as raised:
            await self(query, tenant)
        return raised.value.errors[0]
