"""Payloads: the body of a webhook, and the row in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import psycopg

from tidelock.changes.reader import column_forms
from tidelock.columns import ColumnType
from tidelock.instants import MILLISECOND, format_instant
from tidelock.postgres.queries import load
from tidelock.tables import read_tables
from tidelock.triggers.definition import event_id
from tidelock.triggers.outbox import Transition
from tidelock.triggers.watches import Crossing, Watch

QUERIES = load("tidelock.triggers", "sql/evaluation.sql")

_Encode = Callable[[Mapping[str, Any]], bytes]


def data_forms(columns: Mapping[str, ColumnType]) -> Callable[[Mapping[str, Any]], bytes]:
    """Formats a table's rows as JSON for webhooks: every column in its outside form, and never the tenant."""
    forms = column_forms(columns)

    def encoded(row: Mapping[str, Any]) -> bytes:
        shown = {name: value for name, value in row.items() if name != "tenant_id"}
        for name, form in forms.items():
            if shown.get(name) is not None:
                shown[name] = form(shown[name])
        return msgspec.json.encode(shown)

    return encoded


def payload(
    *, event_id: str, event_type: str, trigger: str, source_timestamp: int, data: bytes, sent_at_ns: int
) -> bytes:
    """The body of one attempt. Only `timestamp`, which is the attempt's, differs between attempts.

    `data` is already JSON and is inserted unchanged; nothing else here needs escaping.
    """
    timestamp = format_instant(sent_at_ns - sent_at_ns % MILLISECOND)
    return (
        f'{{"event_id":"{event_id}","event_type":"{event_type}","trigger_name":"{trigger}",'
        f'"timestamp":"{timestamp}","source_timestamp":"{source_timestamp}","data":'
    ).encode() + b"%b}" % data


class TransitionBuilder:
    """Formats the data of transitions. A row has the columns it had at the transition."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        #: by trigger, and by the names of a row's columns
        self._encoders: dict[tuple[Watch, tuple[str, ...]], _Encode] = {}

    def transition(self, crossing: Crossing) -> Transition:
        trigger = crossing.watch.trigger
        return Transition(
            trigger_id=crossing.watch.id,
            tenant_id=trigger.tenant_id,
            key=crossing.key,
            event_id=event_id(trigger.name, crossing.key, crossing.source_timestamp),
            event_type=crossing.event_type,
            source_timestamp=crossing.source_timestamp,
            data=self._encoder(crossing)(crossing.row),
        )

    def _encoder(self, crossing: Crossing) -> _Encode:
        place = crossing.watch, tuple(crossing.row)
        if place not in self._encoders:
            self._encoders[place] = data_forms(self._columns(crossing.watch, place[1]))
        return self._encoders[place]

    def _columns(self, watch: Watch, names: tuple[str, ...]) -> Mapping[str, ColumnType]:
        """The types that determine the format of values: for columns added later, the current ones."""
        known = watch.trigger.columns or {}
        if all(name in known for name in names):
            return known
        row = self._connection.execute(QUERIES["frontier"]).fetchone()
        assert row is not None, "this query always has a row"
        table = read_tables(row[1] or ()).get(watch.trigger.table)
        return known if table is None else {**table.columns, **known}
