"""Short ways to read documents over the tables of these tests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live.tables import DEFINITIONS, TABLES
from tidelock.live.documents import Documents, Operation
from tidelock.live.fields import Rows
from tidelock.live.refusals import Refused
from tidelock.live.requests import Request
from tidelock.live.schema import make_schema, silent_tables

Json = dict[str, Any]

DOCUMENTS = Documents(make_schema(TABLES.values(), silent_tables(DEFINITIONS)), document_bytes_max=65_536)


def read(query: str, variables: Json | None = None, name: str | None = None) -> Operation:
    return DOCUMENTS.read(Request(query, name, variables, len(query)))


def rows(query: str, variables: Json | None = None) -> Rows:
    (field,) = read(query, variables).fields
    assert isinstance(field, Rows)
    return field


def refused(query: str, variables: Json | None = None, name: str | None = None) -> list[Json]:
    with pytest.raises(Refused) as raised:
        read(query, variables, name)
    for error in raised.value.errors:
        assert error["message"]
        assert set(error) <= {"message", "locations", "extensions"}
    return raised.value.errors


def where(filter_: str, column: str = "") -> str:
    return f"{{ kinds(where: {filter_}) {{ id {column} }} }}"
