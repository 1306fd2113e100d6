"""Chunks of a file: its rows as the events that are sent to the ledger together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from tidelock.errors import SettingsError
from tidelock.ingest.body import NDJSON, decode
from tidelock.ingest.wire import WireEvent, long_number, long_number_in
from tidelock.model import CONTROL, CORRECTIONS, Rejected
from tidelock.sources.files.rows import FileRow
from tidelock.sources.sender import Chunk

# Together at most the size of a request; a single row may be larger and is then refused alone.
_CHUNK_BYTES_MAX = 16 * 2**20
_EXPORT_MARK = b'"ingressSequence"'


class _Unreadable(msgspec.Struct):
    """Why data is exported as a string: its JSON has a number too long for readers."""

    code: Literal["unreadable"]


class _Exported(WireEvent):
    """A line of an export: an event with its place in the ledger it came from."""

    # Numbers are text in CSV.
    ingress_sequence: int | str | None = None
    commit_id: int | str | None = None
    source_timestamp: str | int | None = None
    received_at: str | None = None
    key_source: str | None = None
    target_sequence: int | str | None = None
    error: _Unreadable | None = None


_exported = msgspec.json.Decoder(_Exported)


@dataclass(slots=True)
class Defaults:
    """Defaults for rows that do not name them."""

    #: of the file, in hex
    file_digest: str
    stream: str | None
    tenant_id: str | None
    #: None: they name none
    batch_id: str | None = None


@dataclass(slots=True)
class FileChunk(Chunk):
    """`events[i]` is of `rows[i]`."""

    rows: list[FileRow] = field(default_factory=list)
    #: rows that are not events of a producer
    skipped: int = 0


def chunks(rows: Iterator[tuple[int, FileRow]], size: int, defaults: Defaults) -> Iterator[FileChunk]:
    """The rows in groups of at most `size`, decoded; each comes with its place in the order of this import."""
    group: list[FileRow] = []
    held = last = 0
    try:
        for place, row in rows:
            group.append(row)
            last = place
            held += len(row.text) if isinstance(row.text, bytes) else 0
            if len(group) == size or held >= _CHUNK_BYTES_MAX:
                yield _decoded(group, last, defaults)
                group, held = [], 0
    except SettingsError:
        # The file ends in an unreadable row: those before it are fine.
        if group:
            yield _decoded(group, last, defaults)
        raise
    if group:
        yield _decoded(group, last, defaults)


def _decoded(rows: list[FileRow], last: int, defaults: Defaults) -> FileChunk:
    chunk = FileChunk(last)
    # All at once, which is fast; rows of an export have additional fields.
    plain = [row.text for row in rows if isinstance(row.text, bytes) and _EXPORT_MARK not in row.text]
    decoded = _read(b"\n".join(plain), len(plain), chunk)
    for row in rows:
        if isinstance(row.text, Rejected):
            _add(chunk, row, row.text)
        elif _EXPORT_MARK in row.text:
            _add_exported(chunk, row, row.text, defaults)
        else:
            _add(chunk, row, _completed(next(decoded), row.number, defaults))
    return chunk


def _read(lines: bytes, count: int, chunk: FileChunk) -> Iterator[WireEvent | Rejected]:
    body = decode(lines, NDJSON, count)
    chunk.escapes |= body.escapes
    return iter(body.events)


def _add(chunk: FileChunk, row: FileRow, event: WireEvent | Rejected) -> None:
    chunk.rows.append(row)
    chunk.events.append(event)


def _add_exported(chunk: FileChunk, row: FileRow, text: bytes, defaults: Defaults) -> None:
    found = _place_in_export(text)
    if found is None:
        # It only looked like one: some data mentions the mark.
        _add(chunk, row, _completed(next(_read(text, 1, chunk)), row.number, defaults))
        return
    if found.stream == CONTROL:
        chunk.skipped += 1
        return
    chunk.escapes |= b"\\u" in text
    problem = long_number(text) if found.error is None else long_number_in("data", "data")
    if problem is not None:
        _add(chunk, row, Rejected(problem))
        return
    event = WireEvent(**{name: getattr(found, name) for name in WireEvent.__struct_fields__})
    if found.op in CORRECTIONS:
        _as_sent(event, chunk)
    elif found.key_source == "client" and found.occurred_at == found.received_at:
        chunk.timed_by_receipt.append(len(chunk.events))
    if event.idempotency_key is None:
        # It had no identity; its place in the other ledger serves as one, whatever was exported how often.
        event.idempotency_key = f"import:{found.source_timestamp}:{found.ingress_sequence}"
    _add(chunk, row, _completed(event, row.number, defaults))


def _as_sent(event: WireEvent, chunk: FileChunk) -> None:
    """An export of a correction has what it took over from its target too, which no producer may send."""
    event.ts = event.occurred_at = event.customer_ref = event.resource_id = None
    if event.op == "amend":
        chunk.amended.append(len(chunk.events))


def _place_in_export(text: bytes) -> _Exported | None:
    try:
        text.decode()
        found = _exported.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None if found.ingress_sequence is None or found.source_timestamp is None else found


def _completed(event: WireEvent | Rejected, number: int, defaults: Defaults) -> WireEvent | Rejected:
    if isinstance(event, Rejected):
        return event
    if event.stream is None and event.metric is None:
        event.stream = defaults.stream
    if event.tenant_id is None:
        event.tenant_id = defaults.tenant_id
    if event.batch_id is None:
        event.batch_id = defaults.batch_id
    if event.op in CORRECTIONS:
        # Its key derives from its target.
        return event
    if event.ts is None and event.occurred_at is None and event.idempotency_key is None:
        # Without it a second run would record the row again.
        event.idempotency_key = f"import:{defaults.file_digest}:{number}"
    return event
