"""Selections: what a client selects of rows and row events, under which names, compiled once and shared.

A selection is compiled to a Python expression, a dictionary in the order of the response, which is encoded in one go:
no names or types are looked up per event.
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
#: response name -> column, or TYPENAME
Shown = Mapping[str, str]

#: members of a row event, except its row
_OF_EVENTS = {"operation": "event.operation", "fields": "event.fields", "ts_timestamp": "str(event.source_timestamp)"}
_encode = msgspec.json.Encoder().encode


def json_line(text: str) -> msgspec.Raw:
    """JSON as sent, but on one line, as some transports need. Line ends become spaces."""
    if "\n" in text or "\r" in text:
        text = text.replace("\n", " ").replace("\r", " ")
    return readable(text.encode())


#: conversions of values whose outside form differs, as calls
_FORMS = {"bigint": "str", "decimal": "decimal_form", "timestamp": "format_instant", "json": "json_line"}
#: in queries, decimals are already strings
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

        Created once per event and selection, and kept in `event.encoded`.
        """
        made = event.encoded.get(self)
        if made is None:
            made = event.encoded[self] = self._make(event)
        return made


_selections: WeakValueDictionary[tuple[str, str], Selection] = WeakValueDictionary()


def select_events(table: Table, name: str, members: Mapping[str, str | Shown]) -> Selection:
    """The selection of row events under a name: `members` by response name.

    A member is `operation`, `fields`, `ts_timestamp`, `__typename`, or the selection of the row.
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
    """The encoder of rows as `queries` reads them with these columns: an object of the selected members."""
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
    # It contains nothing from a client but names, which by GraphQL's grammar are letters, digits and underscores.
    exec(source, made)
    encoder: Callable[[Any], bytes] = made["encoded"]
    return encoder
