"""Events of an older table: its rows as the chunks that are sent to the ledger, and a preview of the first of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from tidelock.ingest.admit import Admission
from tidelock.ingest.body import JSON, decode
from tidelock.ingest.identity import Salts
from tidelock.ingest.wire import FIELDS, WireEvent
from tidelock.instants import EARLIEST, LATEST, format_instant
from tidelock.model import Event, Problem, Rejected
from tidelock.settings import Settings
from tidelock.sources.backfill.mapping import ID, TableMap
from tidelock.sources.backfill.oldtable import OldRow, OldTable, SortKey
from tidelock.sources.fields import FieldTarget, event_text
from tidelock.sources.sender import Chunk

# Together at most the size of a request; a single row may be larger and is then refused alone.
_CHUNK_BYTES_MAX = 16 * 2**20
_MICROSECOND = 1_000
_TS, _KEY = FieldTarget("ts", False), FieldTarget("idempotencyKey", False)
_ROWS_SHOWN = 5


@dataclass(slots=True)
class OldChunk(Chunk):
    """Rows that are recorded together; `ids[i]` is of `events[i]`."""

    ids: list[str] = field(default_factory=list)
    #: of its last row
    sort_key: SortKey = ("", "", "")


class EventMaker:
    """Converts rows to events, by the mapping of columns."""

    def __init__(self, columns: TableMap, table: str) -> None:
        carried = columns.carried
        self._targets: list[FieldTarget | None] = [each.target for each in carried] + [_TS]
        self._keyed = columns.column("idempotencyKey") is not None
        # IDs begin at 1 in every table, so they include the table's name.
        self._prefix = "" if columns.needed(ID).is_text or columns.needed(ID).type == "uuid" else f"{table}:"
        self._columns = columns
        if not self._keyed:
            self._targets.append(_KEY)

    @property
    def key(self) -> str:
        """The identity of a row, for people."""
        if self._keyed:
            return "the column that is the idempotencyKey"
        return f"{self._prefix}{{{self._columns.needed(ID).name}}}"

    def event(self, row: OldRow) -> tuple[bytes | Rejected, int | None]:
        """The event's JSON text, or why it has none, and when it was received."""
        received = _instant(row.received_us)
        if received is None:
            return _out_of_range(self._columns.needed("receivedAt").name, row.sort_key[0]), None
        values: list[object] = [
            value if value is None or target is None or not target.is_member else msgspec.Raw(value.encode())
            for value, target in zip(row.values, self._targets, strict=False)
        ]
        occurred = _instant(row.occurred_us)
        if occurred is None and not row.untimed:
            return _out_of_range(self._columns.needed("ts").name, row.sort_key[1]), None
        values.append(None if occurred is None else format_instant(occurred))
        if not self._keyed:
            values.append(self._prefix + row.sort_key[2])
        try:
            return event_text(values, self._targets), received
        except RecursionError:
            return Rejected(Problem("invalid_event", "data is nested too deeply", "data")), None

    def completed(self, event: WireEvent | Rejected, row_id: str) -> WireEvent | Rejected:
        if isinstance(event, Rejected):
            return event
        if event.stream is None:
            event.stream = self._columns.stream
        if event.tenant_id is None:
            event.tenant_id = self._columns.tenant_id
        if event.idempotency_key is None:
            # A key column may be empty in some rows; without a key a second run would record the row again.
            event.idempotency_key = f"{self._prefix}{row_id}"
        return event


def chunks(rows: Iterator[OldRow], size: int, maker: EventMaker, done: int) -> Iterator[OldChunk]:
    """The rows in groups of at most `size`; the first one is row `done` + 1.

    The end of a group depends only on its start and its rows: a resumed backfill forms the same groups.
    """
    group: list[tuple[OldRow, bytes | Rejected, int | None]] = []
    held = 0
    for row in rows:
        text, received = maker.event(row)
        group.append((row, text, received))
        held += len(text) if isinstance(text, bytes) else 0
        if len(group) == size or held >= _CHUNK_BYTES_MAX:
            done += len(group)
            yield _decoded(group, maker, done)
            group, held = [], 0
    if group:
        yield _decoded(group, maker, done + len(group))


def _decoded(group: list[tuple[OldRow, bytes | Rejected, int | None]], maker: EventMaker, last: int) -> OldChunk:
    texts = [text for _, text, _ in group if isinstance(text, bytes)]
    # An array, not lines: the JSON of a column may have line breaks in it.
    body = decode(b"[" + b",".join(texts) + b"]", JSON, len(texts))
    decoded = iter(body.events)
    made = OldChunk(last, escapes=body.escapes, received=[], sort_key=group[-1][0].sort_key)
    assert made.received is not None
    for row, text, received in group:
        event = text if isinstance(text, Rejected) else next(decoded)
        made.events.append(maker.completed(event, row.sort_key[2]))
        made.received.append(received)
        made.ids.append(row.sort_key[2])
    return made


def _instant(microseconds: int | None) -> int | None:
    """In nanoseconds; None: missing, or outside the ledger's range."""
    if microseconds is None or not EARLIEST <= microseconds * _MICROSECOND <= LATEST:
        return None
    return microseconds * _MICROSECOND


def _out_of_range(column: str, value: str) -> Rejected:
    return Rejected(
        Problem("invalid_timestamp", f"{column} is {value}, which is outside the years 1678 to 2261", column)
    )


class ColumnPreview(msgspec.Struct, frozen=True):
    """A column, what it would be, and who says so."""

    column: str
    type: str
    field: str | None
    by: str


class RowPreview(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One of the first rows: the event it would become, or why it would not become one."""

    id: str
    received_at: str | None = None
    event: dict[str, object] | None = None
    error: Problem | None = None


class Preview(msgspec.Struct, frozen=True, rename="camel"):
    table: str
    rows: int
    #: rows without a place in the order
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
    # Every row has its own key, so no salt is needed.
    admission = Admission(settings.definitions, Salts((), 0), opened, settings.event_bytes_max, settings.data_depth_max)
    first: list[RowPreview] = []
    for chunk in chunks(islice(table.rows(None, _ROWS_SHOWN), _ROWS_SHOWN), _ROWS_SHOWN, maker, 0):
        for event, received, row_id in zip(chunk.events, chunk.received or (), chunk.ids, strict=True):
            first.append(_row_preview(event, received, row_id, admission))
    unplaced, _ = table.unplaced()
    return Preview(
        table=table.name, rows=table.count(None), unplaced=unplaced, columns=columns, key=maker.key, first=first
    )


def _row_preview(event: WireEvent | Rejected, received: int | None, row_id: str, admission: Admission) -> RowPreview:
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
