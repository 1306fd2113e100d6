"""Queries while tables change: their shapes, their rows, and how much of them an answer has."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from graphql import build_client_schema, get_introspection_query, print_schema

from tests.fold import folded
from tests.graphql.answering import Asker
from tests.graphql.tables import DEFINITIONS, TABLES
from tidelock.definitions import Definitions, parse_definitions
from tidelock.graphql.fields import OneRowField, RowsField
from tidelock.graphql.queries import QueryAnswer
from tidelock.graphql.requests import Request, RequestRefused
from tidelock.postgres.database import Database
from tidelock.tables import SCHEMA, tables_of

pytestmark = pytest.mark.check


def trades(*columns: str) -> Definitions:
    table = {"key": "id", "columns": {"id": "bigint", **dict.fromkeys(columns, "string")}}
    return parse_definitions({"streams": {"trades": table}})


@asynccontextmanager
async def asking(database: Database, **settings: Any) -> AsyncIterator[Asker]:
    asker = Asker(database, **settings)
    yield asker
    await asker.connections.close()


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[folded.Connection]:
    async with await database.connect() as opened:
        yield opened


async def make(connection: folded.Connection, definitions: Definitions, version: int, *names: str) -> None:
    tables = await folded.define(connection, definitions, version)
    for name in names:
        await connection.execute(f"DROP TABLE IF EXISTS {SCHEMA}.{name}".encode())
        await folded.create(connection, tables[name])


async def test_before_the_fold_has_run_declared_tables_are_empty(database: Database) -> None:
    async with asking(database) as ask:
        found = await ask("{ kinds { id } kinds_by_pk(id: 1) { id } counters { metric } volume { s } }")
        assert found == {"kinds": [], "kinds_by_pk": None, "counters": [], "volume": []}
        assert (await ask("{ kinds { id } }")) == {"kinds": []}


async def test_the_schema_is_that_of_the_current_definitions(database: Database, connection: folded.Connection) -> None:
    async with asking(database, definitions=trades()) as ask:
        declared = await ask.graphql.current()
        assert await ask.graphql.current() is declared
        await make(connection, trades("a"), 1, "trades")
        first = await ask.graphql.current()
        assert first is not declared
        assert await ask.graphql.current() is first
        assert await ask("{ trades { id a } }") == {"trades": []}
        await make(connection, trades("a", "b"), 2, "trades")
        assert await ask("{ trades { id a b } }") == {"trades": []}
        assert await ask.graphql.current() is not first
        assert (await ask.refused("{ trades { c } }"))["extensions"]["code"] == "validation_failed"


async def test_a_table_that_gets_another_shape_meanwhile_is_asked_again(
    database: Database, connection: folded.Connection
) -> None:
    async with asking(database, definitions=trades()) as ask:
        await make(connection, trades("a"), 1, "trades")
        operation = await ask.graphql.prepare(Request("{ trades { id } counters { metric } }"))
        lost = await ask.graphql.prepare(Request("{ trades { a } counters { metric } }"))
        await make(connection, parse_definitions({}), 2)
        await connection.execute(f"DROP TABLE {SCHEMA}.trades".encode())
        with pytest.raises(RequestRefused) as raised:
            await ask.graphql.execute(operation, None)
        assert raised.value.errors[0]["extensions"]["code"] == "validation_failed"
        await make(connection, trades("b"), 3, "trades")
        await folded.put(connection, tables_of(trades("b"))["trades"], "t", "1", {"id": 1, "b": "x"})
        assert json.loads(await ask.graphql.execute(operation, "t"))["data"]["trades"] == [{"id": "1"}]
        with pytest.raises(RequestRefused):
            await ask.graphql.execute(lost, "t")


async def test_a_failure_of_the_database_is_not_a_change_of_shape(
    database: Database, connection: folded.Connection
) -> None:
    async with asking(database, definitions=trades()) as ask:
        await make(connection, trades("a"), 1, "trades")
        await connection.execute(f"DROP TABLE {SCHEMA}.trades".encode())
        with pytest.raises(psycopg.errors.UndefinedTable):
            await ask("{ trades { id } }")
        assert await ask("{ counters { metric } }") == {"counters": []}


async def test_an_answer_has_a_limited_number_of_bytes_but_at_least_one_row(
    database: Database, connection: folded.Connection
) -> None:
    async with asking(database, page_bytes_max=1_024) as ask:
        await make(connection, DEFINITIONS, 1, "kinds")
        for number in range(3):
            row = {"id": number, "s": "x" * 600, "j": json.dumps(["y" * 2_000])}
            await folded.put(connection, TABLES["kinds"], "t", str(number), row)
        assert len((await ask("{ kinds(limit: 1) { j } }"))["kinds"]) == 1
        assert len((await ask("{ kinds { id } }"))["kinds"]) == 3
        for query in ("{ kinds { s } }", '{ a: kinds_by_pk(id: 1, tenant_id: "t") { s } kinds(limit: 1) { s } }'):
            error = await ask.refused(query)
            assert error["extensions"] == {"code": "result_too_large", "field": "kinds"}
            assert "page_bytes_max" in error["message"]


async def test_the_fields_of_a_query_are_of_one_moment(database: Database, connection: folded.Connection) -> None:
    await make(connection, DEFINITIONS, 1, "kinds", "pairs")
    stop = asyncio.Event()

    async def write() -> None:
        number = 0
        while not stop.is_set():
            async with connection.transaction():
                await folded.put(connection, TABLES["kinds"], "t", str(number), {"id": number})
                await folded.put(connection, TABLES["pairs"], "t", str(number), {"s": "s", "i": number})
            number += 1

    writing = asyncio.create_task(write())
    seen = set()
    async with asking(database) as ask:
        for _ in range(40):
            found = await ask("{ a: kinds { id } b: pairs { i } c: kinds { id } }", "t")
            assert len(found["a"]) == len(found["b"]) == len(found["c"])
            seen.add(len(found["a"]))
    stop.set()
    await writing
    assert len(seen) > 1, "it was written meanwhile"


async def test_introspection_is_answered_beside_rows(database: Database, connection: folded.Connection) -> None:
    await make(connection, DEFINITIONS, 1, "kinds")
    async with asking(database) as ask:
        told = await ask(get_introspection_query())
        schema = (await ask.graphql.current()).schema
        assert print_schema(build_client_schema(told)) == print_schema(schema)
        query = """query($name: String! = "pairs") {
            one: __type(name: $name) { ...T } kinds { id } two: __type(name: "kinds") { ...T }
            three: __type(name: "x") { name }
        } fragment T on __Type { name fields { name } }"""
        found = await ask(query, name="order_by")
        assert list(found) == ["one", "kinds", "two", "three"]
        assert found["one"] == {"name": "order_by", "fields": None}
        assert found["two"]["fields"][:2] == [{"name": "tenant_id"}, {"name": "id"}]
        assert found["three"] is None


@pytest.mark.parametrize(
    "inside",
    [
        " ".join(f"a{i}: types {{ fields {{ name }} }}" for i in range(1_000)),
        "types { fields { " + " ".join(f"a{i}: name" for i in range(3_000)) + " } }",
        "types { ...F } ".replace(
            "...F", " ".join(f"a{i}: fields {{ args {{ type {{ ...T }} }} }}" for i in range(200))
        ),
    ],
)
async def test_a_client_that_asks_for_too_much_of_the_schema_gets_an_error(database: Database, inside: str) -> None:
    fragment = "fragment T on __Type { a: ofType { name } b: ofType { name } c: ofType { name } }"
    async with asking(database) as ask:
        error = await ask.refused(f"{{ __schema {{ {inside} }} }} {fragment if '...T' in inside else ''}")
        assert error["extensions"] == {"code": "limit_exceeded"}


async def test_many_fields_together_have_no_more_of_the_schema_than_one(database: Database) -> None:
    every = "__schema { types { name fields { name args { name type { name } } type { name } } } }"
    async with asking(database) as ask:
        assert len(await ask("{" + " ".join(f"a{i}: {every}" for i in range(3)) + "}")) == 3
        error = await ask.refused("{" + " ".join(f"a{i}: {every}" for i in range(50)) + "}")
        assert error["extensions"] == {"code": "limit_exceeded"}


@pytest.mark.parametrize(
    "query",
    [
        "query($x: Boolean = true) { __schema { types { name @skip(if: $x) kind } } }",
        'query($x: String = "kinds") { __type(name: $x) { name } }',
    ],
)
async def test_the_schema_is_not_asked_with_null(database: Database, query: str) -> None:
    async with asking(database) as ask:
        operation = await ask.graphql.prepare(Request(query, None, {"x": None}))
        with pytest.raises(RequestRefused) as raised:
            await ask.graphql.execute(operation, None)
        assert {error["extensions"]["code"] for error in raised.value.errors} == {"invalid_variables"}


async def explained(connection: folded.Connection, ask: Asker, query: str) -> str:
    """How Postgres would find the rows of a query's only field."""
    (field,) = (await ask.graphql.prepare(Request(query))).fields
    assert isinstance(field, RowsField | OneRowField)
    select = QueryAnswer("t", bytes_max=1)._select(field, ["tenant_id"])
    rows: Sequence[Any] = await (await connection.execute(psycopg.sql.SQL("EXPLAIN ") + select)).fetchall()
    return "\n".join(row[0] for row in rows)


async def test_keys_and_their_first_columns_are_looked_up_in_the_index(
    database: Database, connection: folded.Connection
) -> None:
    await make(connection, DEFINITIONS, 1, "pairs", "kinds")
    async with asking(database) as ask:
        for query, condition in (
            ("{ kinds_by_pk(id: 5) { id } }", "(\"$key\" = '5'::text)"),
            ('{ pairs_by_pk(s: "a", i: 5) { s } }', """("$key" = '["a","5"]'::text)"""),
            ('{ pairs(where: {s: {_eq: "a"}}) { s } }', """("$key" >= '["a",'::text)"""),
            ('{ counters(where: {customer_ref: {_eq: "c"}, metric: {_eq: "m"}}) { value } }', """'["m","c",'"""),
        ):
            plan = await explained(connection, ask, query)
            assert "Index Cond" in plan
            assert condition in plan, plan
        assert '$key" >=' not in await explained(connection, ask, '{ pairs(where: {s: {_gt: "a"}}) { s } }')
