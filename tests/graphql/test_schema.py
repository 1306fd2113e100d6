"""The schema says of every table what can be asked of it, and nothing of what cannot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from graphql import (
    GraphQLInputObjectType,
    GraphQLObjectType,
    GraphQLSchema,
    build_client_schema,
    execute_sync,
    get_introspection_query,
    parse,
    print_schema,
    validate_schema,
)

from tests.graphql.tables import SHAPE, TABLES
from tidelock.definitions import parse_definitions
from tidelock.graphql.schema import make_schema
from tidelock.tables import tables_of
from tidelock.views.catalog import TableCatalog, silent_tables

pytestmark = pytest.mark.check

READABLE = [name for name, table in TABLES.items() if not table.internal]


@pytest.fixture(scope="module")
def schema() -> GraphQLSchema:
    return make_schema(TABLES.values(), silent_tables(SHAPE))


def fields(schema: GraphQLSchema, name: str) -> Mapping[str, str]:
    """The fields of a type, with their types."""
    type_ = schema.type_map[name]
    assert isinstance(type_, GraphQLObjectType | GraphQLInputObjectType)
    return {field: str(found.type) for field, found in type_.fields.items()}


def arguments(schema: GraphQLSchema, root: str, field: str) -> Mapping[str, str]:
    type_ = schema.type_map[root]
    assert isinstance(type_, GraphQLObjectType)
    return {name: str(argument.type) for name, argument in type_.fields[field].args.items()}


def test_the_schema_is_valid_and_describes_itself_by_introspection(schema: GraphQLSchema) -> None:
    assert validate_schema(schema) == []
    asked = get_introspection_query(
        specified_by_url=True, directive_is_repeatable=True, schema_description=True, input_value_deprecation=True
    )
    result = execute_sync(schema, parse(asked))
    assert result.errors is None
    told: Any = result.data
    assert print_schema(build_client_schema(told)) == print_schema(schema)


@pytest.mark.parametrize("name", READABLE)
def test_every_table_has_its_types_and_fields(schema: GraphQLSchema, name: str) -> None:
    columns = ["tenant_id", *TABLES[name].columns]
    assert list(fields(schema, name)) == columns
    assert list(fields(schema, f"{name}_bool_exp")) == ["_and", "_or", "_not", *columns]
    json = {column for column, type_ in TABLES[name].columns.items() if type_.name == "json"}
    assert list(fields(schema, f"{name}_order_by")) == [column for column in columns if column not in json]
    assert fields(schema, "Query")[name] == f"[{name}!]!"
    assert arguments(schema, "Query", name) == {
        "where": f"{name}_bool_exp", "order_by": f"[{name}_order_by!]", "limit": "Int", "offset": "Int"
    }  # fmt: skip
    assert fields(schema, "Query")[f"{name}_by_pk"] == name
    if name != "quiet":
        assert fields(schema, "Subscription")[name] == f"{name}_update!"
        assert arguments(schema, "Subscription", name) == {"where": f"{name}_bool_exp", "after": "String"}


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("counters", {"metric": "String!", "customer_ref": "String!", "period_start": "timestamptz!"}),
        (
            "counter_groups",
            {"metric": "String!", "customer_ref": "String!", "period_start": "timestamptz!", "group_key": "String!"},
        ),
        ("adjustments", {"metric": "String!", "ingress_sequence": "bigint!"}),
        ("error_rows", {"source": "String!", "ingress_sequence": "bigint!"}),
        ("late_rows", {"window": "String!", "ingress_sequence": "bigint!"}),
        ("volume", {"s": "String!", "t": "timestamptz!", "window_start": "timestamptz!"}),
        ("packs", {"window_ordinal": "bigint!"}),
        ("kinds", {"id": "bigint!"}),
        ("pairs", {"s": "String!", "i": "Int!"}),
        ("events", {"customer_ref": "String!"}),
        ("readings_ordered", {"ingress_sequence": "bigint!"}),
    ],
)
def test_a_row_is_asked_for_by_its_key_and_maybe_its_tenant(
    schema: GraphQLSchema, table: str, key: dict[str, str]
) -> None:
    assert arguments(schema, "Query", f"{table}_by_pk") == {**key, "tenant_id": "String"}


def test_every_type_of_column_has_its_scalar(schema: GraphQLSchema) -> None:
    assert fields(schema, "kinds") == {
        "tenant_id": "String!", "id": "bigint", "s": "String", "i": "Int", "b": "bigint", "d": "Float", "n": "numeric",
        "o": "Boolean", "t": "timestamptz", "y": "date", "j": "json",
    }  # fmt: skip
    assert fields(schema, "volume") == {
        "tenant_id": "String!", "s": "String", "t": "timestamptz", "window_start": "timestamptz",
        "window_end": "timestamptz", "total": "numeric", "rows": "bigint", "first_y": "date",
    }  # fmt: skip
    assert fields(schema, "readings_ordered") == {
        "tenant_id": "String!", "ingress_sequence": "bigint", "position": "bigint", "event_time": "timestamptz",
        "at": "bigint", "v": "Float",
    }  # fmt: skip


def test_every_column_is_compared_by_every_operator_but_json_only_with_null(schema: GraphQLSchema) -> None:
    for column, scalar in fields(schema, "kinds").items():
        comparison = fields(schema, "kinds_bool_exp")[column]
        scalar = scalar.removesuffix("!")
        assert comparison == f"{scalar}_comparison_exp"
        one = dict.fromkeys(["_eq", "_neq", "_gt", "_lt", "_gte", "_lte"], scalar)
        several = dict.fromkeys(["_in", "_nin"], f"[{scalar}!]")
        operators = {} if scalar == "json" else one | several
        assert fields(schema, comparison) == {**operators, "_is_null": "Boolean"}


def test_the_time_of_an_event_is_beside_the_row_and_nowhere_else(schema: GraphQLSchema) -> None:
    assert fields(schema, "kinds_update") == {
        "operation": "RowOperation!", "data": "kinds!", "fields": "[String!]!", "ts_timestamp": "String!"
    }  # fmt: skip
    holders = {
        name
        for name, type_ in schema.type_map.items()
        if isinstance(type_, GraphQLObjectType | GraphQLInputObjectType) and "ts_timestamp" in type_.fields
    }
    assert holders == {f"{name}_update" for name in READABLE if name != "quiet"}
    for name in schema.type_map.keys() - {f"{table}_update" for table in READABLE}:
        type_ = schema.type_map[name]
        if isinstance(type_, GraphQLObjectType | GraphQLInputObjectType):
            assert not {"ts_timestamp", "source_timestamp"} & type_.fields.keys()


def test_what_is_the_folds_own_is_not_in_it(schema: GraphQLSchema) -> None:
    assert any(table.internal for table in TABLES.values())
    assert fields(schema, "Query").keys() == {*READABLE, *(f"{name}_by_pk" for name in READABLE)}
    for name, table in TABLES.items():
        if table.internal:
            assert not any(found.startswith(name) for found in schema.type_map)


def test_a_table_that_is_not_live_can_be_asked_only(schema: GraphQLSchema) -> None:
    assert fields(schema, "Query")["quiet"] == "[quiet!]!"
    assert "quiet" not in fields(schema, "Subscription")


def silent(**definitions: Any) -> set[str]:
    """What can be asked but not subscribed to."""
    parsed = parse_definitions(definitions)
    tables = tables_of(parsed)
    found = silent_tables(TableCatalog(1, parsed, tables))
    return {name for name in found if not tables[name].internal}


def test_counters_can_be_subscribed_to_unless_no_meter_is_live() -> None:
    quiet, live = {"live": False}, {"live": True}
    assert silent() == set()
    assert silent(meters={"a": quiet, "b": live}) == set()
    assert silent(meters={"a": quiet, "b": quiet}) == {"counters", "counter_groups", "adjustments"}
    window = {"stream": "s", "window": {"count": 2}, "select": {"n": "count(*)"}, "live": False}
    assert silent(windows={"w": window}) == {"w"}
    ordered = {"key": "customer_ref", "ordered": True, "eventtime": {"column": "occurred_at"}, "live": False}
    assert silent(streams={"s": ordered}) == {"s", "s_ordered"}


def test_a_column_more_is_a_field_more() -> None:
    before, after = (
        tables_of(parse_definitions({"streams": {"trades": {"key": "id", "columns": columns}}}))
        for columns in ({"id": "bigint"}, {"id": "bigint", "price": "decimal(18,4)"})
    )
    assert fields(make_schema(before.values()), "trades") == {"tenant_id": "String!", "id": "bigint"}
    changed = make_schema(after.values())
    assert fields(changed, "trades")["price"] == "numeric"
    assert fields(changed, "trades_bool_exp")["price"] == "numeric_comparison_exp"
    assert fields(changed, "trades_order_by")["price"] == "order_by"


def test_the_orders_are_those_of_hasura(schema: GraphQLSchema) -> None:
    text = print_schema(schema)
    orders: Any = schema.type_map["order_by"]
    assert list(orders.values) == [
        "asc", "asc_nulls_first", "asc_nulls_last", "desc", "desc_nulls_first", "desc_nulls_last"
    ]  # fmt: skip
    assert "enum RowOperation {\n  INSERT\n  UPDATE\n  DELETE\n}" in text
