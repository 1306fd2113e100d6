"""Raw rows: recorded events in the very bytes that were written and chained, read back as the database holds them now.

Postgres's binary COPY gives a row as it takes it, so what `rows` encoded can be compared, or hashed, without decoding.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import lru_cache
from struct import Struct
from typing import Any

import psycopg
from psycopg.pq import DiagnosticField, ExecStatus

from tidelock.ledger.rows import COPY_END, COPY_START
from tidelock.postgres.queries import load

QUERIES = load("tidelock.ledger", "sql/verify.sql")

_PAGE_ROWS = 50_000
_BEFORE_ALL = -(2**63)
_TAIL_FIELDS = range(15)
_numbers = Struct("!2x" + "4xq" * 5).unpack_from
_NUMBERS_SIZE = 2 + 12 * 5
_length = Struct("!i").unpack_from
#: sequence, commit, source timestamp, moment of receipt, occurrence
Numbers = tuple[int, int, int, int, int]
_NUMERIC_NEGATIVE, _NUMERIC_SPECIAL = 0x4000, 0xC000


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
        after = numbers(row)[0]


def numbers(row: bytes) -> Numbers:
    return _numbers(row)


def tail(row: bytes) -> list[Any]:
    """Every column from tenant_id on: its bytes, or None."""
    fields: list[bytes | None] = []
    at = _NUMBERS_SIZE
    for _ in _TAIL_FIELDS:
        (size,) = _length(row, at)
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
    """Plain decimal text of Postgres's binary numeric: the way back from `quantities.numeric_binary`."""
    count, weight, sign, scale = Struct("!hhHH").unpack_from(binary)
    if sign & _NUMERIC_SPECIAL == _NUMERIC_SPECIAL:
        return "not a number"
    digits = Struct(f"!{count}h").unpack_from(binary, 8)
    whole = "".join(f"{digits[i] if i < count else 0:04}" for i in range(weight + 1)).lstrip("0") or "0"
    first = weight + 1
    groups = range(first, first + -(-scale // 4))
    fraction = "".join(f"{digits[i] if 0 <= i < count else 0:04}" for i in groups)[:scale]
    return ("-" if sign == _NUMERIC_NEGATIVE else "") + whole + ("." + fraction if fraction else "")


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
            # The header comes in one message with the first row, the end in a message of its own.
            row = bytes(message)[start:]
            start = 0
            if row and row != COPY_END:
                yield row
        finished = True
    finally:
        if not finished:  # Whoever reads has seen enough: nobody else can use the connection in this state.
            pgconn.finish()
    _expect(pgconn.get_result(), ExecStatus.COMMAND_OK)
    pgconn.get_result()


def _expect(result: Any, status: ExecStatus) -> None:
    if result is None or (result.status != status and not result.error_field(DiagnosticField.SQLSTATE)):
        # Not an answer of the server: it is gone.
        raise psycopg.OperationalError("the server closed the connection")
    if result.status != status:
        raise psycopg.errors.error_from_result(result)
