"""Chunks: rows of an older table as the events that are sent to the ledger, a collection each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from tidelock.ingest.body import JSON, decode
from tidelock.ingest.wire import WireEvent
from tidelock.instants import EARLIEST, LATEST, format_instant
from tidelock.model import Problem, Rejected
from tidelock.sources.backfill.mapping import ID, TableMap
from tidelock.sources.backfill.oldtable import OldRow
from tidelock.sources.backfill.statements import Place
from tidelock.sources.files.mapping import Target
from tidelock.sources.files.rows import event_text
from tidelock.sources.files.sendings import Chunk

# Together no more than a request may carry; one row alone may be larger and is then refused by itself.
_CHUNK_BYTES_MAX = 16 * 2**20
_MICROSECOND = 1_000
_TS, _KEY = Target("ts", False), Target("idempotencyKey", False)


@dataclass(slots=True)
class OldChunk(Chunk):
    """Rows that are recorded together; `ids[i]` is of `events[i]`."""

    ids: list[str] = field(default_factory=list)
    #: of its last row
    place: Place = ("", "", "")


class EventMaker:
    """Makes events of rows, by what their columns mean."""

    def __init__(self, columns: TableMap, table: str) -> None:
        carried = columns.carried
        self._targets: list[Target | None] = [each.target for each in carried] + [_TS]
        self._keyed = columns.column("idempotencyKey") is not None
        # Numbers begin at 1 in every table, so they say which one they are of.
        self._prefix = "" if columns.needed(ID).is_text or columns.needed(ID).type == "uuid" else f"{table}:"
        self._columns = columns
        if not self._keyed:
            self._targets.append(_KEY)

    @property
    def key(self) -> str:
        """What identifies a row, for people."""
        if self._keyed:
            return "the column that is the idempotencyKey"
        return f"{self._prefix}{{{self._columns.needed(ID).name}}}"

    def event(self, row: OldRow) -> tuple[bytes | Rejected, int | None]:
        """The event's JSON text, or why there is none, and when it was received."""
        received = _instant(row.received_us)
        if received is None:
            return _out_of_range(self._columns.needed("receivedAt").name, row.place[0]), None
        values: list[object] = [
            value if value is None or target is None or not target.is_member else msgspec.Raw(value.encode())
            for value, target in zip(row.values, self._targets, strict=False)
        ]
        occurred = _instant(row.occurred_us)
        if occurred is None and not row.untimed:
            return _out_of_range(self._columns.needed("ts").name, row.place[1]), None
        values.append(None if occurred is None else format_instant(occurred))
        if not self._keyed:
            values.append(self._prefix + row.place[2])
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
            # A column of keys may be empty in some rows; without one a second try would record the row again.
            event.idempotency_key = f"{self._prefix}{row_id}"
        return event


def chunks(rows: Iterator[OldRow], size: int, maker: EventMaker, done: int) -> Iterator[OldChunk]:
    """The rows in groups of at most `size`; the first one is row `done` + 1.

    Where a group ends depends on where it began and on its rows only: a backfill that goes on makes the same groups.
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
    made = OldChunk(last, escapes=body.escapes, received=[], place=group[-1][0].place)
    assert made.received is not None
    for row, text, received in group:
        event = text if isinstance(text, Rejected) else next(decoded)
        made.events.append(maker.completed(event, row.place[2]))
        made.received.append(received)
        made.ids.append(row.place[2])
    return made


def _instant(microseconds: int | None) -> int | None:
    """In nanoseconds; None: there is none, or it is one that the ledger cannot hold."""
    if microseconds is None or not EARLIEST <= microseconds * _MICROSECOND <= LATEST:
        return None
    return microseconds * _MICROSECOND


def _out_of_range(column: str, value: str) -> Rejected:
    return Rejected(Problem("invalid_timestamp", f"{column} is {value}, which lies outside 1678 to 2261", column))
