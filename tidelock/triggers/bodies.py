"""Bodies of webhooks: the full row of a crossing as JSON, and its id."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import psycopg

from tidelock.columns import ColumnType
from tidelock.fold.tables import read_tables
from tidelock.postgres.queries import load
from tidelock.triggers.ids import event_id
from tidelock.triggers.outbox import Transition
from tidelock.triggers.payloads import data_forms
from tidelock.triggers.watches import Crossing, Watch

QUERIES = load("tidelock.triggers", "sql/evaluation.sql")

_Encode = Callable[[Mapping[str, Any]], bytes]


class Bodies:
    """Makes what is told of crossings. A row is told with the columns it had when it crossed."""

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
        """The types that decide the forms of values: of columns that came later, those of now."""
        known = watch.trigger.columns or {}
        if all(name in known for name in names):
            return known
        row = self._connection.execute(QUERIES["frontier"]).fetchone()
        assert row is not None, "this query always has a row"
        table = read_tables(row[1] or ()).get(watch.trigger.table)
        return known if table is None else {**table.columns, **known}
