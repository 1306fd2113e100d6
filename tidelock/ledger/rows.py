"""Rows in the format of Postgres's binary COPY, and recorded events read back.

A row's tail is encoded and hashed when the event is admitted, while the database is busy with the previous commit;
under the head lock only its numbers are prepended, and hashed with the tail's digest to the row's. The chain covers the
rows' digests, so a change to any column of a recorded event is found. COPY returns a row as it was written: `verify`
compares and hashes rows without decoding them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
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
    "idempotency_key, key_source, content_hash, target, target_sequence, reason, batch_id, row_digest"
)
CORRECTION_COLUMNS = "target_sequence, ingress_sequence"
IDENTITY_COLUMNS = "digest, ingress_sequence, content_hash, key_source"

COPY_START = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_END = b"\xff\xff"

KEY_SOURCE_CODE = {"client": b"c", "derived": b"d"}

_NULL = b"\xff\xff\xff\xff"
_length = Struct("!i").pack
_bigint = Struct("!iq").pack
_event_numbers = Struct("!" + "iq" * 5).pack
_correction = Struct("!hiqiq").pack
_identity = Struct("!hi16siqi32sic").pack

QUERIES = load("tidelock.ledger", "sql/verify.sql")

_PAGE_ROWS = 50_000
_BEFORE_ALL = -(2**63)
_TAIL_FIELDS = range(19)
_COLUMNS = b"\0\x19"
#: no target, no reason, no batch
_PLAIN = _NULL * 4
_DIGEST_LENGTH = b"\0\0\0\x20"
_DIGEST_SIZE = 36
# In the first form of the chain a row had no columns after its content hash.
_FIRST_COLUMNS = b"\0\x14"
_SINCE_FIRST = _NULL * 5
_numbers = Struct("!2x" + "4xq" * 5).unpack_from
_NUMBERS_SIZE = 2 + 12 * 5
_unpack_length = Struct("!i").unpack_from
#: sequence, commit, source timestamp, moment of receipt, occurrence
Numbers = tuple[int, int, int, int, int]
_NUMERIC_NEGATIVE, _NUMERIC_SPECIAL = 0x4000, 0xC000

KEY_SOURCES: dict[str | None, KeySource] = {"c": "client", "d": "derived", None: "none"}


def event_row(
    sequence: int,
    commit_id: int,
    source_timestamp: int,
    received_at: int,
    occurred_at: int,
    tail: bytes,
    tail_digest: bytes,
) -> tuple[bytes, bytes]:
    """A row, and its digest: over its numbers and the digest of its tail, which was computed beforehand."""
    numbers = _event_numbers(8, sequence, 8, commit_id, 8, source_timestamp, 8, received_at, 8, occurred_at)
    digest = sha256(numbers + tail_digest).digest()
    return b"".join((_COLUMNS, numbers, tail, _DIGEST_LENGTH, digest)), digest


def event_tail(event: Event, target_sequence: int | None = None) -> bytes:
    """Every column from tenant_id on, but the row's digest."""
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
            _DIGEST_LENGTH + event.content_hash,
            _PLAIN
            if event.target is None and event.reason is None and event.batch_id is None
            else _of_correction(event, target_sequence),
        )
    )


def _of_correction(event: Event, target_sequence: int | None) -> bytes:
    return b"".join(
        (
            _NULL if event.target is None else _text(event.target),
            _NULL if target_sequence is None else _bigint(8, target_sequence),
            _name(event.reason),
            _name(event.batch_id),
        )
    )


def tail_digest(tail: bytes) -> bytes:
    return sha256(tail).digest()


def correction_row(target_sequence: int, sequence: int) -> bytes:
    return _correction(2, 8, target_sequence, 8, sequence)


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


def row_digests(row: bytes) -> tuple[bytes, bytes | None]:
    """The digest of a row as it is, and the one that is stored with it."""
    has_digest = row[-_DIGEST_SIZE : -_DIGEST_SIZE + 4] == _DIGEST_LENGTH
    size = _DIGEST_SIZE if has_digest else len(_NULL)
    actual = sha256(row[2:_NUMBERS_SIZE] + tail_digest(row[_NUMBERS_SIZE:-size])).digest()
    return actual, row[-32:] if has_digest else None


def first_form(row: bytes) -> bytes:
    """A row as the first form of the chain covers it. One that has what that form lacks stays as it is, and so
    never has that digest."""
    return _FIRST_COLUMNS + row[2 : -len(_SINCE_FIRST)] if row.endswith(_SINCE_FIRST) else row


def row_tail(row: bytes) -> list[Any]:
    """Every column from tenant_id on, but the row's digest: its bytes, or None."""
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


def sent_of(
    *,
    tenant_id: str,
    stream: str,
    customer_ref: str | None,
    resource_id: str | None,
    op: str,
    occurred_at: int,
    quantity: str | None,
    data: bytes | None,
    target: str | None,
    received_at: int,
    stored_hash: bytes,
) -> tuple[int | None, str | None, bytes | None] | None:
    """Of a recorded event the time, quantity and data that were sent, which its hash covers; None: its columns do not
    match the hash.

    The time of receipt replaces an absent one, and an amendment is recorded with what it leaves as it is: the hash
    tells which of them was sent.
    """
    if target is not None:
        customer_ref = resource_id = None
        tried: list[tuple[int | None, str | None, bytes | None]] = [(None, quantity, data)]
        if op == "amend":
            tried += [(None, None, data), (None, quantity, None), (None, None, None)]
    else:
        tried = [(occurred_at, quantity, data)]
        if occurred_at == received_at:
            tried.append((None, quantity, data))
    for sent in tried:
        sent_at, sent_quantity, sent_data = sent
        hashed = content_hash(
            tenant_id,
            stream,
            customer_ref,
            resource_id,
            occurred_at=sent_at,
            quantity=sent_quantity,
            op=op,
            data=sent_data,
            target=target,
        )
        if hashed == stored_hash:
            return sent
    return None


def original(row: Sequence[Any]) -> Event:
    """The event in a row of `read_originals` as it was sent, with the stored content hash."""
    (
        _, tenant_id, stream, customer_ref, resource_id, row_key, op, occurred_at, received_at, quantity, data,
        causality_key, correlation_id, causation_id, source, key, key_source, stored_hash, target,
    ) = row  # fmt: skip
    encoded = None if data is None else data.encode()
    normal = None if quantity is None else normal_quantity(quantity)
    sent = sent_of(
        tenant_id=tenant_id,
        stream=stream,
        customer_ref=customer_ref,
        resource_id=resource_id,
        op=op,
        occurred_at=occurred_at,
        quantity=normal,
        data=encoded,
        target=target,
        received_at=received_at,
        stored_hash=stored_hash,
    )
    sent_at, sent_quantity, sent_data = (occurred_at, normal, encoded) if sent is None else sent
    return Event(
        tenant_id=tenant_id,
        stream=stream,
        customer_ref=None if target is not None else customer_ref,
        resource_id=None if target is not None else resource_id,
        row_key=row_key,
        op=op,
        occurred_at=sent_at,
        quantity=sent_quantity,
        data=sent_data,
        causality_key=causality_key,
        correlation_id=correlation_id,
        causation_id=causation_id,
        source=source,
        keys=() if key is None else (key,),
        digests=(),
        key_source=KEY_SOURCES[key_source],
        content_hash=stored_hash,
        target=target,
    )
