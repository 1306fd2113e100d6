"""Event times in the fold: what cannot be used is an error row and the pipeline goes on; types that plugins bring."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import Column, functions

from tests.fold.folding import Folding, Toml, differences, expected, folded
from tests.fold.plugin_times import DAY
from tests.fold.redefine import definition_changes
from tests.fold.redefine.definition_changes import BASE, FORMULAS
from tests.fold.times import ARRIVAL, events, stream, streams, values
from tests.ledgers import write_ledger
from tests.model import fold
from tests.model.samples import errors
from tidelock.definitions import parse_definitions
from tidelock.errors import SettingsError
from tidelock.eventtimes import EventtimeTypeRegistry, Parser, load_plugins
from tidelock.fold.rangefold import RangeFold
from tidelock.fold.redefine.shadow import Plan
from tidelock.fold.store import Store
from tidelock.fold.streams import slots_of
from tidelock.fold.timing import Timing
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark
from tidelock.tables import SCHEMA

PLUGIN = "tests.fold.plugin_times"


# How each type is read is tried on its own; of an error row it only gives the name.
@pytest.mark.parametrize(
    ("type_", "small_events"), [("unixtimestamp_ms", 10**6), ("unixtimestamp_ns", 0), ("rfc3339", 10**6)]
)
def test_bad_values_of_every_kind_are_error_rows_and_the_pipeline_continues(
    spark: Spark, database: Database, type_: str, small_events: int
) -> None:
    names = ("None", "string", "bigint", "double", "timestamp")
    kept = {name: declared for name, declared in streams(type_).items() if name in names}
    # One whose time is not the first of its columns.
    kept["more"] = stream("bigint", type_) | {"columns": {"n": "int", "t": "bigint"}}
    # A meter of a stream's own name, one of another, and one that has errors of its own.
    meters = {"None": {"aggregation": "count"}, "other": {"stream": "string", "aggregation": "count"}, "string": {}}
    toml = {"streams": kept, "meters": meters}
    more = [("more", json.dumps({"n": n, "t": t})) for n in (1, "x") for t in (0, "x", None, 10**15, 2**63)]
    ledger = events([*((name, data) for name, data in values(type_) if name in names), *more])
    state = fold(ledger, toml)
    codes = [code for _, _, code in errors(state)]
    assert codes.count("invalid_event_time") > 100
    assert {"invalid_column", "future_event_time", "missing_quantity"} <= set(codes)
    ends = write_ledger(database, ledger)
    middle = ends[len(ends) // 2]
    with Folding(spark, database, toml, small_events=small_events) as folding:
        found = folding.fold([(0, middle), (middle, ends[-1])])
    assert differences(found, expected(state)) == {}


def test_an_event_has_one_error_row_of_its_stream_and_deletes_have_none(spark: Spark, database: Database) -> None:
    toml: Toml = {
        "streams": {"s": {"key": "k", "columns": {"k": "int"}, "eventtime": {"column": "occurred_at"}}, "t": {}},
        "meters": {"s": {}, "t": {}},
    }
    ahead = ARRIVAL + 3600 * 10**9 + 1
    given = [("s", '{"k": 1}'), ("s", '{"k": "x"}'), ("s", "{}"), ("t", "{}"), ("s", '{"k": 1}')]
    *ledger, last = events(given, occurred_at=ahead)
    ledger.append(replace(last, op="delete"))
    state = fold(ledger, toml)
    assert errors(state) == [
        ("s", 1, "future_event_time"),
        ("s", 2, "invalid_column"),
        ("s", 3, "invalid_column"),
        ("t", 4, "missing_quantity"),
    ]
    assert differences(folded(spark, database, ledger, toml), expected(state)) == {}


def test_a_part_of_the_definitions_reads_the_same_times(spark: Spark, database: Database) -> None:
    toml = {"streams": {"a": stream("string", "rfc3339"), "b": stream("bigint", "unixtimestamp_s")}}
    message = '{"t": "2026-01-31T23:59:59Z", "messages": [{"stream": "b", "data": {"t": -99999999999999}}]}'
    write_ledger(database, events([("a", message)]))
    with closing(Store(database, SCHEMA, "fold")) as store:
        store.position()
        RangeFold(spark, store, database, Plan(parse_definitions(toml), ("streams.a",)).subset()).apply(0, 1)
        found = store.query("SELECT message FROM tidelock_tables.error_rows").to_pylist()
    assert [row["message"] for row in found] == [
        'in a message of stream "b", column "t" must be an instant as unixtimestamp_s; it is "-99999999999999"'
    ]


def test_a_changed_event_time_gives_the_error_rows_of_the_new_one(spark: Spark, database: Database) -> None:
    write_ledger(database, definition_changes.ledger())
    definition_changes.fold_all(spark, database, BASE)
    toml = BASE
    steps: list[dict[str, Any]] = [
        # Nothing has such a time, and the meter of that name no longer tells of what it misses.
        {"streams__calls": {"eventtime": {"column": "data.at", "type": "rfc3339"}}},
        {
            "streams__calls": {"eventtime": {"column": "data.at", "type": "unixtimestamp"}},
            "streams__typed": {"eventtime": {"column": "occurred_at"}},
        },
        {"streams__calls": None},
    ]
    for number, paths in enumerate(steps, start=1):
        message = {"stream": "typed", "data": {"n": number}}
        definition_changes.send(
            database,
            {"stream": "calls", "customerRef": "c", "ts": f"2026-03-10T14:00:0{number}Z", "data": {"at": number}},
            {"stream": "calls", "customerRef": "c", "data": {"messages": [message]}, "quantity": 1},
        )
        toml = definition_changes.changed(toml, **paths)
        definition_changes.change(spark, database, toml)
        wanted = definition_changes.modelled(database, BASE, FORMULAS)
        assert differences(definition_changes.picture(database), wanted) == {}


def test_types_of_plugins_are_read_in_columns_and_in_messages(spark: Spark, database: Database) -> None:
    load_plugins([PLUGIN])
    toml = {
        "streams": {
            "days": stream("bigint", "days"),
            "path": stream(None, "days"),
            "letters": {"columns": {"other": "int", "t": "string"}, "eventtime": {"column": "t", "type": "letters"}},
            "plain": stream("string", "unixtimestamp_s"),
        }
    }
    day = ARRIVAL // DAY
    given: list[tuple[str, Any, str]] = [
        ("days", {"t": day}, ""),
        ("days", {"t": day + 1}, "future_event_time"),
        ("days", {}, "invalid_event_time"),
        ("days", {"t": 10**18}, "invalid_event_time"),
        ("days", {"t": "x"}, "invalid_event_time"),
        ("days", {"t": 10**5}, "future_event_time"),
        ("days", {"t": 2 * 10**5}, "invalid_event_time"),
        ("path", {"at": {"t": str(day)}}, ""),
        ("path", {"at": {"t": [day]}}, "invalid_event_time"),
        ("letters", {"t": "x" * day}, ""),
        ("letters", {"t": "x" * (day + 1)}, "future_event_time"),
        ("letters", {"t": None}, "invalid_event_time"),
        ("plain", {"messages": [{"stream": "days", "data": {"t": day}}]}, ""),
        ("plain", {"messages": [{"stream": "days", "data": {"t": "x"}}]}, "invalid_event_time"),
        ("plain", {"messages": [{"stream": "days", "data": {"t": 1.5}}]}, "invalid_event_time"),
        ("plain", {"messages": [{"stream": "letters", "data": {"t": "x" * (day + 1)}}]}, "future_event_time"),
        ("days", {"t": 5, "messages": [{"stream": "plain", "data": {"t": 10**12}}]}, "future_event_time"),
        ("days", {"t": -5}, ""),
    ]
    write_ledger(database, events([(name, json.dumps(data)) for name, data, _ in given]))
    wanted = {number: code for number, (_, _, code) in enumerate(given, start=1) if code}
    definitions = parse_definitions(toml, eventtime_types=None)
    for small_events in (10**6, 0):
        with closing(Store(database, SCHEMA, f"fold:{small_events}")) as store:
            store.position()
            store.execute("TRUNCATE tidelock_tables.error_rows")
            range_fold = RangeFold(spark, store, database, definitions, changes=False, small_events=small_events)
            range_fold.apply(0, len(given))
            found = store.query("SELECT ingress_sequence, code FROM tidelock_tables.error_rows").to_pylist()
        assert {row["ingress_sequence"]: row["code"] for row in found} == wanted


def _raise(_: Column) -> Column:
    raise ValueError("no such thing")


@pytest.mark.parametrize(
    ("parser", "said"),
    [
        (_raise, "it raised ValueError: no such thing"),
        (lambda text: "text", "must return a Column, not str"),
        (lambda text: text, "must return bigint (nanoseconds since 1970), not string"),
        (lambda text: functions.try_to_timestamp(text), "not timestamp"),
        (lambda text: functions.length(text), "not int"),
        (
            lambda text: text.cast("bigint"),
            "raises an error where it must return null (use try_cast and similar functions)",
        ),
        (lambda text: text.try_cast("bigint") * 10**9, "raises an error where it must return null"),
        # Spark multiplies the two numbers first, and forgets that it should try.
        (lambda text: functions.expr("2L * try_multiply(try_cast(text AS bigint), 1000000000L)"), "must return null"),
        (lambda text: functions.col("nowhere").cast("bigint"), "Spark rejects it"),
        (lambda text: functions.expr("bigint("), "Spark rejects it"),
        (lambda text: functions.max(functions.length(text).cast("bigint")), "Spark rejects it"),
        (lambda text: functions.monotonically_increasing_id(), "depends on more than its input"),
        (lambda text: (functions.rand() * 5).try_cast("bigint"), "depends on more than its input: rand"),
        (lambda text: functions.unix_seconds(functions.now()), "depends on more than its input"),
        (lambda text: functions.unix_timestamp(), "depends on more than its input"),
    ],
)
def test_a_parser_that_cannot_be_used_is_refused_at_the_start(
    spark: Spark, parser: Callable[[Column], Any], said: str
) -> None:
    types = EventtimeTypeRegistry()
    types.register("mine", parser)
    definitions = parse_definitions({"streams": {"s": stream(None, "mine")}}, eventtime_types=None)
    with pytest.raises(SettingsError) as raised:
        Timing(spark.session, slots_of(definitions), types)
    for part in ('"mine"', 'stream "s"', said):
        assert part in raised.value.message
    assert "\n" not in raised.value.message


def test_a_type_that_is_not_there_is_refused_with_the_stream_and_those_there_are(
    spark: Spark, database: Database
) -> None:
    definitions = parse_definitions({"streams": {"s": stream(None, "julian")}}, eventtime_types=None)
    with closing(Store(database, SCHEMA, "fold")) as store, pytest.raises(SettingsError) as raised:
        RangeFold(spark, store, database, definitions)
    assert raised.value.field == "streams.s.eventtime.type"
    assert 'stream "s" has no event-time type "julian"; available: unixtimestamp_s' in raised.value.message


def test_built_in_parsers_can_be_part_of_others(spark: Spark) -> None:
    types = EventtimeTypeRegistry()
    seconds: Parser = types.resolve("unixtimestamp_s")
    types.register("prefixed", lambda text: seconds(functions.substring(text, 3, 100)))
    definitions = parse_definitions({"streams": {"s": stream(None, "prefixed")}}, eventtime_types=None)
    Timing(spark.session, slots_of(definitions), types)
    found = spark.session.sql("SELECT 't=1.5' AS t").select(types.resolve("prefixed")(functions.col("t")))
    assert found.collect() == [(1_500_000_000,)]
