"""Readings: the columns of a stream's events as SQL over a range, Spark's or another that has the same casts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from tidelock.columns import ENVELOPE, STRING, ColumnType
from tidelock.definitions import Stream
from tidelock.definitions.eventtimes import EventTime
from tidelock.fold.slots import Slots, member_of
from tidelock.ingest.wire import KEY_BYTES_MAX
from tidelock.spark import casts
from tidelock.where.sql import SPARK, Dialect, literal

#: types whose values are the texts themselves
_TEXTS = ("string", "json")


class Casts(Protocol):
    """How values are read from texts, and written again, by one kind of SQL; `spark.casts` says what each is."""

    def typed(self, type_: ColumnType, text: str) -> str: ...
    def canonical(self, type_: ColumnType, value: str) -> str: ...
    def quantity(self, type_: ColumnType | None, value: str) -> str: ...
    def json_array(self, texts: Sequence[str]) -> str: ...


class Reading:
    """One stream's columns, by the names that definitions use."""

    def __init__(self, stream: Stream, slots: Slots, dialect: Dialect = SPARK, casts: Casts = casts) -> None:
        self.stream = stream
        self._slots = slots
        self._dialect = dialect
        self._casts = casts
        self._number = list(slots.streams).index(stream.name)

    def decoded(self) -> Iterator[str]:
        """The declared columns in their types, each under a name of its own: `typed` is often used, and long."""
        stream = sql_text(self.stream.name)
        for column, type_ in self.stream.columns.items():
            if type_.name not in _TEXTS:
                yield (
                    f"CASE WHEN stream = {stream} THEN {self._casts.typed(type_, self.source(column))} END AS "
                    f"{self.typed(column)}"
                )

    def typed(self, column: str) -> str:
        """The value in its type; of a path its text."""
        type_ = self.stream.columns.get(column)
        if type_ is None or type_.name in _TEXTS:
            return self.source(column)
        return f"typed_{self._number}_{list(self.stream.columns).index(column)}"

    def as_type(self, column: str, type_: ColumnType) -> str:
        """The value as a filter compares it: a path is of the operand's type, or null."""
        return self._casts.typed(type_, self.source(column)) if self._is_path(column) else self.typed(column)

    def quantity(self, column: str) -> str:
        """The value as something to add up, or null."""
        return self._casts.quantity(self.stream.type_of(column), self.typed(column))

    def text(self, column: str) -> str:
        """The text a value has in keys and groups."""
        return self._casts.canonical(self.stream.type_of(column) or STRING, self.typed(column))

    def joined(self, columns: Iterable[str]) -> str:
        """One column is its text, several are a compact array of texts."""
        texts = [self.text(column) for column in columns]
        return texts[0] if len(texts) == 1 else self._casts.json_array(texts)

    def objection(self) -> str | None:
        """Why an event is an error row and touches no table; null where nothing is wrong."""
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

    def _long_key(self) -> list[tuple[str, str]]:
        """Ingest refuses such keys, which no index holds; the ledger may have some from before the stream had a key."""
        if all((self.stream.type_of(name) or STRING) != STRING for name in self.stream.key):
            return []
        too_long = f"octet_length({self.joined(self.stream.key)}) > {KEY_BYTES_MAX}"
        return [(too_long, f"the row key is longer than {KEY_BYTES_MAX} bytes")]

    def source(self, column: str) -> str:
        """The value as it came: its text, or the envelope's."""
        member = member_of(self.stream, column)
        return self._dialect.quoted(column) if member is None else self._slots.slot(self.stream.name, member)

    def _is_path(self, column: str) -> bool:
        return column not in self.stream.columns and column not in ENVELOPE


def readings(slots: Slots) -> dict[str, Reading]:
    return {name: Reading(stream, slots) for name, stream in slots.streams.items()}


def decoded_sql(slots: Slots) -> str:
    """The events of a range with their declared columns, in their types."""
    columns = [column for reading in readings(slots).values() for column in reading.decoded()]
    return f"SELECT {', '.join(['*', *columns])} FROM events"


def objection_sql(slots: Slots) -> str:
    """What is wrong with an event's columns."""
    objections = {name: objection for name, reading in readings(slots).items() if (objection := reading.objection())}
    return by_stream(objections, "STRING")


def by_stream(expressions: dict[str, str], type_: str) -> str:
    """The expression of an event's stream."""
    if not expressions:
        return f"CAST(NULL AS {type_})"
    cases = " ".join(f"WHEN {sql_text(stream)} THEN {expression}" for stream, expression in expressions.items())
    return f"CASE stream {cases} END"


def no_instant(declared: EventTime) -> str:
    """What is wrong where a column that should have an event's time has none."""
    return f'column "{declared.column}" must be an instant as {declared.type}'


def sql_text(text: str) -> str:
    return literal(STRING, text)
