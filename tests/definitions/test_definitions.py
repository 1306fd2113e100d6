"""Definitions: streams, meters and windows as tidelock.toml declares them."""

import json
import tomllib
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.columns import ColumnType
from tidelock.definitions import (
    Count,
    Definitions,
    EventTime,
    Hopping,
    Meter,
    Session,
    Stream,
    Tumbling,
    Window,
    WindowTime,
    parse_definitions,
)
from tidelock.definitions.windows import Aggregate
from tidelock.durations import UNITS
from tidelock.errors import SettingsError

TRADES = """
[streams.trades]
key = "trade_id"
columns = { trade_id = "bigint", symbol = "string", quantity = "int", price = "decimal(18,4)", ts = "bigint" }
eventtime = { column = "ts", type = "unixtimestamp_ms" }
"""
DESIGN = f"""{TRADES}
[meters.api_calls]
aggregation = "sum"
period = "month"
lateness = "48h"

[windows.volume_1m]
stream = "trades"
window = {{ tumbling = "1m" }}
eventtime = {{ enabled = true, late_tolerance = "5s" }}
group_by = ["symbol"]
select = {{ volume = "sum(quantity)", trades = "count(*)" }}
"""
HOUR = UNITS["h"]
SECOND = UNITS["s"]


def parse(text: str) -> Definitions:
    return parse_definitions(tomllib.loads(text, parse_float=Decimal))


def window(text: str, before: str = TRADES) -> Window:
    """A window over trades with lines that go before the defaults given here."""
    table = tomllib.loads(text)
    defaults = {"stream": "trades", "window": {"tumbling": "1m"}, "select": {"n": "count(*)"}}
    return parse_definitions({**tomllib.loads(before), "windows": {"w": {**defaults, **table}}}).windows["w"]


def meter(text: str, before: str = TRADES) -> Meter:
    table = tomllib.loads(text, parse_float=Decimal)
    return parse_definitions({**tomllib.loads(before), "meters": {"m": table}}).meters["m"]


def stream(text: str) -> Stream:
    return parse(f"[streams.s]\n{text}").streams["s"]


def test_the_example_of_the_manual_means_what_it_says() -> None:
    definitions = parse(DESIGN)
    assert definitions.stream("trades") == Stream(
        name="trades",
        key=("trade_id",),
        columns={
            "trade_id": ColumnType("bigint"),
            "symbol": ColumnType("string"),
            "quantity": ColumnType("int"),
            "price": ColumnType("decimal", 18, 4),
            "ts": ColumnType("bigint"),
        },
        eventtime=EventTime("ts", "unixtimestamp_ms"),
    )
    assert definitions.meters == {"api_calls": Meter("api_calls", "api_calls", "sum", "month", 48 * HOUR)}
    assert definitions.windows == {
        "volume_1m": Window(
            name="volume_1m",
            stream="trades",
            frame=Tumbling(60 * SECOND),
            eventtime=WindowTime(True, 5 * SECOND),
            group_by=("symbol",),
            select={"volume": Aggregate("sum", "quantity"), "trades": Aggregate("count", None)},
        )
    }


def test_a_stream_is_known_when_declared_or_named_by_a_meter_or_window() -> None:
    definitions = parse(DESIGN + '[meters.cpu]\nstream = "machines"\n[windows.w]\nstream = "clicks"\n'
                        'window = {count = 1}\nselect = {n = "count(*)"}')  # fmt: skip
    assert all(map(definitions.known_stream, ["trades", "api_calls", "machines", "clicks"]))
    assert not definitions.known_stream("cpu")
    assert not definitions.known_stream("w")
    assert definitions.stream("machines") is None


def test_nothing_declared_is_legal() -> None:
    assert parse("") == Definitions()


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        ('window = { tumbling = "250ms" }', Tumbling(250_000_000)),
        ('window = { hopping = ["10s", "5s"] }', Hopping(10 * SECOND, 5 * SECOND)),
        ('window = { hopping = ["10s", "3s"] }', Hopping(10 * SECOND, 3 * SECOND)),
        ('window = { session = "30s" }', Session(30 * SECOND)),
        ("window = { count = 100 }", Count(100)),
    ],
)
def test_a_window_has_one_of_four_frames(text: str, frame: object) -> None:
    assert window(text).frame == frame


def test_a_meter_without_a_word_sums_quantities_by_month_with_the_lateness_of_all() -> None:
    assert meter("") == Meter("m", "m", "sum", "month", 48 * HOUR)
    definitions = parse('[meters]\nlateness = "1h"\n[meters.a]\n[meters.b]\nlateness = "2h"')
    assert {name: meter.lateness_ns for name, meter in definitions.meters.items()} == {"a": HOUR, "b": 2 * HOUR}


def test_a_meter_may_be_called_lateness() -> None:
    assert parse('[meters.lateness]\nlateness = "1h"').meters["lateness"].lateness_ns == HOUR


def test_a_filter_is_a_table_or_the_same_as_json_text() -> None:
    filtered = {"quantity": {"_gt": 1.5}, "_or": [{"source": {"_eq": "é"}}, {"data.a": {"_in": [1, 2]}}]}
    as_table = meter(
        'where = { quantity = { _gt = 1.5 }, _or = [{ source = { _eq = "é" } }, { "data.a" = { _in = [1, 2] } }] }'
    )
    as_text = meter(f"where = '{json.dumps(filtered)}'")
    assert as_table.where == as_text.where
    assert as_table.where is not None
    assert as_table.where.used_columns == {"quantity", "source", "data.a"}
    assert as_table.hash() == as_text.hash()


def test_dates_in_a_filter_are_their_texts() -> None:
    as_text = meter("""where = '{"occurred_at":{"_gt":"2026-01-31T00:00:00Z"}}'""")
    assert meter("where = { occurred_at = { _gt = 2026-01-31T01:00:00+01:00 } }").where == as_text.where


def test_an_unordered_stream_waits_for_nothing_but_an_ordered_one_does() -> None:
    ordered = stream(
        'ordered = true\neventtime = { column = "occurred_at", late_tolerance = "5s", idle_timeout = "1m" }'
    )
    assert ordered.eventtime == EventTime("occurred_at", None, 5 * SECOND, 60 * SECOND)
    assert ordered.tables == ("s_ordered",)


def test_occurred_at_is_an_event_time_on_every_stream_and_needs_no_type() -> None:
    assert stream('eventtime = { column = "occurred_at" }').eventtime == EventTime("occurred_at", None)
    declared = stream('columns = { a = "int" }\neventtime = { column = "occurred_at", type = "rfc3339" }')
    assert declared.eventtime == EventTime("occurred_at", None)


def test_without_declared_columns_the_envelope_and_paths_are_columns() -> None:
    got = window('stream = "jobs"\ngroup_by = ["customer_ref", "data.region.name"]\n'
                 'select = { total = "sum(quantity)", size = "max(data.size)" }', before="")  # fmt: skip
    assert got.group_columns == ("customer_ref", "data_region_name")
    assert got.select["size"] == Aggregate("max", "data.size")
    assert stream('eventtime = { column = "data.ts", type = "unixtimestamp" }').eventtime == EventTime(
        "data.ts", "unixtimestamp_s"
    )


def test_a_window_may_use_calculated_columns_and_a_meter_may_not() -> None:
    stream = """
        [streams.s]
        key = "a"
        columns = { a = "int" }
        calculated = { twice = "a * 2", quantity = "a || 'x'" }
        """
    window = (
        stream
        + """
        [windows.w]
        stream = "s"
        window = { tumbling = "1m" }
        group_by = ["twice", "a"]
        select = { total = "sum(twice)", most = "max(quantity)" }
        """
    )
    assert parse(window).windows["w"].group_by == ("twice", "a")
    assert parse(window).windows["w"].select["total"] == Aggregate("sum", "twice")
    with pytest.raises(SettingsError, match='no column "thrice"; available: a, twice, quantity, customer_ref'):
        parse(window.replace("sum(twice)", "sum(thrice)"))
    with pytest.raises(SettingsError, match='no column "thrice"; available: a, twice, quantity, customer_ref'):
        parse(window.replace('["twice"', '["thrice"'))
    with pytest.raises(SettingsError, match='no column "twice"; available: a, customer_ref'):
        parse(stream + '[meters.m]\nstream = "s"\nvalue = "twice"')
    with pytest.raises(SettingsError, match='no column "twice"; available: a, customer_ref'):
        parse(stream + '[meters.m]\nstream = "s"\ngroup_by = "twice"')


def test_declared_columns_hide_only_envelope_columns_of_their_name() -> None:
    trades = parse(TRADES).streams["trades"]
    assert trades.type_of("quantity") == ColumnType("int")
    assert trades.type_of("customer_ref") == ColumnType("string")
    assert trades.has("customer_ref")
    assert not trades.has("data.x")


def test_with_plugins_any_event_time_type_goes() -> None:
    tables = tomllib.loads('[streams.s]\neventtime = { column = "data.t", type = "julian" }')
    assert parse_definitions(tables, eventtime_types=None).streams["s"].eventtime == EventTime("data.t", "julian")


@pytest.mark.parametrize("name", ["api|calls", "a.b", "客户", "x" * 63, "with space", "counters", "9lives"])
def test_a_stream_without_table_and_a_meter_may_have_any_name(name: str) -> None:
    definitions = parse_definitions({"streams": {name: {}}, "meters": {name: {}}})
    assert definitions.known_stream(name)


def test_a_window_may_be_called_as_a_stream_that_is_not_a_table() -> None:
    assert parse('[streams.w]\n[meters.w]\n[windows.w]\nstream = "w"\nwindow = {count = 1}\nselect = {n = "count(*)"}')


# The canonical form.

SPELLINGS = [
    ("", 'period = "month"'),
    ("", 'stream = "m"\nlive = true\ngroup_by = []\nvalue = "quantity"'),
    ('lateness = "48h"', 'lateness = "2d"'),
    ('group_by = "symbol"\nstream = "trades"', 'stream = "trades"\ngroup_by = ["symbol"]'),
    ("where = { quantity = { _gt = 1.50, _neq = 2 } }", """where = '{"quantity":{"_neq":2.0,"_gt":15e-1}}'"""),
]


@pytest.mark.parametrize(("one", "other"), SPELLINGS)
def test_a_meters_hash_does_not_depend_on_spelling(one: str, other: str) -> None:
    assert meter(one).hash() == meter(other).hash()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('window = { tumbling = "60s" }', 'window = { tumbling = "1m" }'),
        (
            "eventtime = { enabled = true, lateTolerance = '1s' }",
            "eventtime = { late_tolerance = '1000ms', enabled = true }",
        ),
        ("eventtime = { late_tolerance = '5s' }", ""),
        ('select = { a = "COUNT( * )", b = "sum(price)" }', 'select = { b = " sum ( price )", a = "count(*)" }'),
    ],
)
def test_a_windows_hash_does_not_depend_on_spelling(one: str, other: str) -> None:
    assert window(one).hash() == window(other).hash()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            'key = "a"\ncolumns = { a = "int", b = "decimal(18, 4)" }',
            'columns = { b = "decimal(18,4)", a = "int" }\nkey = ["a"]',
        ),
        (
            'eventtime = { column = "data.t", type = "unixtimestamp" }',
            'eventtime = { type = "unixtimestamp_s", column = "data.t" }',
        ),
    ],
)
def test_a_streams_hash_does_not_depend_on_spelling(one: str, other: str) -> None:
    assert stream(one).hash() == stream(other).hash()


def test_the_hash_depends_on_all_that_matters() -> None:
    texts = ["", 'period = "day"', 'aggregation = "max"', 'lateness = "1h"', 'value = "data.x"', 'stream = "x"',
             "where = {}", "where = { quantity = { _eq = 1 } }",
             'group_by = ["source", "op"]', 'group_by = ["op", "source"]',
             "live = false"]  # fmt: skip
    assert len({meter(text, before="").hash() for text in texts}) == len(texts)


def test_the_hash_is_the_sha256_of_a_text_that_never_changes() -> None:
    # Tables store it: another hash for the same definition would rebuild them all.
    expected = "581c8c5c62bb8eb4e59a83d6c5ea7569c020abb5fa66361631512a6f86fd6999"
    assert parse(DESIGN).windows["volume_1m"].hash() == expected


@given(st.randoms(use_true_random=False))
def test_the_order_of_members_changes_no_hash(random: Random) -> None:
    def shuffled(table: dict[str, Any]) -> dict[str, Any]:
        members = list(table.items())
        random.shuffle(members)
        return {name: shuffled(member) if isinstance(member, dict) else member for name, member in members}

    tables = tomllib.loads(DESIGN)
    one, other = parse_definitions(tables), parse_definitions(shuffled(tables))
    assert one.streams["trades"].hash() == other.streams["trades"].hash()
    assert one.windows["volume_1m"].hash() == other.windows["volume_1m"].hash()


def test_the_canonical_form_is_plain_json_that_declares_the_same_again() -> None:
    definitions = parse(DESIGN + """
        [streams.clicks]
        ordered = true
        live = false
        eventtime = { column = "data.t", type = "unixtimestamp", late_tolerance = "60s", idle_timeout = "1h" }
        [streams.positions]
        key = ["book", "symbol"]
        columns = { book = "string", symbol = "string", price = "double" }
        calculated = { twice = "price * 2" }
        [meters.m]
        where = { quantity = { _gt = 1.50 } }
        group_by = "data.region"
        [windows.s]
        stream = "clicks"
        window = { hopping = ["1m", "1s"] }
        eventtime = { enabled = true, idle_timeout = "5s" }
        select = { n = "count(op)" }
        """)  # fmt: skip
    again = parse_definitions(json.loads(json.dumps(definitions.canonical())))
    assert again == definitions
    assert again.canonical() == definitions.canonical()
