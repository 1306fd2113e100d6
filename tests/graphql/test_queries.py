"""Queries over real rows: what a filter, an order, a limit and a key say, of whom it may be told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Databases
from tests.fold import folded
from tests.graphql.answering import Asker
from tests.graphql.tables import DEFINITIONS, TABLES
from tests.model.values import key_text
from tidelock.postgres.database import Database

pytestmark = pytest.mark.check

Json = dict[str, Any]

CASES = json.loads((Path(__file__).parent.parent / "cases" / "where.json").read_text())


@pytest.fixture(scope="module")
def own_database(databases: Databases) -> Any:
    with databases() as made:
        yield made


@pytest.fixture(scope="module")
async def connection(own_database: Database) -> AsyncIterator[folded.Connection]:
    async with await own_database.connect() as opened:
        await folded.define(opened, DEFINITIONS)
        for name in ("kinds", "pairs", "events", "volume", "packs", "readings_ordered", "quiet"):
            await folded.create(opened, TABLES[name])
        yield opened


@pytest.fixture(scope="module")
async def ask(own_database: Database, connection: folded.Connection) -> AsyncIterator[Asker]:
    asker = Asker(own_database)
    yield asker
    await asker.connections.close()


async def kind(connection: folded.Connection, tenant: str, number: int, **row: Any) -> None:
    await folded.put(connection, TABLES["kinds"], tenant, str(number), {"id": number, **row})


async def test_every_type_has_its_form(ask: Asker, connection: folded.Connection) -> None:
    row = {
        "s": "é\"'%\\", "i": -5, "b": 9007199254740993, "d": 1e-7, "n": "-10.5000", "o": False, "t": 1_500_000_001,
        "y": date(2026, 1, 31), "j": '{"b": 1.50,\n "a": [1]}',
    }  # fmt: skip
    await kind(connection, "forms", 2**62, **row)
    await kind(connection, "forms", 1)
    columns = " ".join(["tenant_id", *TABLES["kinds"].columns])
    assert await ask.text(f"{{ kinds(order_by: {{id: desc}}) {{ {columns} }} }}", "forms") == (
        f'{{"data":{{"kinds":[{{"tenant_id":"forms","id":"{2**62}","s":"é\\"\'%\\\\","i":-5,"b":"9007199254740993",'
        '"d":1e-7,"n":"-10.5","o":false,"t":"1970-01-01T00:00:01.500000001Z","y":"2026-01-31",'
        '"j":{"b": 1.50,  "a": [1]}},{"tenant_id":"forms","id":"1","s":null,"i":null,"b":null,"d":null,"n":null,'
        '"o":null,"t":null,"y":null,"j":null}]}}'
    )


async def test_names_fragments_and_directives_are_those_of_the_document(
    ask: Asker, connection: folded.Connection
) -> None:
    await kind(connection, "names", 7, s="a")
    query = """query($yes: Boolean = true) {
        first: kinds { key: id __typename ...F s @skip(if: $yes) }
        none: kinds(where: {id: {_gt: 7}}) { id }
        t: __typename
        one: kinds_by_pk(id: 7) { ...F __typename }
        missing: kinds_by_pk(id: 8) { id }
        empty: kinds { id @include(if: false) }
        kinds { __typename }
    } fragment F on kinds { s text: s }"""
    assert await ask(query, "names") == {
        "first": [{"key": "7", "__typename": "kinds", "s": "a", "text": "a"}],
        "none": [],
        "t": "Query",
        "one": {"s": "a", "text": "a", "__typename": "kinds"},
        "missing": None,
        "empty": [{}],
        "kinds": [{"__typename": "kinds"}],
    }
    assert list(await ask(query, "names")) == ["first", "none", "t", "one", "missing", "empty", "kinds"]


@pytest.mark.parametrize("number", range(len(CASES["cases"])))
async def test_every_case_of_filters_holds(ask: Asker, connection: folded.Connection, number: int) -> None:
    """`qty` is the column i, `sym` s, `ok` o."""
    names = {"id": "id", "qty": "i", "sym": "s", "ok": "o"}
    if number == 0:
        for row in CASES["rows"]:
            await kind(connection, "cases", row["id"], i=row["qty"], s=row["sym"], o=row["ok"])
    case = CASES["cases"][number]

    def renamed(given: Any) -> Any:
        if isinstance(given, dict):
            return {names.get(name, name): renamed(value) for name, value in given.items()}
        return [renamed(item) for item in given] if isinstance(given, list) else given

    matching = [str(row["id"]) for row, truth in zip(CASES["rows"], case["truth"], strict=True) if truth is True]
    where = renamed(case["where"])
    query = "query($w: kinds_bool_exp) { kinds(where: $w) { id } }"
    assert [row["id"] for row in (await ask(query, "cases", w=where))["kinds"]] == matching
    inline = f"{{ kinds(where: {_literal(where)}) {{ id }} }}"
    assert [row["id"] for row in (await ask(inline, "cases"))["kinds"]] == matching


def _literal(value: Any) -> str:
    """A value as a GraphQL document has it."""
    match value:
        case dict():
            return "{" + ", ".join(f"{name}: {_literal(member)}" for name, member in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_literal, value)) + "]"
        case _:
            return json.dumps(value)


@pytest.mark.parametrize(
    "where",
    [
        {"s": {"_eq": "%s {x} 'q' \\ $1"}},
        {"b": {"_in": ["9007199254740993"]}},
        {"b": {"_gt": 9007199254740992, "_lt": "9007199254740994"}},
        {"n": {"_lte": "0.0001"}},
        {"t": {"_gte": "2026-01-01T00:00:00Z"}},
        {"y": {"_lt": "2026-01-02"}},
        {"d": {"_eq": 0.1}},
        {"o": {"_eq": True}},
        {"j": {"_is_null": False}},
        {"_not": {"d": {"_is_null": True}}},
        {"id": {"_eq": "1"}, "tenant_id": {"_eq": "filters"}},
    ],
)
async def test_a_filter_finds_what_it_says(ask: Asker, connection: folded.Connection, where: Json) -> None:
    if not (await ask("{ kinds { id } }", "filters"))["kinds"]:
        row = {
            "s": "%s {x} 'q' \\ $1", "i": 5, "b": 9007199254740993, "d": 0.1, "n": "0.0001", "o": True,
            "t": 1_767_225_600_000_000_000, "y": date(2026, 1, 1), "j": "{}",
        }  # fmt: skip
        await kind(connection, "filters", 1, **row)
        await kind(connection, "filters", 2)
    found = await ask("query($w: kinds_bool_exp) { kinds(where: $w) { id } }", "filters", w=where)
    assert found == {"kinds": [{"id": "1"}]}


async def test_rows_come_in_the_order_that_was_asked_for(ask: Asker, connection: folded.Connection) -> None:
    for number, (text, whole) in enumerate([("b", 1), ("B", 2), ("é", None), (None, 2), ("b", 2), ("b", 1)]):
        await kind(connection, "orders", number, s=text, i=whole)

    async def ordered(order: str) -> str:
        found = await ask(f"{{ kinds(order_by: {order}) {{ id }} }}", "orders")
        return "".join(row["id"] for row in found["kinds"])

    assert await ordered("{s: asc}") == await ordered("{s: asc_nulls_last}") == "104523"
    assert await ordered("{s: desc}") == await ordered("{s: desc_nulls_first}") == "320451"
    assert await ordered("{s: asc_nulls_first}") == "310452"
    assert await ordered("{s: desc_nulls_last}") == "204513"
    assert await ordered("{i: asc, s: desc}") == await ordered("[{i: asc}, {s: desc}]") == "053412"
    assert await ordered("{s: desc, i: asc}") == "320541"
    assert await ordered("[]") == "012345"


async def test_ordered_rows_come_in_their_order_and_late_ones_by_sequence(
    ask: Asker, connection: folded.Connection
) -> None:
    for sequence, position in ((9, 2), (10, 1), (11, 3)):
        row = {"ingress_sequence": sequence, "position": position, "event_time": 1, "at": 1, "v": 0.5}
        await folded.put(connection, TABLES["readings_ordered"], "listed", str(sequence), row)
        await folded.late_row(connection, "listed", "volume", sequence, "2026-01-01T00:00:00Z")
    found = await ask("{ readings_ordered { position v } late_rows { ingress_sequence watermark } }", "listed")
    assert found["readings_ordered"] == [{"position": str(number), "v": 0.5} for number in (1, 2, 3)]
    assert [row["ingress_sequence"] for row in found["late_rows"]] == ["9", "10", "11"]
    assert found["late_rows"][0]["watermark"] == "2026-01-01T01:00:00Z"


async def test_limit_and_offset_cut_a_total_order(ask: Asker, connection: folded.Connection) -> None:
    for tenant in ("cut-1", "cut-2"):
        for number in range(10):
            await kind(connection, tenant, number, i=number % 2)
    both = 'where: {tenant_id: {_in: ["cut-1", "cut-2"]}}, order_by: {i: desc}'
    whole = (await ask(f"{{ kinds({both}) {{ tenant_id id i }} }}"))["kinds"]
    expected = [(tenant, number) for rest in (1, 0) for tenant in ("cut-1", "cut-2") for number in range(10)
                if number % 2 == rest]  # fmt: skip
    assert [(row["tenant_id"], int(row["id"])) for row in whole] == expected
    pages: list[Json] = []
    for offset in range(0, 25, 3):
        pages += (await ask(f"{{ kinds({both}, limit: 3, offset: {offset}) {{ tenant_id id i }} }}"))["kinds"]
    assert pages == whole
    assert (await ask(f"{{ kinds({both}, limit: 0) {{ id }} }}"))["kinds"] == []


async def test_without_a_limit_a_thousand_rows_are_answered_and_ten_thousand_at_most(
    ask: Asker, connection: folded.Connection
) -> None:
    await connection.execute(
        """INSERT INTO tidelock_tables.quiet (tenant_id, "$key", source_timestamp, id)
        SELECT 'many', n::text, 1, n FROM generate_series(1, 10050) AS n"""
    )
    assert len((await ask("{ quiet { id } }", "many"))["quiet"]) == 1_000
    assert len((await ask("{ quiet(limit: 10000) { id } }", "many"))["quiet"]) == 10_000
    assert (await ask.refused("{ quiet(limit: 10001) { id } }"))["extensions"]["code"] == "limit_exceeded"


async def test_a_row_of_every_table_is_found_by_its_key(ask: Asker, connection: folded.Connection) -> None:
    tenant, start = "keys", "2026-03-01T00:00:00Z"
    await folded.counter(connection, tenant, "api_calls", 'cus "1"', start, value="1.50")
    await folded.counter(connection, tenant, "api_calls", "cus", start, value="2", group_key="eu")
    await folded.adjustment(connection, tenant, "api_calls", "cus", 2**53 + 1)
    await folded.error_row(connection, tenant, "kinds", 5, "invalid_column")
    await folded.late_row(connection, tenant, "volume", 6, start)
    await folded.put(
        connection, TABLES["volume"], tenant, key_text(["a", start, "1970-01-01T00:00:10Z"]),
        {"s": "a", "t": 1_772_323_200_000_000_000, "window_start": 10_000_000_000, "window_end": 20_000_000_000},
    )  # fmt: skip
    await folded.put(connection, TABLES["packs"], tenant, "3", {"window_ordinal": 3, "rows": 7})
    await folded.put(connection, TABLES["events"], tenant, "cus", {"customer_ref": "cus", "data": "[1]"})
    await folded.put(connection, TABLES["pairs"], tenant, key_text(["x", "-1"]), {"s": "x", "i": -1, "n": "0.50"})
    row = {"ingress_sequence": 8, "position": 1, "event_time": 0}
    await folded.put(connection, TABLES["readings_ordered"], tenant, "8", row)
    await kind(connection, tenant, 2**60)
    query = """{
        counters_by_pk(metric: "api_calls", customer_ref: "cus \\"1\\"",
            period_start: "2026-03-01T01:00:00+01:00") { value }
        counter_groups_by_pk(metric: "api_calls", customer_ref: "cus", period_start: "2026-03-01T00:00:00Z",
            group_key: "eu") { value }
        adjustments_by_pk(metric: "api_calls", ingress_sequence: 9007199254740993) { amount ingress_sequence }
        error_rows_by_pk(source: "kinds", ingress_sequence: "5") { code }
        late_rows_by_pk(window: "volume", ingress_sequence: 6) { reason }
        volume_by_pk(s: "a", t: "2026-03-01T00:00:00Z", window_start: "1970-01-01T00:00:10Z") { window_end }
        packs_by_pk(window_ordinal: 3) { rows }
        events_by_pk(customer_ref: "cus") { data }
        pairs_by_pk(s: "x", i: -1) { n }
        readings_ordered_by_pk(ingress_sequence: 8) { event_time }
        kinds_by_pk(id: "1152921504606846976") { id }
    }"""
    assert list((await ask(query, tenant)).values()) == [
        {"value": "1.5"}, {"value": "2"}, {"amount": "1.5", "ingress_sequence": "9007199254740993"},
        {"code": "invalid_column"}, {"reason": "late"}, {"window_end": "1970-01-01T00:00:20Z"}, {"rows": "7"},
        {"data": [1]}, {"n": "0.5"}, {"event_time": "1970-01-01T00:00:00Z"}, {"id": "1152921504606846976"},
    ]  # fmt: skip
    assert set((await ask(query, "nobody")).values()) == {None}


async def test_nobody_sees_another_tenants_rows(ask: Asker, connection: folded.Connection) -> None:
    for tenant in ("mine", "yours", "default"):
        await kind(connection, tenant, 1, s=tenant)
    mine = [{"tenant_id": "mine", "s": "mine"}]
    for where in (
        "{}", "{id: {_eq: 1}}", '{tenant_id: {_neq: "mine"}}', '{tenant_id: {_eq: "yours"}}',
        '{_or: [{tenant_id: {_eq: "yours"}}, {id: {_eq: 1}}]}', '{_not: {tenant_id: {_eq: "mine"}}}',
        '{tenant_id: {_is_null: false}}', '{s: {_gte: ""}}',
    ):  # fmt: skip
        found = await ask(f"{{ kinds(where: {where}, order_by: {{tenant_id: desc}}) {{ tenant_id s }} }}", "mine")
        expected = [] if where in ('{tenant_id: {_neq: "mine"}}', '{tenant_id: {_eq: "yours"}}',
                                   '{_not: {tenant_id: {_eq: "mine"}}}') else mine  # fmt: skip
        assert found["kinds"] == expected, where
    one = "{ kinds_by_pk(id: 1 %s) { tenant_id s } }"
    assert (await ask(one % "", "mine"))["kinds_by_pk"] == mine[0]
    assert (await ask(one % ', tenant_id: "mine"', "mine"))["kinds_by_pk"] == mine[0]
    assert (await ask(one % ', tenant_id: "yours"', "mine"))["kinds_by_pk"] is None
    assert (await ask(one % ', tenant_id: "default"', "mine"))["kinds_by_pk"] is None


async def test_a_client_that_sees_all_tenants_may_name_one(ask: Asker, connection: folded.Connection) -> None:
    for tenant in ("all-1", "all-2", "default"):
        await kind(connection, tenant, 77, s=tenant)
    query = '{ kinds(where: {id: {_eq: 77}, tenant_id: {_neq: "all-2"}}) { s } }'
    assert [row["s"] for row in (await ask(query))["kinds"]] == ["all-1", "default"]
    assert (await ask("{ kinds_by_pk(id: 77) { s } }"))["kinds_by_pk"] == {"s": "default"}
    assert (await ask('{ kinds_by_pk(id: 77, tenant_id: "all-2") { s } }'))["kinds_by_pk"] == {"s": "all-2"}
    assert (await ask('{ kinds_by_pk(id: 77, tenant_id: "") { s } }'))["kinds_by_pk"] is None
