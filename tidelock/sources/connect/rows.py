"""Rows of a foreign view as the events that are sent to the ledger, a collection each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from tidelock.definitions import Stream
from tidelock.definitions.rowkeys import MissingKeyColumn, row_key
from tidelock.ingest.body import JSON, decode
from tidelock.model import Op
from tidelock.sources.connect.connector import KeyViolation, RowChange, Unrecordable
from tidelock.sources.sender import Chunk

_encode = msgspec.json.Encoder().encode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class KeyedChange(NamedTuple):
    """A change with the text of its key, which orders the rows of a moment and identifies them."""

    key: str
    op: Op
    data: bytes


def rows(stream: Stream, view: str, changes: Sequence[RowChange]) -> list[KeyedChange]:
    """The changed rows, by key. Raises Unrecordable."""
    try:
        made = sorted(KeyedChange(row_key(stream, {}, change.data), change.op, change.data) for change in changes)
    except MissingKeyColumn as missing:
        raise Unrecordable(
            f'view {view} has a row without a value in "{missing.column}", which is part of the key of stream '
            f'"{stream.name}"; exclude such rows from the view'
        ) from None
    for row, following in pairwise(made):
        if row.key == following.key:
            raise KeyViolation(f"view {view} has several rows of the key {row.key!r} at one timestamp")
    return made


def key_members(data: bytes, key: Sequence[str]) -> bytes:
    """The key members of a row."""
    found = _members(data)
    return _encode({name: found[name] for name in key if name in found})


def chunk(rows: Sequence[KeyedChange], at_ms: int, *, stream: str, tenant_id: str, view: str, source: str) -> Chunk:
    """A collection. The identity of an event is its view, key and timestamp: a repeat is a duplicate."""
    sent = [
        {
            "tenantId": tenant_id,
            "stream": stream,
            "ts": at_ms,
            "data": msgspec.Raw(row.data),
            "op": row.op,
            "idempotencyKey": _encode((view, row.key, str(at_ms))).decode(),
            "source": source,
        }
        for row in rows
    ]
    # Parsed like a request's body, with the same checks.
    body = decode(_encode(sent), JSON, len(sent))
    return Chunk(0, events=list(body.events), escapes=body.escapes)


def pages(rows: Sequence[KeyedChange], size: int) -> Iterator[Sequence[KeyedChange]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
