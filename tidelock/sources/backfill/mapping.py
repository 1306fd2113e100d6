"""Mapping: which column of an older table is which field of an event, as given, or else guessed by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidelock.errors import SettingsError
from tidelock.ingest.wire import ALIASES, FIELDS
from tidelock.sources.fields import NOWHERE, FieldTarget

#: columns that order and identify a row, besides the fields of an event
ID, RECEIVED_AT = "id", "receivedAt"

_DATA = "data."
#: usual names of columns, likeliest first
_GUESSES = {
    ID: ("id", "event_id", "uuid"),
    "stream": ("stream", "type", "event_type", "metric"),
    "ts": ("occurred_at", "ts", "event_time", "timestamp"),
    RECEIVED_AT: ("received_at", "ingested_at", "inserted_at", "created_at"),
    "data": ("payload", "data", "body"),
    "source": ("source",),
    "correlationId": ("correlation_id",),
    "causationId": ("causation_id",),
    "causalityKey": ("causality_key", "workflow_run_id", "run_id"),
    "tenantId": ("tenant_id",),
    "customerRef": ("customer_ref", "customer_id"),
    "resourceId": ("resource_id",),
    "quantity": ("quantity",),
    "idempotencyKey": ("idempotency_key",),
    "op": ("op",),
}
_NAMES = tuple(_GUESSES)
_TEXT = frozenset({"text", "character varying", "character", "citext", "name"})
_WHOLE = frozenset({"smallint", "integer", "bigint"})
_INSTANTS = {"timestamp with time zone", "timestamp without time zone"} | _WHOLE
_IDS = {"uuid", "numeric"} | _TEXT | _WHOLE
_NUMBERS = {"numeric", "real", "double precision"} | _TEXT | _WHOLE


class OldColumn(NamedTuple):
    """A column of the older table, with its type as Postgres writes it."""

    name: str
    type: str

    @property
    def is_text(self) -> bool:
        return self.type in _TEXT


class Assigned(NamedTuple):
    """A column and its field; None: it is left out."""

    column: OldColumn
    target: FieldTarget | None
    #: who says so
    by: str


@dataclass(frozen=True, slots=True)
class TableMap:
    """The field of every column, including the three that order the rows."""

    assigned: tuple[Assigned, ...]
    #: of all rows, where no column names it
    stream: str | None
    tenant_id: str | None

    def column(self, field: str) -> OldColumn | None:
        wanted = FieldTarget(field, False)
        return next((each.column for each in self.assigned if each.target == wanted), None)

    def needed(self, field: str) -> OldColumn:
        column = self.column(field)
        assert column is not None, "checked when it was made"
        return column

    @property
    def carried(self) -> list[Assigned]:
        """What becomes part of the event itself."""
        ordering = (FieldTarget(ID, False), FieldTarget(RECEIVED_AT, False), FieldTarget("ts", False))
        return [each for each in self.assigned if each.target is not None and each.target not in ordering]

    @property
    def canonical(self) -> list[object]:
        """The same for the same meaning: another one is another backfill."""
        return [[(a.column.name, a.target) for a in self.assigned], self.stream, self.tenant_id]


def make_map(
    columns: Sequence[OldColumn],
    told: Mapping[str, tuple[str, str]],
    table: str,
    *,
    stream: str | None = None,
    tenant_id: str | None = None,
) -> TableMap:
    """`told` has the field of a column and where it was given. Raises SettingsError for a contradiction."""
    names = [column.name for column in columns]
    for name, (_, by) in told.items():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise SettingsError(f"{by}: {table} has no column {name!r}{hint} It has {', '.join(names)}")
    fields = {name: _field(field, by) for name, (field, by) in told.items()}
    guessed = _guessed(names, fields, stream)
    assigned = []
    for column in columns:
        if column.name in fields:
            field, by = fields[column.name], told[column.name][1]
        else:
            field, by = guessed.get(column.name, _DATA + column.name), "guess"
        target = None if field == NOWHERE else _target(field)
        assigned.append(Assigned(column, target, by))
    made = TableMap(tuple(assigned), stream, tenant_id)
    _check(made, table)
    return made


def _guessed(names: Sequence[str], told: Mapping[str, str], stream: str | None) -> dict[str, str]:
    """Fields of the columns that were not given; a stream for all rows needs no column."""
    taken = set(told.values()) | ({"stream"} if stream is not None else set())
    free = {name.lower(): name for name in reversed(names) if name not in told}
    found: dict[str, str] = {}
    for field, guesses in _GUESSES.items():
        if field not in taken:
            column = next((free[guess] for guess in guesses if guess in free), None)
            if column is not None:
                found[column] = field
    return found


def _field(text: str, by: str) -> str:
    if text == NOWHERE or (text.startswith(_DATA) and text != _DATA):
        return text
    known = {**{name: name for name in _NAMES}, **{alias: ALIASES[alias] for alias in ALIASES if alias in FIELDS}}
    known |= {_snake(name): field for name, field in known.items()}
    if text not in known:
        near = difflib.get_close_matches(text, known, n=1, cutoff=0.0)[0]
        raise SettingsError(
            f"{by}: there is no field {text!r}, did you mean {near}? Known fields: {', '.join(_NAMES)}, data.NAME "
            "for a "
            f"member of data, and {NOWHERE} to leave a column out"
        )
    return known[text]


def _target(field: str) -> FieldTarget:
    return FieldTarget(field.removeprefix(_DATA), True) if field.startswith(_DATA) else FieldTarget(field, False)


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def _check(made: TableMap, table: str) -> None:
    targets = [each.target for each in made.assigned if each.target is not None]
    for each in made.assigned:
        if each.target is not None and targets.count(each.target) > 1:
            what = f"data.{each.target.name}" if each.target.is_member else each.target.name
            raise SettingsError(f"{table} has two columns for {what}; leave one out with --map COLUMN={NOWHERE}")
    columns = ", ".join(f"{each.column.name} ({each.column.type})" for each in made.assigned)
    for field, why in ((ID, "rows are identified by it"), (RECEIVED_AT, "rows are ordered by it")):
        if made.column(field) is None:
            raise SettingsError(
                f"no column of {table} is recognised as {field}, and {why}; pass --map COLUMN={field}. Columns: "
                f"{columns}"
            )
    if made.stream is None and made.column("stream") is None:
        raise SettingsError(
            f"no column of {table} names the stream; pass --map COLUMN=stream, or --stream NAME for all rows. "
            f"Columns: {columns}"
        )
    _check_types(made, table)


def _check_types(made: TableMap, table: str) -> None:
    instants = "timestamp with time zone, timestamp (read as UTC) or a whole number of milliseconds since 1970"
    allowed = {
        RECEIVED_AT: (_INSTANTS, instants),
        "ts": (_INSTANTS, instants),
        ID: (_IDS, "text, a uuid or a number"),
        "quantity": (_NUMBERS, "a number or text"),
    }
    for field, (types, told) in allowed.items():
        column = made.column(field)
        if column is not None and column.type not in types:
            raise SettingsError(
                f"{table}.{column.name} is {column.type}, and {field} must be {told}; pass --map COLUMN={field} for "
                "another column, or create a view that converts it and name the view with --table"
            )
