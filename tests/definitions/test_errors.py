"""What is wrong in a definition is told with its key in tidelock.toml and with what is allowed."""

import tomllib
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.definitions import parse_definitions
from tidelock.definitions.meters import METER_KEYS
from tidelock.definitions.streams import STREAM_KEYS
from tidelock.definitions.windows import WINDOW_KEYS
from tidelock.errors import SettingsError

TRADES = {
    "key": "trade_id",
    "columns": {
        "trade_id": "bigint", "symbol": "string", "quantity": "int", "raw": "json", "rate": "double",
        "wei": "decimal(38,18)",
    },
    "eventtime": {"column": "occurred_at"},
}  # fmt: skip
WINDOW = {"stream": "trades", "window": {"tumbling": "1m"}, "select": {"n": "count(*)"}}


def error(tables: Mapping[str, object]) -> SettingsError:
    with pytest.raises(SettingsError) as raised:
        parse_definitions(tables)
    assert raised.value.exit_code == 2
    return raised.value


def check(tables: Mapping[str, object], field: str, *said: str) -> None:
    found = error(tables)
    assert found.field == field
    for part in (field, "tidelock.toml", *said):
        assert part in found.message


def stream_error(text: str, key: str, *said: str) -> None:
    check({"streams": {"s": tomllib.loads(text)}}, f"streams.s{key}", *said)


def meter_error(text: str, key: str, *said: str) -> None:
    table = {"stream": "trades", **tomllib.loads(text)}
    check({"streams": {"trades": TRADES}, "meters": {"m": table}}, f"meters.m{key}", *said)


def window_error(text: str, key: str, *said: str) -> None:
    table = {**WINDOW, **tomllib.loads(text)}
    check({"streams": {"trades": TRADES}, "windows": {"w": table}}, f"windows.w{key}", *said)


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("kee = 1", ".kee", ["[streams.s]", "did you mean key?"]),
        ("eventtime = { colum = 1 }", ".eventtime.colum", ["[streams.s.eventtime]", "did you mean column?"]),
        ('columns = { a = "integer" }', ".columns.a", ['"integer"', "string int bigint double decimal(p,s)"]),
        ('columns = { a = "decimal" }', ".columns.a", ["decimal(p,s)"]),
        ('columns = { a = "decimal(39,0)" }', ".columns.a", ["p from 1 to 38"]),
        ('columns = { a = "decimal(4,5)" }', ".columns.a", ["s from 0 to p"]),
        ('columns = { a = "decimal(0,0)" }', ".columns.a", ["p from 1 to 38"]),
        ("columns = { a = 7 }", ".columns.a", ["7 is not allowed"]),
        ('columns = { a = "" }', ".columns.a", ['""']),
        ('columns = "a"', ".columns", ["a table"]),
        ('columns = { "a-b" = "int" }', ".columns.a-b", ["[A-Za-z_]"]),
        ('columns = { "a.b" = "int" }', '.columns."a.b"', ["[A-Za-z_]"]),
        ('key = "b"\ncolumns = { a = "int" }', ".key", ['stream "s"', '"b"', "available: a"]),
        ('key = "resource_id"\ncolumns = { a = "int" }', ".key", ["available: a"]),
        ('key = "ingress_sequence"', ".key", ["available: customer_ref, resource_id", "data.a.b"]),
        ('key = "data.a-b"', ".key", ["data.a.b"]),
        ('key = ["a", "a"]\ncolumns = { a = "int" }', ".key", ["without duplicates"]),
        ("key = 5", ".key", ["a column name or a list"]),
        ('key = "a"\ncolumns = { a = "json" }', ".key", ["json"]),
        ('key = "a"\ncolumns = { a = "double" }', ".key", ["double"]),
        ('key = "a"\ncolumns = { a = "int", tenant_id = "int" }', ".columns", ["tenant_id"]),
        ('ordered = 1', ".ordered", ["true or false"]),
        ('ordered = true', ".ordered", ["eventtime", "occurred_at"]),
        ('eventtime = { type = "rfc3339" }', ".eventtime.column", ["occurred_at"]),
        ('eventtime = { column = "t", type = "rfc3339" }\ncolumns = { a = "int" }', ".eventtime.column",
         ['stream "s"', '"t"', "available: a, occurred_at"]),
        ('eventtime = { column = "received_at", type = "rfc3339" }', ".eventtime.column", ["data.a.b, occurred_at"]),
        ('eventtime = { column = "data.t" }', ".eventtime.type", ['stream "s"', "unixtimestamp_s", "rfc3339"]),
        ('columns = { occurred_at = "string" }\neventtime.column = "occurred_at"', ".eventtime.type", ["rfc3339"]),
        ('eventtime = { column = "data.t", type = "julian" }', ".eventtime.type",
         ['stream "s"', '"julian"', "unixtimestamp_ms", "rfc3339"]),
        ('eventtime = { column = "occurred_at", late_tolerance = "1s" }', ".eventtime.late_tolerance", ["ordered"]),
        ('eventtime = { column = "occurred_at", late_tolerance = "1s", lateTolerance = "1s" }\nordered = true',
         ".eventtime.lateTolerance", ["late_tolerance"]),
        ('calculated = { a = "1" }', ".calculated", ["key"]),
        ('key = "a"\ncolumns = { a = "int" }\ncalculated = { a = "1" }', ".calculated.a", ["another column"]),
        ('key = "a"\ncolumns = { a = "int" }\ncalculated = { b = "" }', ".calculated.b", ["non-empty"]),
        ('live = "no"', ".live", ["true or false"]),
    ],
)  # fmt: skip
def test_a_mistake_in_a_stream_is_named(text: str, key: str, said: list[str]) -> None:
    stream_error(text, key, *said)


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("agregation = 1", ".agregation", ["[meters.m]", "did you mean aggregation?"]),
        ('aggregation = "median"', ".aggregation", ['"median"', "sum count max min last avg unique_count"]),
        ('period = "year"', ".period", ['"year"', "hour day week month"]),
        ('lateness = "soon"', ".lateness", ['"soon"', "ns us ms s m h d"]),
        ("lateness = 48", ".lateness", ["48", "duration"]),
        ('value = "amount"', ".value", ['stream "trades"', '"amount"', "trade_id, symbol, quantity", "customer_ref"]),
        ('value = "data.amount"', ".value", ['"data.amount"']),
        ('value = "symbol"', ".value", ["string", "numeric columns: trade_id, quantity, rate"]),
        ('aggregation = "unique_count"\nvalue = "raw"', ".value", ["json", "one text form"]),
        ('group_by = ["symbol", "region"]', ".group_by", ['"region"', "symbol"]),
        ('group_by = ["raw"]', ".group_by", ["json"]),
        ("where = 5", ".where", ["a table such as"]),
        ("where = '[1]'", ".where", ["a list is not allowed", "an object such as"]),
        ("where = '{'", ".where", ["this is not JSON"]),
        ("""where = '{"a":NaN}'""", ".where", ["NaN is not a JSON number"]),
        ("""where = '{"a":1,"a":2}'""", ".where", ['"a" appears twice']),
        ("where = { region = { _eq = 1 } }", ".where", ['no column "region"', "customer_ref", "symbol"]),
        ("where = { source = { _like = 'a' } }", ".where", ["source", "_like"]),
        ("where = { quantity = { _gt = 'many' } }", ".where", ["quantity._gt"]),
        ("where = { a = { _eq = nan } }", ".where", ["a table"]),
        ("where = { a = { _eq = 07:00:00 } }", ".where", ["a table"]),
        ('stream = ""', ".stream", ["255"]),
        ('stream = "_tidelock"', ".stream", ["_tidelock"]),
    ],
)  # fmt: skip
def test_a_mistake_in_a_meter_is_named(text: str, key: str, said: list[str]) -> None:
    meter_error(text, key, *said)


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("slect = {}", ".slect", ["[windows.w]", "did you mean select?"]),
        ("stream = 5", ".stream", ["non-empty string"]),
        ('window = "10s"', ".window", ["tumbling", "hopping", "session", "count"]),
        ('window = { tumbling = "1s", session = "1s" }', ".window", ["one of"]),
        ("window = {}", ".window", ["one of"]),
        ('window = { tumbing = "1s" }', ".window.tumbing", ["did you mean tumbling?"]),
        ('window = { tumbling = "0s" }', ".window.tumbling", ["longer than 0"]),
        ("window = { tumbling = 10 }", ".window.tumbling", ["duration"]),
        ('window = { session = "0ms" }', ".window.session", ["longer than 0"]),
        ("window = { count = 0 }", ".window.count", ["from 1"]),
        ("window = { count = true }", ".window.count", ["from 1"]),
        ("window = { count = 1.5 }", ".window.count", ["from 1"]),
        ('window = { hopping = "10s" }', ".window.hopping", ["size and step"]),
        ('window = { hopping = ["10s"] }', ".window.hopping", ["size and step"]),
        ('window = { hopping = ["10s", "x"] }', ".window.hopping", ["ns us ms s m h d"]),
        ('window = { hopping = ["5s", "10s"] }', ".window.hopping", ["no greater than the size"]),
        ('window = { hopping = ["5s", "0s"] }', ".window.hopping", ["greater than 0"]),
        ('window = { hopping = ["1d", "1ns"] }', ".window.hopping", ["10000 steps"]),
        ("eventtime = { enabld = true }", ".eventtime.enabld", ["did you mean enabled?"]),
        ("eventtime = { enabled = 1 }", ".eventtime.enabled", ["true or false"]),
        ('eventtime = { idle_timeout = "1s" }', ".eventtime.idle_timeout", ["event time"]),
        ('eventtime = { enabled = true, idle_timeout = "0s" }', ".eventtime.idle_timeout", ["longer than 0"]),
        ('eventtime = { enabled = true, late_tolerance = "-1s" }', ".eventtime.late_tolerance", ['"-1s"']),
        ('stream = "jobs"\neventtime = { enabled = true }', ".eventtime.enabled",
         ['stream "jobs"', "no eventtime", "data.a.b, occurred_at"]),
        ('group_by = ["region"]', ".group_by", ['stream "trades"', '"region"', "symbol"]),
        ('group_by = ["rate"]', ".group_by", ["double"]),
        ('stream = "jobs"\ngroup_by = ["data.a-b"]', ".group_by", ["data.a-b"]),
        ('stream = "jobs"\ngroup_by = ["data.a.b", "data.a_b"]', ".group_by", ["different names"]),
        ("select = {}", ".select", ["at least one"]),
        ('select = { a = "median(quantity)" }', ".select.a", ["median", "count sum min max avg first last"]),
        ('select = { a = "sum(*)" }', ".select.a", ["only count accepts *"]),
        ('select = { a = "sum(quantity" }', ".select.a", ["such as sum(quantity)"]),
        ('select = { a = "sum(quantity) + 1" }', ".select.a", ["such as sum(quantity)"]),
        ("select = { a = 1 }", ".select.a", ["such as sum(quantity)"]),
        ('select = { volume = "sum(amount)" }', ".select.volume", ['"amount"', "trade_id, symbol, quantity"]),
        ('select = { a = "sum(symbol)" }', ".select.a", ["string"]),
        ('select = { a = "max(raw)" }', ".select.a", ["json"]),
        ('select = { a = "p95(symbol)" }', ".select.a", ["p95 cannot be computed", "string"]),
        ('select = { a = "p96(quantity)" }', ".select.a", ["unique_count p50 p90 p95 p99"]),
        ('select = { a = "unique_count(raw)" }', ".select.a", ["unique_count cannot be computed", "json"]),
        ('select = { a = "unique_count(*)" }', ".select.a", ["only count accepts *"]),
        ('select = { a = "avg(wei)" }', ".select.a", ["9 exact decimals", '"wei" is decimal(38,18)', "CAST"]),
        ('select = { "a b" = "count(*)" }', '.select."a b"', ["[A-Za-z_]"]),
        ('group_by = "symbol"\nselect = { symbol = "count(*)" }', ".select.symbol", ["already used"]),
        ('select = { window_start = "count(*)" }', ".select.window_start", ["already used"]),
    ],
)  # fmt: skip
def test_a_mistake_in_a_window_is_named(text: str, key: str, said: list[str]) -> None:
    window_error(text, key, *said)


@pytest.mark.parametrize("missing", ["stream", "window", "select"])
def test_what_a_window_needs_must_be_there(missing: str) -> None:
    table = {key: value for key, value in WINDOW.items() if key != missing}
    check({"streams": {"trades": TRADES}, "windows": {"w": table}}, f"windows.w.{missing}", "is missing")


@pytest.mark.parametrize("name", ["", "x" * 256, "_tidelock", "a\0b"])
@pytest.mark.parametrize("kind", ["streams", "meters"])
def test_some_names_no_stream_or_meter_can_have(kind: str, name: str) -> None:
    assert "1 to 255 characters" in error({kind: {name: {}}}).message


@pytest.mark.parametrize("name", ["a-b", "9a", "a.b", "é", "x" * 64])
def test_names_that_become_tables_have_one_form(name: str) -> None:
    cases: list[Mapping[str, object]] = [
        {"streams": {name: TRADES}},
        {"streams": {name: {"ordered": True, "eventtime": {"column": "occurred_at"}}}},
        {"streams": {"trades": TRADES}, "windows": {name: WINDOW}},
    ]
    for tables in cases:
        assert "becomes a table" in error(tables).message


def test_an_ordered_streams_name_leaves_room_for_its_suffix() -> None:
    check(
        {"streams": {"x" * 56: {"ordered": True, "eventtime": {"column": "occurred_at"}}}}, f"streams.{'x' * 56}", "57"
    )


@pytest.mark.parametrize(
    "name", ["counters", "counter_groups", "adjustments", "statements", "late_rows", "error_rows", "triggers"]
)
def test_tables_that_are_always_there_are_not_declared_again(name: str) -> None:
    check({"streams": {name: TRADES}}, f"streams.{name}", "built-in")
    check({"streams": {"trades": TRADES}, "windows": {name: WINDOW}}, f"windows.{name}", "built-in")


def test_no_two_definitions_become_one_table() -> None:
    ordered = {"ordered": True, "eventtime": {"column": "occurred_at"}}
    check({"streams": {"trades": TRADES}, "windows": {"trades": WINDOW}}, "windows.trades", "streams.trades")
    check({"streams": {"a": ordered, "a_ordered": TRADES}}, "streams.a_ordered", "streams.a;")
    check(
        {"streams": {"a": ordered, "trades": TRADES}, "windows": {"a_ordered": WINDOW}},
        "windows.a_ordered",
        "streams.a;",
    )


@pytest.mark.parametrize("name", ["__trades", "Query", "String", "bigint", "order_by", "RowOperation", "trigger"])
def test_names_that_graphql_needs_for_itself_become_no_tables(name: str) -> None:
    check({"streams": {name: TRADES}}, f"streams.{name}", "GraphQL")
    assert parse_definitions({"streams": {name: {}}}).streams, "it is the table that cannot be called so"


@pytest.mark.parametrize("ending", ["_update", "_bool_exp", "_order_by", "_by_pk"])
def test_names_that_graphql_makes_of_a_tables_name_become_no_tables_beside_it(ending: str) -> None:
    check({"streams": {"trades": TRADES, f"trades{ending}": TRADES}}, f"streams.trades{ending}", "needs for trades")
    check({"streams": {f"counters{ending}": TRADES}}, f"streams.counters{ending}", "needs for counters")
    assert parse_definitions({"streams": {f"price{ending}": TRADES}}).streams


@pytest.mark.parametrize("name", ["_and", "_or", "_not", "__typename"])
def test_no_column_is_named_like_a_word_of_filters_or_of_graphql(name: str) -> None:
    stream_error(f'columns = {{ {name} = "int" }}', f".columns.{name}", name)
    stream_error(f'key = "a"\ncolumns = {{ a = "int" }}\ncalculated = {{ {name} = "a" }}', f".calculated.{name}", name)
    check(
        {"streams": {"trades": TRADES}, "windows": {"w": {**WINDOW, "select": {name: "count(*)"}}}},
        f"windows.w.select.{name}",
        name,
    )


@pytest.mark.parametrize("kind", ["streams", "meters", "windows"])
def test_what_must_be_a_table_is_one(kind: str) -> None:
    check({kind: 5}, kind, "a table")
    check({kind: {"x": 5}}, f"{kind}.x", "a table")


def test_a_lateness_of_all_meters_that_is_not_a_duration_is_named() -> None:
    check({"meters": {"lateness": 5}}, "meters.lateness", "duration")


def test_the_columns_an_ordered_table_has_of_its_own_are_not_declared() -> None:
    stream_error(
        'ordered = true\ncolumns = { position = "int" }\neventtime = { column = "occurred_at" }', ".columns", "position"
    )


def test_a_stream_whose_name_is_not_a_bare_key_is_shown_quoted() -> None:
    check({"streams": {"a.b": {"kee": 1}}}, 'streams."a.b".kee', "key")


WORDS = ["column", "type", "enabled", "late_tolerance", "idle_timeout", "tumbling", "hopping", "session", "count"]
VALUES = ["", "a", "data.a", "occurred_at", "int", "json", "decimal(9,2)", "10s", "0s", "sum(a)", "count(*)", "rfc3339"]
anything = st.recursive(
    st.sampled_from(VALUES) | st.integers(-1, 2) | st.booleans() | st.decimals() | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", *WORDS]), inner, max_size=3),
    max_leaves=8,
)


def tables(keys: Mapping[str, str]) -> st.SearchStrategy[Mapping[str, object]]:
    table: st.SearchStrategy[object] = st.fixed_dictionaries({}, optional=dict.fromkeys(keys, anything))
    return st.dictionaries(st.sampled_from(["a", "b-c", "lateness"]), table, max_size=2)


@given(tables(STREAM_KEYS), tables(METER_KEYS), tables(WINDOW_KEYS))
def test_nonsense_is_an_error_for_people_and_never_a_traceback(
    streams: Mapping[str, object], meters: Mapping[str, object], windows: Mapping[str, object]
) -> None:
    try:
        definitions = parse_definitions({"streams": streams, "meters": meters, "windows": windows})
    except SettingsError:
        return
    assert parse_definitions(definitions.canonical()) == definitions


def test_a_meter_s_name_is_short_enough_for_the_key_of_every_counter() -> None:
    assert parse_definitions({"meters": {"m" * 63: {}}}).meters
    check({"meters": {"m" * 64: {}}}, f"meters.{'m' * 64}", "at most 63 bytes")


@pytest.mark.parametrize("place", ["value", "group_by", "where"])
def test_a_path_with_a_nul_in_it_is_refused_wherever_it_is(place: str) -> None:
    path = "data.a\0b"
    given = {"value": path, "group_by": [path], "where": {path: {"_eq": "x"}}}[place]
    meter = {"aggregation": "sum", "period": "day", place: given}
    assert f"meters.m.{place}" in error({"meters": {"m": meter}}).message
