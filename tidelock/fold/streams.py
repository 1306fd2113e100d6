"""Streams as SQL: the slots of a range with the values that definitions use, and each stream's columns as expressions
over them.

Postgres extracts the members of `data` from the JSON as strings, because Spark's JSON functions convert numbers through
doubles. Streams share these slots, so a range is as wide as its widest stream, not as all of them together. A
`StreamSql` has the columns of one stream, in Spark's SQL or another dialect with the same casts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tidelock.columns import ENVELOPE, STRING, ColumnType, data_path
from tidelock.definitions import Definitions, Stream
from tidelock.definitions.eventtimes import EventTime
from tidelock.ingest.wire import KEY_BYTES_MAX
from tidelock.instants import EARLIEST
from tidelock.model import CONTROL
from tidelock.spark import casts
from tidelock.where.sql import POSTGRES, SPARK, Dialect, literal

#: the columns of an event that every step needs, and that a keyed stream without declared columns keeps
BASE = ("customer_ref", "resource_id", "occurred_at", "quantity")

#: the quantity as text. Arrow parses a whole column faster than Postgres scales the numbers or Java creates decimals:
#: bench/fold.md
QUANTITY_TEXT = "quantity_text"

#: how far ahead of its arrival an event time may be
AHEAD_MAX_NS = 3600 * 10**9

# Types whose values are the strings themselves.
_TEXTS = ("string", "json")

_MESSAGE_STREAM, _MESSAGE_DATA = "item->>'stream'", "(item->'data')"
# A member can have this name only if its letters are in the text, or an escape that may represent one of them.
_MAY_HAVE_MESSAGES = r"(strpos(data::text, 'messages') > 0 OR strpos(data::text, '\u') > 0)"


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an event's data; no path: the data itself."""

    path: tuple[str, ...]
    #: as JSON text, not as a string's content
    raw: bool = False

    def postgres_sql(self, data: str = "data") -> str:
        """Its text; null if it is missing or null. For the data itself, the text as sent."""
        if not self.path:
            return f"{data}::text"
        if self.raw:
            return f"NULLIF(({data}" + "".join(f"->{sql_text(name)}" for name in self.path) + ")::text, 'null')"
        *steps, last = self.path
        return data + "".join(f"->{sql_text(name)}" for name in steps) + f"->>{sql_text(last)}"


#: the data as it was sent
WHOLE = Member((), raw=True)
#: so much of a value is told
VALUE_CHARACTERS_MAX = 64
#: what a message ends with that names the value, as Postgres matches it
VALUE_TOLD = '; it is (missing|".*")$'


@dataclass(frozen=True, slots=True)
class Slots:
    """The streams that are folded, and the columns a range of them has."""

    streams: Mapping[str, Stream]
    #: members by stream, in the order of the slots
    members: Mapping[str, tuple[Member, ...]]
    #: columns of the envelope beside `BASE`
    envelope: tuple[str, ...]
    #: streams with event time that messages may belong to; none if no folded stream has event time
    timed: Mapping[str, Stream]

    def slot(self, stream: str, member: Member) -> str:
        """The column with a member's text."""
        return f"slot_{self.members[stream].index(member)}"

    def columns(self) -> list[str]:
        width = max((len(members) for members in self.members.values()), default=0)
        return [f"slot_{number}" for number in range(width)]

    def postgres_sql(self, events: str = "events", more: Sequence[str] = ()) -> str:
        """The select list and source of a range, without its bounds; `events` is the ledger, or has its columns. `more`
        is selected too."""
        slots = [f"{self._slot_sql(number)} AS {name}" for number, name in enumerate(self.columns())]
        names = ["ingress_sequence", "source_timestamp", "tenant_id", "stream", "customer_ref", "resource_id"]
        names += [
            "op = 'delete' AS deleted",
            "occurred_at",
            "quantity::numeric(38,9) AS quantity",
            f"quantity::text AS {QUANTITY_TEXT}",
        ]
        names += [*map(POSTGRES.quoted, self.envelope), *slots, *more]
        if self.timed:
            names += [
                f"{self._of_message(_MESSAGE_STREAM)} AS message_stream",
                f"{self._of_message(self._message_text_sql())} AS message_text",
            ]
        streams = ", ".join(sql_text(stream) for stream in self.streams) or "NULL"
        return f"SELECT {', '.join(names)} FROM {events} WHERE stream IN ({streams})"

    def _of_message(self, told: str) -> str:
        """The time of an event's first message whose stream has event time; null in most events.

        Each condition is evaluated only if the previous one holds: few events have messages, and parsing the data of
        all of them takes as long as everything else.
        """
        own = ", ".join(sql_text(name) for name, stream in self.streams.items() if stream.eventtime is not None)
        streams = ", ".join(map(sql_text, self.timed))
        first = (
            f"SELECT {told} FROM json_array_elements(data->'messages') WITH ORDINALITY AS items (item, number) "
            f"WHERE json_typeof(item->'stream') = 'string' AND item->>'stream' IN ({streams}) ORDER BY number LIMIT 1"
        )
        questions = [f"stream IN ({own})", _MAY_HAVE_MESSAGES, "json_typeof(data->'messages') = 'array'"]
        if all(stream.eventtime is not None and stream.eventtime.type is None for stream in self.timed.values()):
            # All times are the event's own then, and a message matters only for the error text.
            questions.insert(0, f"(occurred_at < {EARLIEST} OR occurred_at > received_at + {AHEAD_MAX_NS})")
        found = f"({first})"
        for question in reversed(questions):
            found = f"CASE WHEN {question} THEN {found} END"
        return found

    def _message_text_sql(self) -> str:
        """The text of a message's time."""
        cases = [
            f"WHEN {sql_text(name)} THEN {member.postgres_sql(_MESSAGE_DATA)}"
            for name, stream in self.timed.items()
            if (member := time_member(stream)) is not None
        ]
        return f"CASE item->>'stream' {' '.join(cases)} END" if cases else "NULL::text"

    def _slot_sql(self, number: int) -> str:
        cases = [
            f"WHEN {sql_text(stream)} THEN {members[number].postgres_sql()}"
            for stream, members in self.members.items()
            if number < len(members)
        ]
        return f"CASE stream {' '.join(cases)} END"


def slots_of(definitions: Definitions) -> Slots:
    """The slots that definitions need."""
    used: dict[str, dict[str, None]] = {name: {} for name in definitions.streams}
    raw: dict[str, dict[Member, None]] = {}
    for meter in definitions.meters.values():
        path = _distinct_path(meter.value) if meter.distinct else None
        names = [*meter.group_by, *sorted(meter.where.used_columns if meter.where else ())]
        used.setdefault(meter.stream, {}).update(dict.fromkeys([meter.value, *names] if path is None else names))
        raw.setdefault(meter.stream, {}).update({} if path is None else {path: None})
    for window in definitions.windows.values():
        aggregated = dict.fromkeys(found for found in window.select.values() if found.column is not None)
        paths = {
            found: member
            for found in aggregated
            if found.function == "unique_count" and (member := _distinct_path(found.column)) is not None
        }
        names = [*window.group_by, *(found.column for found in aggregated if found.column and found not in paths)]
        used.setdefault(window.stream, {}).update(dict.fromkeys(names))
        raw.setdefault(window.stream, {}).update(dict.fromkeys(paths.values()))
    streams = {name: definitions.streams.get(name) or Stream(name) for name in used if name != CONTROL}
    for name, stream in streams.items():
        used[name].update(dict.fromkeys((*stream.columns, *stream.key)))
        if stream.eventtime is not None:
            used[name][stream.eventtime.column] = None
    members = {name: (*_members(streams[name], columns), *raw.get(name, ())) for name, columns in used.items()}
    envelope = {
        column
        for name, columns in used.items()
        for column in columns
        if column in ENVELOPE and column not in streams[name].columns
    }
    timed = definitions.timed if any(stream.eventtime is not None for stream in streams.values()) else {}
    if timed:
        # An event's own time may not be far ahead of its arrival.
        envelope.add("received_at")
    return Slots(streams, members, tuple(sorted(envelope - {*BASE, "ingress_sequence"})), timed)


def member_of(stream: Stream, column: str) -> Member | None:
    """The member of data for a column; None: it belongs to the envelope."""
    if column in stream.columns:
        return Member((column,), raw=stream.columns[column].name == "json")
    path = data_path(column)
    return None if path is None or column in ENVELOPE else Member(path)


def _distinct_path(column: str | None) -> Member | None:
    """The JSON text at a path whose distinct values are counted: numbers are read as they were written."""
    path = None if column is None or column in ENVELOPE else data_path(column)
    return None if path is None else Member(path, raw=True)


def time_member(stream: Stream) -> Member | None:
    """The member of data with a stream's event time; None: the envelope has it."""
    assert stream.eventtime is not None
    return None if stream.eventtime.type is None else member_of(stream, stream.eventtime.column)


class Casts(Protocol):
    """How a SQL dialect parses and formats values; `spark.casts` describes each."""

    def typed(self, type_: ColumnType, text: str) -> str: ...
    def canonical(self, type_: ColumnType, value: str) -> str: ...
    def quantity(self, type_: ColumnType | None, value: str) -> str: ...
    def json_array(self, texts: Sequence[str]) -> str: ...


class StreamSql:
    """One stream's columns as SQL, by the names that definitions use."""

    def __init__(self, stream: Stream, slots: Slots, dialect: Dialect = SPARK, casts: Casts = casts) -> None:
        self.stream = stream
        self._slots = slots
        self._dialect = dialect
        self._casts = casts
        self._number = list(slots.streams).index(stream.name)

    def decoded(self) -> Iterator[str]:
        """The declared columns in their types, each with its own name: `typed` is used often, and long."""
        stream = sql_text(self.stream.name)
        for column, type_ in self.stream.columns.items():
            if type_.name not in _TEXTS:
                yield (
                    f"CASE WHEN stream = {stream} THEN {self._casts.typed(type_, self.source(column))} END AS "
                    f"{self.typed(column)}"
                )

    def typed(self, column: str) -> str:
        """The value in its type; for a path, its text."""
        type_ = self.stream.columns.get(column)
        if type_ is None or type_.name in _TEXTS:
            return self.source(column)
        return f"typed_{self._number}_{list(self.stream.columns).index(column)}"

    def as_type(self, column: str, type_: ColumnType) -> str:
        """The value as a filter compares it: a path is of the operand's type, or null."""
        return self._casts.typed(type_, self.source(column)) if self._is_path(column) else self.typed(column)

    def quantity(self, column: str) -> str:
        """The value as a number to sum, or null."""
        return self._casts.quantity(self.stream.type_of(column), self.typed(column))

    def text(self, column: str) -> str:
        """The string of a value in keys and groups."""
        return self._casts.canonical(self.stream.type_of(column) or STRING, self.typed(column))

    def joined(self, columns: Iterable[str]) -> str:
        """One column is its text, several are a compact array of texts."""
        texts = [self.text(column) for column in columns]
        return texts[0] if len(texts) == 1 else self._casts.json_array(texts)

    def objection(self) -> str | None:
        """Why an event is an error row and touches no table; null if nothing is wrong."""
        misfits = [
            (f"{self.source(name)} IS NOT NULL AND {self.typed(name)} IS NULL", self._misfit(name, type_))
            for name, type_ in self.stream.columns.items()
            if type_.name not in _TEXTS
        ]
        missing = [(f"{self.typed(name)} IS NULL", f'key column "{name}" is missing') for name in self.stream.key]
        cases = " ".join(
            f"WHEN {wrong} THEN {sql_text(message)}" for wrong, message in misfits + missing + self._long_key()
        )
        return f"CASE {cases} END" if cases else None

    def _misfit(self, column: str, type_: ColumnType) -> str:
        declared = self.stream.eventtime
        if declared is not None and declared.column == column:
            return no_instant(declared)
        return f'column "{column}" must be {type_}'

    def no_time(self) -> str:
        """Whether the column of the event's time does not fit its type, and is objected to for that."""
        declared = self.stream.eventtime
        type_ = None if declared is None else self.stream.columns.get(declared.column)
        if declared is None or type_ is None or type_.name in _TEXTS:
            return "FALSE"
        return f"({self.source(declared.column)} IS NOT NULL AND {self.typed(declared.column)} IS NULL)"

    def time_value(self) -> str:
        """What is sent as the event's time, as a text; a character more than is told of it."""
        assert self.stream.eventtime is not None
        column = self.stream.eventtime.column
        value = self.text(column) if member_of(self.stream, column) is None else self.source(column)
        return f"substr({value}, 1, {VALUE_CHARACTERS_MAX + 1})"

    def _long_key(self) -> list[tuple[str, str]]:
        """Ingest refuses such keys, which do not fit an index; the ledger may have some from before the stream had a
        key.
        """
        if all((self.stream.type_of(name) or STRING) != STRING for name in self.stream.key):
            return []
        too_long = f"octet_length({self.joined(self.stream.key)}) > {KEY_BYTES_MAX}"
        return [(too_long, f"the row key is longer than {KEY_BYTES_MAX} bytes")]

    def source(self, column: str) -> str:
        """The value as sent: its text, or the envelope's."""
        member = member_of(self.stream, column)
        return self._dialect.quoted(column) if member is None else self._slots.slot(self.stream.name, member)

    def json(self, path: str) -> str:
        """The JSON text at a path, where its distinct values are counted."""
        names = data_path(path)
        assert names is not None
        return self._slots.slot(self.stream.name, Member(names, raw=True))

    def _is_path(self, column: str) -> bool:
        return column not in self.stream.columns and column not in ENVELOPE


def sql_of_streams(slots: Slots) -> dict[str, StreamSql]:
    """Every stream's columns, in Spark's SQL."""
    return {name: StreamSql(stream, slots) for name, stream in slots.streams.items()}


def decoded_sql(slots: Slots) -> str:
    """The events of a range with their declared columns, in their types."""
    columns = [column for stream_sql in sql_of_streams(slots).values() for column in stream_sql.decoded()]
    return f"SELECT {', '.join(['*', *columns])} FROM events"


def objection_sql(slots: Slots) -> str:
    """What is wrong with an event's columns."""
    objections = {
        name: objection for name, stream_sql in sql_of_streams(slots).items() if (objection := stream_sql.objection())
    }
    return by_stream(objections, "STRING")


def by_stream(expressions: dict[str, str], type_: str) -> str:
    """The expression of an event's stream."""
    if not expressions:
        return f"CAST(NULL AS {type_})"
    cases = " ".join(f"WHEN {sql_text(stream)} THEN {expression}" for stream, expression in expressions.items())
    return f"CASE stream {cases} END"


def no_instant(declared: EventTime) -> str:
    """The error of a column that should have an event's time but has none."""
    return f'column "{declared.column}" must be an instant as {declared.type}'


def with_value(message: str, value: str | None) -> str:
    """A message about an event's time that names the value, or as much of it as a line has room for."""
    if value is None:
        return f"{message}; it is missing"
    cut = value if len(value) <= VALUE_CHARACTERS_MAX else value[:VALUE_CHARACTERS_MAX] + "..."
    return f'{message}; it is "{cut}"'


def sql_text(text: str) -> str:
    return literal(STRING, text)


def _members(stream: Stream, columns: Mapping[str, None]) -> Iterator[Member]:
    for column in columns:
        if (member := member_of(stream, column)) is not None:
            yield member
    if (stream.key or stream.ordered) and not stream.columns:
        yield WHOLE
