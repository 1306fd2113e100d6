"""Rows in the format of Postgres's binary COPY, and recorded events read back.

A row's tail is encoded when the event is admitted, while the database is busy with the previous commit; under the head
lock only its numbers are prepended. The chain covers the same bytes, so a change to any column of a recorded event is
found. COPY returns a row as it was written: `verify` compares and hashes rows without decoding them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any

import psycopg
from psycopg.pq import DiagnosticField, ExecStatus

from tidelock.ingest.identity import content_hash
from tidelock.model import Event, KeySource
from tidelock.postgres.queries import load
from tidelock.quantities import normal_quantity, numeric_binary

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

QUERIES = load("tidelock.ledger", "sql/verify.sql")

_PAGE_ROWS = 50_000
_BEFORE_ALL = -(2**63)
_TAIL_FIELDS = range(15)
_numbers = Struct("!2x" + "4xq" * 5).unpack_from
_NUMBERS_SIZE = 2 + 12 * 5
_unpack_length = Struct("!i").unpack_from
#: sequence, commit, source timestamp, moment of receipt, occurrence
Numbers = tuple[int, int, int, int, int]
_NUMERIC_NEGATIVE, _NUMERIC_SPECIAL = 0x4000, 0xC000

KEY_SOURCES: dict[str | None, KeySource] = {"c": "client", "d": "derived", None: "none"}


def event_row(
    sequence: int, commit_id: int, source_timestamp: int, received_at: int, occurred_at: int, tail: bytes
) -> bytes:
    numbers = _event_numbers(20, 8, sequence, 8, commit_id, 8, source_timestamp, 8, received_at, 8, occurred_at)
    return numbers + tail


def event_tail(event: Event) -> bytes:
    """Every column from tenant_id on."""
    # Absent fields are handled inline: a call for each costs more than the rest.
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
    """For values that repeat from event to event."""
    return _NULL if value is None else _text(value)


@lru_cache(maxsize=65_536)
def _quantity(text: str) -> bytes:
    return _bytes(numeric_binary(text))


_KEY_SOURCE_FIELD = {"none": _NULL} | {source: _bytes(code) for source, code in KEY_SOURCE_CODE.items()}


def raw_rows(connection: psycopg.Connection[Any], through: int) -> Generator[bytes, None, None]:
    """Every recorded event up to a sequence, in order. Pages keep each query short: none holds a snapshot for long."""
    after = _BEFORE_ALL
    while True:
        count = 0
        for row in _page(connection, after, through):
            count += 1
            yield row
        if count < _PAGE_ROWS:
            return
        after = row_numbers(row)[0]


def _page(connection: psycopg.Connection[Any], after: int, through: int) -> Iterator[bytes]:
    """One COPY, by libpq's own calls: psycopg's iteration costs several times what the rest of the check does."""
    query = QUERIES["raw_events"] % {b"after": after, b"through": through, b"limit": _PAGE_ROWS}
    pgconn = connection.pgconn
    _expect(pgconn.exec_(query), ExecStatus.COPY_OUT)
    start = len(COPY_START)
    finished = False
    try:
        while True:
            size, message = pgconn.get_copy_data(0)
            if size < 0:
                break
            # The header comes in one message with the first row, the trailer in its own message.
            row = bytes(message)[start:]
            start = 0
            if row and row != COPY_END:
                yield row
        finished = True
    finally:
        if not finished:  # The reader stopped early: nobody else can use the connection in this state.
            pgconn.finish()
    _expect(pgconn.get_result(), ExecStatus.COMMAND_OK)
    pgconn.get_result()


def _expect(result: Any, status: ExecStatus) -> None:
    if result is None or (result.status != status and not result.error_field(DiagnosticField.SQLSTATE)):
        # Not an answer of the server: the connection is lost.
        raise psycopg.OperationalError("the server closed the connection")
    if result.status != status:
        raise psycopg.errors.error_from_result(result)


def row_numbers(row: bytes) -> Numbers:
    return _numbers(row)


def row_tail(row: bytes) -> list[Any]:
    """Every column from tenant_id on: its bytes, or None."""
    fields: list[bytes | None] = []
    at = _NUMBERS_SIZE
    for _ in _TAIL_FIELDS:
        (size,) = _unpack_length(row, at)
        start = at + 4
        if size < 0:
            fields.append(None)
            at = start
        else:
            at = start + size
            fields.append(row[start:at])
    return fields


@lru_cache(maxsize=65_536)
def numeric_text(binary: bytes) -> str:
    """Plain decimal text of Postgres's binary numeric: the inverse of `quantities.numeric_binary`."""
    count, weight, sign, scale = Struct("!hhHH").unpack_from(binary)
    if sign & _NUMERIC_SPECIAL == _NUMERIC_SPECIAL:
        return "not a number"
    digits = Struct(f"!{count}h").unpack_from(binary, 8)
    whole = "".join(f"{digits[i] if i < count else 0:04}" for i in range(weight + 1)).lstrip("0") or "0"
    first = weight + 1
    groups = range(first, first + -(-scale // 4))
    fraction = "".join(f"{digits[i] if 0 <= i < count else 0:04}" for i in groups)[:scale]
    return ("-" if sign == _NUMERIC_NEGATIVE else "") + whole + ("." + fraction if fraction else "")


def original(row: Sequence[Any]) -> Event:
    """The event in a row of `read_originals`, with the stored content hash."""
    (
        _, tenant_id, stream, customer_ref, resource_id, row_key, op, occurred_at, received_at, quantity, data,
        causality_key, correlation_id, causation_id, source, key, key_source, stored_hash,
    ) = row  # fmt: skip
    encoded = None if data is None else data.encode()
    normal = None if quantity is None else normal_quantity(quantity)
    sent_at = occurred_at
    if occurred_at == received_at:
        # The time of receipt may have replaced an absent ts: the hash tells, because it covers what was sent.
        absent = content_hash(
            tenant_id, stream, customer_ref, resource_id, occurred_at=None, quantity=normal, op=op, data=encoded
        )
        sent_at = None if absent == stored_hash else occurred_at
    return Event(
        tenant_id=tenant_id,
        stream=stream,
        customer_ref=customer_ref,
        resource_id=resource_id,
        row_key=row_key,
        op=op,
        occurred_at=sent_at,
        quantity=normal,
        data=encoded,
        causality_key=causality_key,
        correlation_id=correlation_id,
        causation_id=causation_id,
        source=source,
        keys=() if key is None else (key,),
        digests=(),
        key_source=KEY_SOURCES[key_source],
        content_hash=stored_hash,
    )
