"""Selections: what is shown of rows and row events, under which names, compiled once and shared.

What shows one is an expression of Python made for it, a dictionary in the order of the answer, which is encoded in one
go: nothing is looked up by name, and no type is asked for, while events pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from tidelock.columns import STRING, ColumnType, decimal_form
from tidelock.decimals import readable
from tidelock.definitions.graphqlnames import UPDATE
from tidelock.instants import format_instant
from tidelock.tables import Table
from tidelock.views.views import ViewEvent

TENANT = "tenant_id"
TYPENAME = "__typename"
#: name in the answer -> column, or TYPENAME
Shown = Mapping[str, str]

#: members of a row event, but for its row
_OF_EVENTS = {"operation": "event.operation", "fields": "event.fields", "ts_timestamp": "str(event.source_timestamp)"}
_encode = msgspec.json.Encoder().encode


def json_line(text: str) -> msgspec.Raw:
    """JSON as it was sent, but on one line, as some transports need it. A line's end is a space between its parts."""
    if "\n" in text or "\r" in text:
        text = text.replace("\n", " ").replace("\r", " ")
    return readable(text.encode())


#: forms of values that have another outside than inside, as calls
_FORMS = {"bigint": "str", "decimal": "decimal_form", "timestamp": "format_instant", "json": "json_line"}
#: as queries read them, decimals are texts already
_READ_FORMS = {name: form for name, form in _FORMS.items() if name != "decimal"}
_NAMES = {
    "encode": _encode,
    "decimal_form": decimal_form,
    "format_instant": format_instant,
    "json_line": json_line,
}


class Selection:
    """What is shown of a table's row events. Two that show the same are one object.

    So it is compared and hashed by identity, which is what makes looking an encoding up cheap.
    """

    __slots__ = ("__weakref__", "_make", "table")

    def __init__(self, table: str, source: str) -> None:
        #: its name
        self.table = table
        self._make = _events_encoder(source)

    def encode(self, event: ViewEvent) -> bytes:
        """The payload `{"data":{"<name>":{...}}}` of an event, without line ends.

        Made once for an event and selection: kept in `event.encoded`.
        """
        made = event.encoded.get(self)
        if made is None:
            made = event.encoded[self] = self._make(event)
        return made


_selections: WeakValueDictionary[tuple[str, str], Selection] = WeakValueDictionary()


def select_events(table: Table, name: str, members: Mapping[str, str | Shown]) -> Selection:
    """The selection that shows row events under a name: `members` are theirs, by the names in the answer.

    A member is `operation`, `fields`, `ts_timestamp`, `__typename`, or what is shown of the row.
    """
    types = {TENANT: STRING, **table.columns}

    def member(what: str | Shown) -> str:
        if isinstance(what, str):
            return repr(table.name + UPDATE) if what == TYPENAME else _OF_EVENTS[what]
        return _object(
            {
                alias: repr(table.name) if column == TYPENAME else _value(f"row[{column!r}]", _FORMS, types[column])
                for alias, column in what.items()
            }
        )

    shown = _object({alias: member(what) for alias, what in members.items()})
    key = table.name, f"{{'data': {{{name!r}: {shown}}}}}"
    found = _selections.get(key)
    if found is None:
        found = _selections[key] = Selection(*key)
    return found


def select_rows(table: Table, shown: Shown, columns: Sequence[str]) -> Callable[[Sequence[Any]], bytes]:
    """What encodes rows that are read with these columns, as `queries` reads them: an object of what is shown."""
    types = {TENANT: STRING, **table.columns}
    places = {column: number for number, column in enumerate(columns)}
    return _rows_encoder(
        _object(
            {
                alias: repr(table.name)
                if column == TYPENAME
                else _value(f"row[{places[column]}]", _READ_FORMS, types[column])
                for alias, column in shown.items()
            }
        )
    )


def _object(members: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{name!r}: {value}" for name, value in members.items()) + "}"


def _value(value: str, forms: Mapping[str, str], type_: ColumnType) -> str:
    form = forms.get(type_.name)
    return value if form is None else f"None if (value := {value}) is None else {form}(value)"


@lru_cache(maxsize=1_000)
def _events_encoder(source: str) -> Callable[[ViewEvent], bytes]:
    return _compiled(f"def encoded(event):\n row = event.row\n return encode({source})")


@lru_cache(maxsize=1_000)
def _rows_encoder(source: str) -> Callable[[Sequence[Any]], bytes]:
    return _compiled(f"def encoded(row):\n return encode({source})")


def _compiled(source: str) -> Callable[[Any], bytes]:
    made: dict[str, Any] = dict(_NAMES)
    # Nothing of a client's is in it but names, which by GraphQL's grammar are letters, digits and underscores.
    exec(source, made)
    encoder: Callable[[Any], bytes] = made["encoded"]
    return encoder
