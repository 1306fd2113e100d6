"""A preview: what a backfill would do, without a ledger."""

from __future__ import annotations

from itertools import islice

import msgspec

from tidelock.ingest.admit import Admission
from tidelock.ingest.identity import Salts
from tidelock.ingest.wire import FIELDS, WireEvent
from tidelock.instants import format_instant
from tidelock.model import Event, Problem, Rejected
from tidelock.settings import Settings
from tidelock.sources.backfill.chunks import EventMaker, chunks
from tidelock.sources.backfill.oldtable import OldTable

_ROWS_SHOWN = 5


class ColumnPreview(msgspec.Struct, frozen=True):
    """A column, what it would be, and who says so."""

    column: str
    type: str
    field: str | None
    by: str


class RowPreview(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One of the first rows: the event it would be, or why it would be none."""

    id: str
    received_at: str | None = None
    event: dict[str, object] | None = None
    error: Problem | None = None


class Preview(msgspec.Struct, frozen=True, rename="camel"):
    table: str
    rows: int
    #: rows that have no place in the order
    unplaced: int
    columns: list[ColumnPreview]
    #: what identifies a row
    key: str
    first: list[RowPreview]


def preview(table: OldTable, settings: Settings) -> Preview:
    assert table.columns is not None, "a table is chosen first"
    maker = EventMaker(table.columns, table.name)
    columns = [
        ColumnPreview(
            each.column.name,
            each.column.type,
            None if each.target is None else ("data." if each.target.is_member else "") + each.target.name,
            each.by,
        )
        for each in table.columns.assigned
    ]
    opened = True if settings.streams_open is None else settings.streams_open
    # Every row has a key of its own, so no salt is needed.
    admission = Admission(settings.definitions, Salts((), 0), opened, settings.event_bytes_max, settings.data_depth_max)
    first: list[RowPreview] = []
    for chunk in chunks(islice(table.rows(None, _ROWS_SHOWN), _ROWS_SHOWN), _ROWS_SHOWN, maker, 0):
        for event, received, row_id in zip(chunk.events, chunk.received or (), chunk.ids, strict=True):
            first.append(_row(event, received, row_id, admission))
    unplaced, _ = table.unplaced()
    return Preview(table.name, table.count(None), unplaced, columns, maker.key, first)


def _row(event: WireEvent | Rejected, received: int | None, row_id: str, admission: Admission) -> RowPreview:
    judged = event if isinstance(event, Rejected) else admission.admit(event)
    if not isinstance(judged, Event):
        return RowPreview(row_id, error=judged.error)
    assert not isinstance(event, Rejected)
    told = {
        name: getattr(event, attribute)
        for name, attribute in zip(FIELDS, WireEvent.__struct_fields__, strict=True)
        if isinstance(getattr(event, attribute), str)
    }
    if judged.quantity is not None:
        told["quantity"] = judged.quantity
    if judged.data is not None:
        told["data"] = msgspec.Raw(judged.data)
    return RowPreview(row_id, None if received is None else format_instant(received), told)


def shown(row: RowPreview) -> str:
    """In one line, for people."""
    return msgspec.json.encode({"receivedAt": row.received_at, **(row.event or {})}).decode()
