"""Timing: when events happened, by the `eventtime` of their streams, as Spark SQL over a range.

An event that has messages takes its time from the first of them whose stream has event time, else from its own column.
A value is parsed only if it fits its column, so a message of a stream is read like its events. Parsers of plugins are
tested at the start of the fold, since one that raises later would stop it for good.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame, SparkSession, functions

from tidelock.columns import ENVELOPE
from tidelock.definitions import Stream
from tidelock.errors import SettingsError
from tidelock.eventtimes import BuiltIn, EventtimeTypeRegistry, Parser, eventtime_types, stream_parser
from tidelock.fold.kernel.entries import FUTURE, INVALID, TimeFaults
from tidelock.fold.source import single_partition
from tidelock.fold.streams import (
    AHEAD_MAX_NS,
    VALUE_CHARACTERS_MAX,
    Slots,
    StreamSql,
    by_stream,
    decoded_sql,
    no_instant,
    sql_of_streams,
    sql_text,
    time_member,
)
from tidelock.instants import EARLIEST, LATEST
from tidelock.spark import casts
from tidelock.spark.runtime import reason

_TEXT = "message_text"
# Typical values that producers send as a time.
_TRIED_TEXTS = [
    *["", " ", "0", "-0", "-1", "1.5", "1e3", "1e400", "-1e-400", "1" + "0" * 40, "9223372036854775808", "007", "+1"],
    *["1769904000", "1769904000000", "1769904000000000", "1769904000000000000", "-1769904000.000000001", "١٢٣"],
    *["NaN", "Infinity", "-Infinity", "null", "true", "{}", "[]", '{"a":1}', "[1,2]", "x", "é", "\n", "%"],
    *["2026-01-31", "2026-02-30", "2026-01-31T23:59:59Z", "2026-01-31T23:59:60Z", "2026-01-31T24:00:00+25:00"],
    *["2026-01-31 23:59:59", "0000-00-00T00:00:00Z", "99999-12-31T23:59:59Z", "-0001-01-01", "31/01/2026", "2026-W05"],
    *["23:59:59", "now", "epoch", "Sat, 31 Jan 2026 23:59:59 GMT", "a" * 10_000, "9" * 10_000],
]


class Timing:
    """The event times of a range."""

    def __init__(self, session: SparkSession, slots: Slots, types: EventtimeTypeRegistry = eventtime_types) -> None:
        """Raises SettingsError if a stream's type is unknown, or a plugin's parser is not valid."""
        self._slots = slots
        self._types = types
        self._own = {name: stream for name, stream in slots.streams.items() if stream.eventtime is not None}
        #: what plugins parse: type, and the columns with text and stream -> streams
        self._plugged: dict[tuple[str, str, str], list[str]] = {}
        self._instant = self._instant_sql() if self._own else ""
        for kind, stream in {kind: streams[0] for (kind, _, _), streams in self._plugged.items()}.items():
            check_parser(session, stream, kind, types.resolve(kind))
        self._parsed = [self._parse(*place, streams) for place, streams in self._plugged.items()]

    def parsed(self, events: DataFrame) -> DataFrame:
        """Events with the results of the plugins' parsers."""
        columns = (column.alias(f"parsed_{number}") for number, column in enumerate(self._parsed))
        return events.select("*", *columns) if self._parsed else events

    def source(self) -> str:
        """The decoded events, with their event time."""
        decoded = decoded_sql(self._slots)
        return f"SELECT *, {self._instant} AS instant FROM ({decoded})" if self._own else decoded

    def prepared(self) -> list[str]:
        """The event time, null if it is not usable; the reason; the stream of its message; and the value that is
        not usable.

        Events with objections have one too; they are in no window.
        """
        if not self._own:
            types = {"event_time": "BIGINT", "time_fault": "STRING", "message_stream": "STRING", "time_value": "STRING"}
            return [f"CAST(NULL AS {type_}) AS {name}" for name, type_ in types.items()]
        judged = f"NOT deleted AND stream IN ({_texts(self._own)})"
        legal = f"instant >= {EARLIEST}L"
        # Nothing arrives after the latest instant, so anything beyond is in the future.
        early = f"instant <= {LATEST}L AND try_subtract(instant, {AHEAD_MAX_NS}L) <= received_at"
        fault = f"CASE WHEN {legal} THEN IF({early}, NULL, '{FUTURE}') ELSE '{INVALID}' END"
        return [
            f"CASE WHEN {judged} AND {legal} AND {early} THEN instant END AS event_time",
            f"CASE WHEN {judged} THEN {fault} END AS time_fault",
            "message_stream",
            f"{self._value_sql(f'{judged} AND NOT coalesce({legal} AND {early}, FALSE)')} AS time_value",
        ]

    def faults(self) -> TimeFaults:
        """Messages for events without a usable time."""
        objections = [no_instant(stream.eventtime) for stream in self._own.values() if stream.eventtime is not None]
        timed = {name: stream.eventtime for name, stream in self._slots.timed.items() if stream.eventtime is not None}
        return TimeFaults(timed, tuple(objections))

    def _instant_sql(self) -> str:
        own = {
            name: self._of_event(stream_sql)
            for name, stream_sql in sql_of_streams(self._slots).items()
            if name in self._own
        }
        others: dict[str, list[str]] = {}
        for name, stream in self._slots.timed.items():
            others.setdefault(self._of_message(stream), []).append(name)
        cases = [f"WHEN message_stream IN ({_texts(streams)}) THEN {sql}" for sql, streams in others.items()]
        return f"CASE WHEN message_stream IS NULL THEN {by_stream(own, 'BIGINT')} {' '.join(cases)} END"

    def _value_sql(self, faulty: str) -> str:
        """The value in place of the time; null in the other events. Objections to columns come first."""
        own = {name: stream_sql for name, stream_sql in sql_of_streams(self._slots).items() if name in self._own}
        misfit = by_stream({name: stream_sql.no_time() for name, stream_sql in own.items()}, "BOOLEAN")
        value = by_stream({name: stream_sql.time_value() for name, stream_sql in own.items()}, "STRING")
        cut = f"substr({_TEXT}, 1, {VALUE_CHARACTERS_MAX + 1})"
        arrived = [name for name, stream in self._slots.timed.items() if time_member(stream) is None]
        if arrived:
            occurred = casts.canonical(ENVELOPE["occurred_at"], "occurred_at")
            cut = f"CASE WHEN message_stream IN ({_texts(arrived)}) THEN {occurred} ELSE {cut} END"
        return (
            f"CASE WHEN {misfit} THEN {value} "
            f"WHEN {faulty} THEN CASE WHEN message_stream IS NULL THEN {value} ELSE {cut} END END"
        )

    def _of_event(self, stream_sql: StreamSql) -> str:
        """The instant in an event's own column, if valid; otherwise the event has an objection anyway."""
        stream = stream_sql.stream
        assert stream.eventtime is not None
        column, kind = stream.eventtime.column, stream.eventtime.type
        if kind is None:
            return "occurred_at"
        parser = stream_parser(stream.name, kind, self._types)
        if isinstance(parser, BuiltIn):
            return parser.sql(stream_sql.source(column), stream.columns.get(column), stream_sql.typed(column))
        return self._plug(kind, stream_sql.source(column), "stream", stream)

    def _of_message(self, stream: Stream) -> str:
        assert stream.eventtime is not None
        kind, type_ = stream.eventtime.type, stream.columns.get(stream.eventtime.column)
        if kind is None:
            return "occurred_at"
        parser = stream_parser(stream.name, kind, self._types)
        if not isinstance(parser, BuiltIn):
            found = self._plug(kind, _TEXT, "message_stream", stream)
        elif type_ is not None and type_.name == "double":
            found = casts.let("typed", casts.typed(type_, _TEXT), parser.sql(_TEXT, type_, "typed"))
        else:
            found = parser.sql(_TEXT)
        return found if type_ is None else f"CASE WHEN {casts.fits(type_, _TEXT)} THEN {found} END"

    def _plug(self, kind: str, text: str, selector: str, stream: Stream) -> str:
        """The column with the result of a plugin's parser, for the events of a stream."""
        place = (kind, text, selector)
        self._plugged.setdefault(place, []).append(stream.name)
        return f"parsed_{list(self._plugged).index(place)}"

    def _parse(self, kind: str, text: str, selector: str, streams: list[str]) -> Column:
        parsed = self._types.resolve(kind)(functions.col(text))
        return functions.when(functions.col(selector).isin(streams), parsed)


def check_parser(session: SparkSession, stream: str, name: str, parser: Parser) -> None:
    """Checks that a parser keeps its contract. Raises SettingsError with the reason if not."""
    try:
        with _quiet():
            _check_columns(session, parser)
    except _Unfit as unfit:
        why = str(unfit)
    except (PySparkException, Py4JError) as error:
        why = f"Spark rejects it: {reason(error)}"
    # Any exception: it is not our code.
    except Exception as error:
        why = f"it raised {type(error).__name__}: {error}"
    else:
        return
    raise SettingsError(f'the parser of event-time type "{name}" (stream "{stream}") cannot be used: {why}')


class _Unfit(Exception):
    """What is wrong with a parser."""


def _check_columns(session: SparkSession, parser: Parser) -> None:
    # As a range of the fold: a table that is part of the plan would be computed before Spark rewrites expressions, and
    # what is rewritten may raise where the original does not.
    texts = single_partition(session, pa.table({"text": pa.array([*_TRIED_TEXTS, None], pa.string())}))
    column: object = parser(functions.col("text"))
    if not isinstance(column, Column):
        raise _Unfit(f"it must return a Column, not {type(column).__name__}")
    parsed = texts.select("text", column.alias("instant"))
    given = parsed.schema["instant"].dataType.simpleString()
    if given != "bigint":
        raise _Unfit(f"it must return bigint (nanoseconds since 1970), not {given}")
    plan: Any = parsed._jdf.queryExecution().analyzed()
    _check_steady(plan.expressions().apply(1))
    try:
        parsed.collect()
    except (PySparkException, Py4JError) as error:
        raise _Unfit(
            f"it raises an error where it must return null (use try_cast and similar functions): {reason(error)}"
        ) from None


def _check_steady(node: Any) -> None:
    """The same text must always give the same time, or a replay would give other rows."""
    children = node.children()
    for number in range(children.size()):
        _check_steady(children.apply(number))
    kind = node.getClass().getSimpleName()
    if not node.deterministic() or kind.startswith(("Current", "LocalTimestamp", "Now")):
        raise _Unfit(f"it depends on more than its input: {node.prettyName()}")


@contextmanager
def _quiet() -> Iterator[None]:
    """PySpark logs what it raises with a traceback; here it is reported in one line."""
    logger = PySparkLogger.getLogger("DataFrameQueryContextLogger")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _texts(names: dict[str, Stream] | list[str]) -> str:
    return ", ".join(map(sql_text, names))
