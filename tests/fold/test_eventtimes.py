"""Event times: Spark reads them as the reference model does, whatever producers send, and the pipeline goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions

from tests.budgets import examples
from tests.fold.times import BAD, TIMES, TYPES, Toml, events, model_times, stream, streams, values
from tests.ledgers import write_ledger
from tests.model import Event
from tests.model.times import BEYOND, EARLIEST, LATEST
from tidelock.definitions import parse_definitions
from tidelock.eventtimes import BuiltIn, eventtime_types
from tidelock.fold.source import Source
from tidelock.fold.store import Store
from tidelock.fold.streams import slots_of
from tidelock.fold.timing import Timing
from tidelock.postgres.database import Database
from tidelock.spark.runtime import Spark
from tidelock.tables import SCHEMA

MANY = settings(phases=[Phase.explicit, Phase.reuse, Phase.generate], max_examples=examples(2))


def spark_times(spark: Spark, database: Database, timing: Timing, source: Source) -> dict[int, int | str | None]:
    """The same by the fold."""
    timing.parsed(source.read(0, 10**6)).createOrReplaceTempView("events")
    found = spark.session.sql(
        f"SELECT ingress_sequence, stream, {', '.join(timing.prepared())} FROM ({timing.source()})"
    )
    told = ("time_fault", "stream", "message_stream", "time_value")
    return {
        row["ingress_sequence"]: row["event_time"]
        if row["time_fault"] is None
        else f"{row['time_fault']}: {timing.faults().message(*[row[name] for name in told])}"
        for row in found.toArrow().to_pylist()
    }


def check_times(
    spark: Spark, database: Database, ledger: Sequence[Event], toml: Toml, readers: Sequence[int] = (10**6, 0)
) -> None:
    """The times of a ledger, read by the driver and by executors, are the model's."""
    write_ledger(database, ledger, [ledger[-1].ingress_sequence])
    wanted = model_times(ledger, toml)
    slots = slots_of(parse_definitions(toml))
    with closing(Store(database, SCHEMA, "fold")) as store:
        for small_events in readers:
            source = Source(spark, store, database, slots, small_events=small_events)
            found = spark_times(spark, database, Timing(spark.session, slots), source)
            wrong = [(event, found[n], time) for n, (event, time) in wanted.items() if found[n] != time]
            assert wrong == []


@pytest.mark.parametrize("type_", TYPES)
def test_every_value_in_every_column_is_the_time_that_the_model_reads(
    spark: Spark, database: Database, type_: str
) -> None:
    # Executors read the same columns, whatever the type.
    readers = (10**6, 0) if type_ in (TYPES[0], "rfc3339") else (10**6,)
    check_times(spark, database, events(values(type_)), {"streams": streams(type_)}, readers)


@settings(MANY)
@given(st.data())
@pytest.mark.parametrize("type_", TYPES[1:])
def test_texts_are_the_instants_that_the_model_reads(spark: Spark, type_: str, data: st.DataObject) -> None:
    """As SQL, and as the Column that the registry gives."""
    texts = data.draw(st.lists(_texts(type_), min_size=300, max_size=500))
    ledger = events([("string", json.dumps({"t": text})) for text in texts], received_at=LATEST)
    wanted = [time for _, time in model_times(ledger, {"streams": streams(type_)}).values()]
    parser = eventtime_types.resolve(type_)
    assert isinstance(parser, BuiltIn)
    given = spark.session.createDataFrame(pa.table({"t": pa.array(texts, pa.string())}))
    found = given.select(functions.expr(parser.sql("t")), parser(functions.concat("t", functions.lit("")))).toArrow()
    for column in found.columns:
        assert column.type == pa.int64()
        legal = (min(n, BEYOND) if n is not None and n >= EARLIEST else None for n in column.to_pylist())
        pairs = zip(texts, legal, map(_instant, wanted), strict=True)
        assert [each for each in pairs if each[1] != each[2]] == []


def _instant(time: int | str | None) -> int | None:
    """What a parser should read; what lies ahead of the latest instant is beyond it."""
    if isinstance(time, str):
        return BEYOND if time.startswith("future") else None
    return time


def _texts(type_: str) -> st.SearchStrategy[str | None]:
    """Times in all the ways to write them, and what is nearly one."""
    instants = st.integers(EARLIEST - 10**9, LATEST + 10**9) | st.integers(-(10**10), 10**10)
    decimals = {"unixtimestamp_s": 9, "unixtimestamp_ms": 6, "unixtimestamp_us": 3}.get(type_, 0)
    numbers = instants.map(lambda instant: f"{Decimal(instant).scaleb(-decimals):f}")
    shifted = st.builds(lambda n, shift: f"{Decimal(n).scaleb(shift)}", instants, st.integers(-25, 10))
    odd = st.sampled_from([json.loads(value) for value in [*BAD, *TIMES] if value.startswith('"')])
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    moments = st.datetimes(datetime(1670, 1, 1), datetime(2270, 1, 1)).map(lambda moment: moment.isoformat() + "Z")
    return numbers | shifted | moments | odd | text | st.none()


ODD_MESSAGES = [
    *["null", "5", '"messages"', "{}", '{"0": {"stream": "string", "data": {"t": "1"}}}', "true", "[]", "[[]]"],
    *["[null, 1]", '["string"]', '[[{"stream": "string", "data": {"t": "1"}}]]'],
    '[{"stream": null, "data": {"t": "1"}}]',
    '[{"stream": 5}, {"stream": true}, {"stream": ["string"]}, {"stream": {"string": 1}}]',
    *['[{"data": {"t": "1"}}]', '[{"stream": "nobody", "data": {"t": "1"}}]'],
    *['[{"stream": "timeless", "data": {"t": "1"}}]', '[{"stream": ""}]', '[{"stream": "string"}]'],
    *['[{"stream": "string", "data": null}]', '[{"stream": "string", "data": 5}]'],
    *['[{"stream": "string", "data": "t"}]', '[{"stream": "string", "data": [{"t": "1"}]}]'],
    # The last of equal names; the first message of a stream with event time, whatever its time is.
    '[{"stream": "nobody", "stream": "string", "data": 1, "data": {"t": "2", "t": "1"}}]',
    '[{"stream": "string", "stream": "nobody", "data": {"t": "1"}}]',
    '[{"stream": "nobody"}, 7, {"stream": "string", "data": {"t": "1"}}, {"stream": "bigint", "data": {"t": 2}}]',
    '[{"stream": "string", "data": {"t": "x"}}, {"stream": "string", "data": {"t": "1"}}]',
    '[{"stream": "string", "data": {"t": "9214646399"}}, {"stream": "string", "data": {"t": "1"}}]',
    '[{"str\\u0065am": "str\\u0069ng", "data": {"\\u0074": "1"}}]',
    '[{"stream": "occurred", "data": {"occurred_at": 1}}]',
    '[{"stream": "timestamp", "data": {"t": "1970-01-01T00:00:00Z"}}]',
    '[{"stream": "it\'s; \\"quoted\\"", "data": {"t": 1}}]',
    "[" + ", ".join(['{"stream": "nobody"}'] * 2000) + ', {"stream": "string", "data": {"t": "3"}}]',
    *["[" * 60 + "]" * 60, '[{"stream": "string", "data": {"t": ' + "[" * 50 + "]" * 50 + "}}]"],
]


def test_odd_messages_have_the_time_that_the_model_reads(spark: Spark, database: Database) -> None:
    toml = {"streams": streams("unixtimestamp_s") | {'it\'s; "quoted"': stream("bigint", "unixtimestamp_s")}}
    data = [f'{{"t": {t}, "at": {{"t": {t}}}, "messages": {m}}}' for m in ODD_MESSAGES for t in ('"7"', '"x"')]
    data += ['{"messages": [{"stream": "string", "data": {"t": "1"}}], "messages": 5}', '[{"messages": []}]', '"m"']
    data += ['{"messages": 5, "m\\u0065ssages": [{"stream": "string", "data": {"t": "1"}}]}', " { } ", "null"]
    data += ['{"m\\u0065ssages": [{"stream": "string", "data": {"t": "1"}}]}', '{"a": "\\u0041", "t": "7"}']
    owns = ("None", "string", "occurred", "timeless")
    check_times(spark, database, events([(own, each) for own in owns for each in data]), toml)
