"""Timing: when events happened, by the `eventtime` of their streams, as Spark SQL over a range.

An event that has messages takes its time from the first of them whose stream has event time, else from its own column.
What a value stands for is asked only where it fits its column, so a message of a stream is read as its events are.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession, functions

from tidelock.definitions import Stream
from tidelock.eventtimes import BuiltIn, EventtimeTypeRegistry, eventtime_types, stream_parser
from tidelock.fold.kernel.entries import FUTURE, INVALID, TimeFaults
from tidelock.fold.parsers import check_parser
from tidelock.fold.readings import Reading, by_stream, decoded_sql, no_instant, readings, sql_text
from tidelock.fold.slots import AHEAD_MAX_NS, Slots
from tidelock.instants import EARLIEST, LATEST
from tidelock.spark import casts

_TEXT = "message_text"


class Timing:
    """The event times of a range."""

    def __init__(self, session: SparkSession, slots: Slots, types: EventtimeTypeRegistry = eventtime_types) -> None:
        """Raises SettingsError where a stream's type is not there, or a plugin's is not as it must be."""
        self._slots = slots
        self._types = types
        self._own = {name: stream for name, stream in slots.streams.items() if stream.eventtime is not None}
        #: what plugins read: type, and the columns that have text and stream -> streams
        self._plugged: dict[tuple[str, str, str], list[str]] = {}
        self._instant = self._instant_sql() if self._own else ""
        for kind, stream in {kind: streams[0] for (kind, _, _), streams in self._plugged.items()}.items():
            check_parser(session, stream, kind, types.resolve(kind))
        self._parsed = [self._parse(*place, streams) for place, streams in self._plugged.items()]

    def parsed(self, events: DataFrame) -> DataFrame:
        """Events with what the parsers of plugins make of them."""
        columns = (column.alias(f"parsed_{number}") for number, column in enumerate(self._parsed))
        return events.select("*", *columns) if self._parsed else events

    def source(self) -> str:
        """The decoded events, with the instant that each says it happened at."""
        decoded = decoded_sql(self._slots)
        return f"SELECT *, {self._instant} AS instant FROM ({decoded})" if self._own else decoded

    def prepared(self) -> list[str]:
        """The event time, null where there is none that can be used; why so; and the stream of the message it is of.

        Events that are objected to have one too; they are in no window.
        """
        if not self._own:
            types = {"event_time": "BIGINT", "time_fault": "STRING", "message_stream": "STRING"}
            return [f"CAST(NULL AS {type_}) AS {name}" for name, type_ in types.items()]
        judged = f"NOT deleted AND stream IN ({_texts(self._own)})"
        legal = f"instant >= {EARLIEST}L"
        # Nothing arrives after the latest instant, so what lies beyond is ahead.
        early = f"instant <= {LATEST}L AND try_subtract(instant, {AHEAD_MAX_NS}L) <= received_at"
        fault = f"CASE WHEN {legal} THEN IF({early}, NULL, '{FUTURE}') ELSE '{INVALID}' END"
        return [
            f"CASE WHEN {judged} AND {legal} AND {early} THEN instant END AS event_time",
            f"CASE WHEN {judged} THEN {fault} END AS time_fault",
            "message_stream",
        ]

    def faults(self) -> TimeFaults:
        """What is said of events without a time that can be used."""
        objections = [no_instant(stream.eventtime) for stream in self._own.values() if stream.eventtime is not None]
        timed = {name: stream.eventtime for name, stream in self._slots.timed.items() if stream.eventtime is not None}
        return TimeFaults(timed, tuple(objections))

    def _instant_sql(self) -> str:
        own = {name: self._of_event(reading) for name, reading in readings(self._slots).items() if name in self._own}
        others: dict[str, list[str]] = {}
        for name, stream in self._slots.timed.items():
            others.setdefault(self._of_message(stream), []).append(name)
        cases = [f"WHEN message_stream IN ({_texts(streams)}) THEN {sql}" for sql, streams in others.items()]
        return f"CASE WHEN message_stream IS NULL THEN {by_stream(own, 'BIGINT')} {' '.join(cases)} END"

    def _of_event(self, reading: Reading) -> str:
        """The instant in an event's own column, where that is legal; else it is objected to anyway."""
        stream = reading.stream
        assert stream.eventtime is not None
        column, kind = stream.eventtime.column, stream.eventtime.type
        if kind is None:
            return "occurred_at"
        parser = stream_parser(stream.name, kind, self._types)
        if isinstance(parser, BuiltIn):
            return parser.sql(reading.source(column), stream.columns.get(column), reading.typed(column))
        return self._plug(kind, reading.source(column), "stream", stream)

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
        """The column that has what a plugin's parser makes of a text, in the events of a stream."""
        place = (kind, text, selector)
        self._plugged.setdefault(place, []).append(stream.name)
        return f"parsed_{list(self._plugged).index(place)}"

    def _parse(self, kind: str, text: str, selector: str, streams: list[str]) -> Column:
        parsed = self._types.resolve(kind)(functions.col(text))
        return functions.when(functions.col(selector).isin(streams), parsed)


def _texts(names: dict[str, Stream] | list[str]) -> str:
    return ", ".join(map(sql_text, names))
