"""Reading the ledger: slices of it in ledger order, either way, in the flat shape that outside readers get.

Causality is a slice too: the events of one run, across streams, each with the event that caused it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Generic, TypeVar, cast

import msgspec
import psycopg
from psycopg import sql

from tidelock.decimals import NUMBER_CHARACTERS_MAX, has_long_number
from tidelock.ingest.identity import identity_digest
from tidelock.instants import format_instant
from tidelock.ledger.rows import KEY_SOURCES
from tidelock.model import Head, Recorded, Unreadable
from tidelock.postgres.queries import load
from tidelock.postgres.reconnect import Steady
from tidelock.quantities import normal_quantity

QUERIES = load("tidelock.ledger", "sql/ledger.sql")

COLUMNS = sql.SQL(
    "ingress_sequence, commit_id, source_timestamp, received_at, occurred_at, tenant_id, stream, customer_ref, "
    "resource_id, quantity::text, data::text, op, causality_key, correlation_id, causation_id, idempotency_key, "
    "key_source, source, target, target_sequence, reason, batch_id"
)
_DATA = 10
# Rows fetched from the driver at a time. With events of a MiB, that is as much as a page holds in bytes, not in rows.
_CHUNK_ROWS = 16
_NULL = msgspec.Raw(b"null")
_UNREADABLE = Unreadable(
    "unreadable",
    f"its data contains a number longer than {NUMBER_CHARACTERS_MAX} characters; read it with `tidelock export`",
)
_encode = msgspec.json.Encoder().encode

# The events of a commit were received at one moment.
_receipt = lru_cache(maxsize=256)(format_instant)

R_co = TypeVar("R_co", bound=Recorded, covariant=True)


@dataclass(frozen=True, slots=True)
class Slice:
    """Which events: every field that is not None narrows the slice. Several names mean any of them."""

    tenant_id: str | tuple[str, ...] | None = None
    stream: str | tuple[str, ...] | None = None
    customer_ref: str | tuple[str, ...] | None = None
    causality_key: str | tuple[str, ...] | None = None
    correlation_id: str | tuple[str, ...] | None = None
    source: str | tuple[str, ...] | None = None
    batch_id: str | tuple[str, ...] | None = None
    #: sequence of an event: only the one that corrects it
    corrected: int | None = None
    #: occurred_at, half-open
    occurred_from: int | None = None
    occurred_to: int | None = None
    #: sequences, exclusive
    after: int | None = None
    before: int | None = None
    #: only these, within the other conditions
    sequences: list[int] | None = None


_NAMES = ("tenant_id", "stream", "customer_ref", "causality_key", "correlation_id", "source", "batch_id")


_BOUNDS = {
    "occurred_from": sql.SQL("occurred_at >= {}"),
    "occurred_to": sql.SQL("occurred_at < {}"),
    "after": sql.SQL("ingress_sequence > {}"),
    "before": sql.SQL("ingress_sequence < {}"),
    "corrected": sql.SQL("ingress_sequence = (SELECT ingress_sequence FROM corrections WHERE target_sequence = {})"),
    "sequences": sql.SQL("ingress_sequence = ANY({}::bigint[])"),
}


async def read_head(connection: psycopg.AsyncConnection[Any]) -> Head:
    row = await (await connection.execute(QUERIES["read_head"])).fetchone()
    assert row is not None, "ledger_head always has its one row"
    return Head(*row)


async def next_sequence(connection: psycopg.AsyncConnection[Any], after: int) -> int | None:
    """The first sequence of a commit that begins after another sequence; None: no parent yet."""
    row = await (await connection.execute(QUERIES["events_start"], [after])).fetchone()
    return None if row is None else int(row[0])


@dataclass(frozen=True, slots=True)
class Page(Generic[R_co]):
    """Events of a slice, starting at one end."""

    events: Sequence[R_co]
    #: the slice continues after the last of them
    more: bool


async def read_events(
    connection: psycopg.AsyncConnection[Any], events: Slice, *, limit: int, descending: bool = False
) -> list[Recorded]:
    """At most `limit` events of the slice in ledger order, or the other way."""
    cursor = connection.cursor(binary=True)
    await cursor.execute(_select(events, limit, descending))
    return [recorded(row) for row in await cursor.fetchall()]


async def read_page(
    connection: psycopg.AsyncConnection[Any],
    events: Slice,
    *,
    rows_max: int,
    bytes_max: int,
    descending: bool = False,
    as_text: bool = False,
) -> Page[Recorded]:
    """A page of at most this many events and bytes of data, but at least one event, whatever its size.

    `as_text`: data that readers could fail on becomes a JSON string with its text instead of null.

    Rows are read one by one and no further: a page of large events must not be in memory as a full page of rows before
    it is cut.
    """
    found: list[Recorded] = []
    size = 0
    query = _select(events, rows_max + 1, descending)
    stream = connection.cursor().stream(query, binary=True, size=_CHUNK_ROWS)
    # Closed at once when left early, with its query: the connection is for the next user.
    async with aclosing(cast("AsyncGenerator[Any]", stream)) as rows:
        async for row in rows:
            size += len(row[_DATA] or "")
            if len(found) == rows_max or (found and size > bytes_max):
                return Page(found, more=True)
            found.append(recorded(row, as_text=as_text))
    return Page(found, more=False)


async def pages(
    steady: Steady, events: Slice, *, rows_max: int, bytes_max: int, as_text: bool = False
) -> AsyncGenerator[Sequence[Recorded], None]:
    """All of a slice, a page at a time; a page interrupted by an outage is read again."""
    more = True
    while more:
        page = await steady.run(
            partial(read_page, events=events, rows_max=rows_max, bytes_max=bytes_max, as_text=as_text)
        )
        more = page.more
        if page.events:
            yield page.events
            events = replace(events, after=page.events[-1].ingress_sequence)


def recorded(row: Sequence[Any], *, as_text: bool = False) -> Recorded:
    (
        sequence, commit_id, source_timestamp, received_at, occurred_at, tenant_id, stream, customer_ref, resource_id,
        quantity, data, op, causality_key, correlation_id, causation_id, key, key_source, source,
        target, target_sequence, reason, batch_id,
    ) = row  # fmt: skip
    received = _receipt(received_at)
    shown = _NULL
    error: Unreadable | msgspec.UnsetType = msgspec.UNSET
    if data is not None:
        shown = msgspec.Raw(data.encode())
        if len(shown) > NUMBER_CHARACTERS_MAX and has_long_number(bytes(shown)):
            shown, error = msgspec.Raw(_encode(data)) if as_text else _NULL, _UNREADABLE
    return Recorded(
        sequence,
        commit_id,
        str(source_timestamp),
        received,
        received if occurred_at == received_at else format_instant(occurred_at),
        tenant_id,
        stream,
        customer_ref,
        resource_id,
        None if quantity is None else normal_quantity(quantity),
        shown,
        op,
        causality_key,
        correlation_id,
        causation_id,
        key,
        KEY_SOURCES[key_source],
        source,
        target,
        target_sequence,
        reason,
        batch_id,
        error,
    )


def _select(events: Slice, limit: int, descending: bool) -> sql.Composed:
    conditions = [_named(name, getattr(events, name)) for name in _NAMES if getattr(events, name) is not None]
    conditions += [
        condition.format(sql.Literal(getattr(events, name)))
        for name, condition in _BOUNDS.items()
        if getattr(events, name) is not None
    ]
    return sql.SQL("SELECT {} FROM events WHERE {} ORDER BY ingress_sequence {} LIMIT {}").format(
        COLUMNS,
        sql.SQL(" AND ").join([sql.SQL("true"), *conditions]),
        sql.SQL("DESC" if descending else "ASC"),
        sql.Literal(limit),
    )


def _named(column: str, value: str | tuple[str, ...]) -> sql.Composed:
    if isinstance(value, tuple):
        return sql.SQL("{} = ANY({})").format(sql.Identifier(column), sql.Literal(list(value)))
    return sql.SQL("{} = {}").format(sql.Identifier(column), sql.Literal(value))


class Caused(Recorded, frozen=True, gc=False, rename="camel", kw_only=True):
    """A recorded event and its parent edge."""

    #: sequence of the event whose key is `causation_id`, of the same tenant; None: no parent
    parent: int | None


async def read_caused(
    connection: psycopg.AsyncConnection[Any], events: Slice, *, rows_max: int, bytes_max: int
) -> Page[Caused]:
    """A page of the slice in ledger order, with the events' parents."""
    page = await read_page(connection, events, rows_max=rows_max, bytes_max=bytes_max)
    parents = await _parents(connection, page.events)
    caused = [
        Caused(**msgspec.structs.asdict(event), parent=parent)
        for event, parent in zip(page.events, parents, strict=True)
    ]
    return Page(caused, page.more)


async def _parents(connection: psycopg.AsyncConnection[Any], events: Sequence[Recorded]) -> list[int | None]:
    digests = [
        None if event.causation_id is None else identity_digest(event.tenant_id, event.causation_id) for event in events
    ]
    wanted = list({digest for digest in digests if digest is not None})
    if not wanted:
        return [None] * len(digests)
    cursor = await connection.cursor(binary=True).execute(QUERIES["find_originals"], [wanted])
    sequences = {bytes(digest): sequence for digest, sequence in await cursor.fetchall()}
    return [None if digest is None else sequences.get(digest) for digest in digests]
