"""Slots: where a range has the members of `data` that definitions use.

Postgres takes them out of the JSON as texts, because Spark's JSON functions send numbers through doubles. Streams share
the slots, so a range is as wide as its widest stream, not as all of them together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tidelock.columns import ENVELOPE, STRING, data_path
from tidelock.definitions import Definitions, Stream
from tidelock.instants import EARLIEST
from tidelock.model import CONTROL
from tidelock.where.sql import POSTGRES, literal

#: what every step needs of an event, and what a keyed stream without declared columns keeps
BASE = ("customer_ref", "resource_id", "occurred_at", "quantity")

#: the quantity as text. Arrow parses a whole column of those for less than Postgres takes to scale the numbers, or Java
#: to make decimals of them: bench/fold.md
QUANTITY_TEXT = "quantity_text"

#: how far ahead of its arrival an event time may be
AHEAD_MAX_NS = 3600 * 10**9

_MESSAGE_STREAM, _MESSAGE_DATA = "item->>'stream'", "(item->'data')"
# A member has that name only where its letters are in the text, or an escape that may stand for one of them.
_MAY_HAVE_MESSAGES = r"(strpos(data::text, 'messages') > 0 OR strpos(data::text, '\u') > 0)"


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an event's data; no path: the data itself."""

    path: tuple[str, ...]
    #: as JSON text, not as a string's content
    raw: bool = False

    def postgres_sql(self, data: str = "data") -> str:
        """Its text; null where it is missing or null. The data itself is what was sent, whatever it is."""
        if not self.path:
            return f"{data}::text"
        if self.raw:
            return f"NULLIF(({data}" + "".join(f"->{_name(name)}" for name in self.path) + ")::text, 'null')"
        *steps, last = self.path
        return data + "".join(f"->{_name(name)}" for name in steps) + f"->>{_name(last)}"


#: the data as it was sent
WHOLE = Member((), raw=True)


@dataclass(frozen=True, slots=True)
class Slots:
    """The streams that are folded, and the columns a range of them has."""

    streams: Mapping[str, Stream]
    #: members by stream, in the order of the slots
    members: Mapping[str, tuple[Member, ...]]
    #: columns of the envelope beside `BASE`
    envelope: tuple[str, ...]
    #: streams with event time that messages may be of; none where no stream that is folded has any
    timed: Mapping[str, Stream]

    def slot(self, stream: str, member: Member) -> str:
        """The column that has a member's text."""
        return f"slot_{self.members[stream].index(member)}"

    def columns(self) -> list[str]:
        width = max((len(members) for members in self.members.values()), default=0)
        return [f"slot_{number}" for number in range(width)]

    def postgres_sql(self) -> str:
        """The select list and source of a range, without its bounds."""
        slots = [f"{self._slot_sql(number)} AS {name}" for number, name in enumerate(self.columns())]
        names = ["ingress_sequence", "source_timestamp", "tenant_id", "stream", "customer_ref", "resource_id"]
        names += [
            "op = 'delete' AS deleted",
            "occurred_at",
            "quantity::numeric(38,9) AS quantity",
            f"quantity::text AS {QUANTITY_TEXT}",
        ]
        names += [*map(POSTGRES.quoted, self.envelope), *slots]
        if self.timed:
            names += [
                f"{self._of_message(_MESSAGE_STREAM)} AS message_stream",
                f"{self._of_message(self._message_text_sql())} AS message_text",
            ]
        streams = ", ".join(_name(stream) for stream in self.streams) or "NULL"
        return f"SELECT {', '.join(names)} FROM events WHERE stream IN ({streams})"

    def _of_message(self, told: str) -> str:
        """What the first message in an event whose stream has event time tells; null in most events.

        Each question is asked only where the one before it says so: few events have messages, and parsing the data of
        all of them takes as long as everything else.
        """
        own = ", ".join(_name(name) for name, stream in self.streams.items() if stream.eventtime is not None)
        streams = ", ".join(map(_name, self.timed))
        first = (
            f"SELECT {told} FROM json_array_elements(data->'messages') WITH ORDINALITY AS items (item, number) "
            f"WHERE json_typeof(item->'stream') = 'string' AND item->>'stream' IN ({streams}) ORDER BY number LIMIT 1"
        )
        questions = [f"stream IN ({own})", _MAY_HAVE_MESSAGES, "json_typeof(data->'messages') = 'array'"]
        if all(stream.eventtime is not None and stream.eventtime.type is None for stream in self.timed.values()):
            # All times are the event's own then, and a message matters only to what is said of one that is wrong.
            questions.insert(0, f"(occurred_at < {EARLIEST} OR occurred_at > received_at + {AHEAD_MAX_NS})")
        found = f"({first})"
        for question in reversed(questions):
            found = f"CASE WHEN {question} THEN {found} END"
        return found

    def _message_text_sql(self) -> str:
        """The text that has a message's time."""
        cases = [
            f"WHEN {_name(name)} THEN {member.postgres_sql(_MESSAGE_DATA)}"
            for name, stream in self.timed.items()
            if (member := time_member(stream)) is not None
        ]
        return f"CASE item->>'stream' {' '.join(cases)} END" if cases else "NULL::text"

    def _slot_sql(self, number: int) -> str:
        cases = [
            f"WHEN {_name(stream)} THEN {members[number].postgres_sql()}"
            for stream, members in self.members.items()
            if number < len(members)
        ]
        return f"CASE stream {' '.join(cases)} END"


def slots_of(definitions: Definitions) -> Slots:
    """The slots that definitions need."""
    used: dict[str, dict[str, None]] = {name: {} for name in definitions.streams}
    for meter in definitions.meters.values():
        names = [meter.value, *meter.group_by, *sorted(meter.where.used_columns if meter.where else ())]
        used.setdefault(meter.stream, {}).update(dict.fromkeys(names))
    for window in definitions.windows.values():
        names = [*window.group_by, *(found.column for found in window.select.values() if found.column is not None)]
        used.setdefault(window.stream, {}).update(dict.fromkeys(names))
    streams = {name: definitions.streams.get(name) or Stream(name) for name in used if name != CONTROL}
    for name, stream in streams.items():
        used[name].update(dict.fromkeys((*stream.columns, *stream.key)))
        if stream.eventtime is not None:
            used[name][stream.eventtime.column] = None
    members = {name: tuple(_members(streams[name], columns)) for name, columns in used.items()}
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
    """The member of data that a column is; None: it is one of the envelope."""
    if column in stream.columns:
        return Member((column,), raw=stream.columns[column].name == "json")
    path = data_path(column)
    return None if path is None or column in ENVELOPE else Member(path)


def time_member(stream: Stream) -> Member | None:
    """The member of data that has a stream's event time; None: the envelope has it."""
    assert stream.eventtime is not None
    return None if stream.eventtime.type is None else member_of(stream, stream.eventtime.column)


def _members(stream: Stream, columns: Mapping[str, None]) -> Iterator[Member]:
    for column in columns:
        if (member := member_of(stream, column)) is not None:
            yield member
    if (stream.key or stream.ordered) and not stream.columns:
        yield WHOLE


def _name(text: str) -> str:
    return literal(STRING, text)
