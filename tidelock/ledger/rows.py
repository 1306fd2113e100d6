"""Rows as Postgres's binary COPY takes them.

A row's tail is encoded when the event is admitted, while the database is busy with the previous commit; under the
head lock only its numbers are put before it. The same bytes are what the chain covers, so a change to any column of
a recorded event is found.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

from tidelock.model import Event
from tidelock.quantities import numeric_binary

EVENT_COLUMNS = (
    "ingress_sequence, commit_id, source_timestamp, received_at, occurred_at, tenant_id, stream, customer_ref, "
    "resource_id, row_key, op, quantity, data, causality_key, correlation_id, causation_id, source, "
    "idempotency_key, key_source, content_hash"
)
IDENTITY_COLUMNS = "digest, ingress_sequence, content_hash, key_source"

COPY_START = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_END = b"\xff\xff"

KEY_SOURCE_CODE = {"client": b"c", "derived": b"d"}

_NULL = b"\xff\xff\xff\xff"
_length = Struct("!i").pack
_event_numbers = Struct("!h" + "iq" * 5).pack
_identity = Struct("!hi16siqi32sic").pack


def event_row(
    sequence: int, commit_id: int, source_timestamp: int, received_at: int, occurred_at: int, tail: bytes
) -> bytes:
    numbers = _event_numbers(20, 8, sequence, 8, commit_id, 8, source_timestamp, 8, received_at, 8, occurred_at)
    return numbers + tail


def event_tail(event: Event) -> bytes:
    """Every column from tenant_id on."""
    # Absent fields are told apart here: a call for each costs more than the rest.
    resource_id, row_key, quantity, data = event.resource_id, event.row_key, event.quantity, event.data
    causality_key, correlation_id, causation_id = event.causality_key, event.correlation_id, event.causation_id
    return b"".join(
        (
            _name(event.tenant_id),
            _name(event.stream),
            _name(event.customer_ref),
            _NULL if resource_id is None else _text(resource_id),
            _NULL if row_key is None else _text(row_key),
            _name(event.op),
            _NULL if quantity is None else _quantity(quantity),
            _NULL if data is None else _length(len(data)) + data,
            _NULL if causality_key is None else _text(causality_key),
            _NULL if correlation_id is None else _text(correlation_id),
            _NULL if causation_id is None else _text(causation_id),
            _name(event.source),
            _text(event.keys[0]) if event.keys else _NULL,
            _KEY_SOURCE_FIELD[event.key_source],
            b"\0\0\0\x20" + event.content_hash,
        )
    )


def identity_row(digest: bytes, sequence: int, content_hash: bytes, key_source: str) -> bytes:
    return _identity(4, 16, digest, 8, sequence, 32, content_hash, 1, KEY_SOURCE_CODE[key_source])


def _bytes(value: bytes) -> bytes:
    return _length(len(value)) + value


def _text(value: str) -> bytes:
    encoded = value.encode()
    return _length(len(encoded)) + encoded


@lru_cache(maxsize=65_536)
def _name(value: str | None) -> bytes:
    """For what repeats from event to event."""
    return _NULL if value is None else _text(value)


@lru_cache(maxsize=65_536)
def _quantity(text: str) -> bytes:
    return _bytes(numeric_binary(text))


_KEY_SOURCE_FIELD = {"none": _NULL} | {source: _bytes(code) for source, code in KEY_SOURCE_CODE.items()}
