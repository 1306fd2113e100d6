"""Batches: events that were recorded under one name, and what a revert would void of them.

An event is voided by its key, so one without a key stays. So do rows of a keyed stream, and corrections of events
outside the batch. Where the batch amended one of its own events, the amendment is voided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import psycopg

from tidelock.definitions import Definitions
from tidelock.errors import NotFound, RequestError
from tidelock.instants import format_instant
from tidelock.model import CORRECTIONS
from tidelock.postgres.queries import load
from tidelock.sections import shown

QUERIES = load("tidelock.usage", "sql/batches.sql")

#: events that stay after a revert are counted, and listed up to this many
LEFT_LISTED_MAX = 1_000
#: why an event of a batch cannot be voided
Obstacle = Literal["no_key", "keyed_stream", "amended", "correction", "rejected"]


class Batch(msgspec.Struct, frozen=True, rename="camel"):
    """The events of one tenant with one batchId."""

    batch_id: str
    tenant_id: str
    events: int
    #: how many of them are corrections, and how many were corrected, by any event
    corrections: int
    corrected: int
    first_sequence: int
    last_sequence: int
    occurred_from: str
    occurred_to: str
    #: when the first was recorded
    received_at: str
    streams: list[str]


@dataclass(frozen=True, slots=True)
class BatchPage:
    """Batches, the latest first."""

    items: Sequence[Batch]
    #: those that end before it come next; None: there are no more
    before: int | None


async def read_batches(
    connection: psycopg.AsyncConnection[Any],
    tenant_id: str | None,
    *,
    batch_id: str | None = None,
    before: int | None = None,
    limit: int,
) -> BatchPage:
    """A page of batches. Those of other tenants count towards its limit, but are not shown."""
    given = {"tenant": tenant_id, "batch": batch_id, "before": before, "limit": limit + 1}
    rows = await (await connection.execute(QUERIES["batches"], given)).fetchall()
    ends = list(dict.fromkeys(row[0] for row in rows))
    following = ends[limit - 1] if len(ends) > limit else None
    items = [_batch(*row[1:]) for row in rows if row[2] is not None and (following is None or row[0] >= following)]
    return BatchPage(items, following)


def _batch(
    batch_id: str,
    tenant_id: str,
    events: int,
    corrections: int,
    corrected: int,
    first: int,
    last: int,
    since: int,
    until: int,
    received_at: int,
    streams: list[str],
) -> Batch:
    return Batch(
        batch_id=batch_id,
        tenant_id=tenant_id,
        events=events,
        corrections=corrections,
        corrected=corrected,
        first_sequence=first,
        last_sequence=last,
        occurred_from=format_instant(since),
        occurred_to=format_instant(until),
        received_at=format_instant(received_at),
        streams=streams,
    )


@dataclass(frozen=True, slots=True)
class WantedRevert:
    """Which batch to revert."""

    batch_id: str
    #: None: the one tenant that has it
    tenant_id: str | None = None
    #: None: one that names the batch
    reason: str | None = None


class Left(msgspec.Struct, frozen=True, rename="camel"):
    """An event of a batch that a revert leaves in the meters, and why."""

    ingress_sequence: int
    code: Obstacle
    message: str


@dataclass(frozen=True, slots=True)
class Voidable:
    """An event to void: one of the batch, or the amendment that replaced it."""

    ingress_sequence: int
    tenant_id: str
    stream: str
    key: str


@dataclass(frozen=True, slots=True)
class BatchEvents:
    """A page of a batch's events, as a revert sees them."""

    voidable: Sequence[Voidable]
    left: Sequence[Left]
    #: events that are void already
    void: int
    #: how many events it has, and the last of them
    events: int
    last: int
    #: the last event that corrects one of them; 0: none does
    last_correction: int


@dataclass(frozen=True, slots=True)
class BatchSize:
    """How many events a batch has, and where it ends."""

    events: int
    last_sequence: int


async def batch_size(connection: psycopg.AsyncConnection[Any], wanted: WantedRevert) -> BatchSize:
    """Raises NotFound where no event has this batchId, RequestError where several tenants have it and none is named.

    Tenants that import one file have batches of one name, and a void cannot be taken back.
    """
    given = {"batch": wanted.batch_id, "tenant": wanted.tenant_id}
    row = await (await connection.execute(QUERIES["batch_size"], given)).fetchone()
    assert row is not None, "an aggregate has its one row"
    if not row[0]:
        whose = "" if wanted.tenant_id is None else f" of tenant {shown(wanted.tenant_id)}"
        raise NotFound(f"no event{whose} has the batchId {shown(wanted.batch_id)}; `tidelock batches` lists them",
                       field="batchId")  # fmt: skip
    if row[2] > 1:
        first, last = shown(row[3]), shown(row[4])
        more = f" and {row[2] - 2:,} more" if row[2] > 2 else ""
        raise RequestError(
            f"several tenants have the batch {shown(wanted.batch_id)}: {first}, {last}{more}; name the one to revert",
            field="tenantId",
        )
    return BatchSize(row[0], row[1])


async def batch_events(
    connection: psycopg.AsyncConnection[Any],
    wanted: WantedRevert,
    definitions: Definitions,
    *,
    after: int,
    through: int,
    limit: int | None,
) -> BatchEvents:
    """What a revert does with a page of the batch, after a sequence; by the definitions of the intake."""
    given = {
        "batch": wanted.batch_id, "tenant": wanted.tenant_id, "after": after, "through": through, "limit": limit,
    }  # fmt: skip
    rows = await (await connection.execute(QUERIES["events"], given)).fetchall()
    voidable: list[Voidable] = []
    left: list[Left] = []
    void = 0
    for row in rows:
        match _judged(row, definitions):
            case Voidable() as event:
                voidable.append(event)
            case Left() as event:
                left.append(event)
            case "void":
                void += 1
    return BatchEvents(
        voidable,
        left,
        void=void,
        events=len(rows),
        last=rows[-1][0] if rows else after,
        last_correction=max((row[6] or 0 for row in rows), default=0),
    )


def _judged(row: Sequence[Any], definitions: Definitions) -> Voidable | Left | Literal["void", "with_target"]:
    """What a revert does with an event: void it, leave it, or nothing, since it is void already or is a correction
    within the batch, which is decided with its target."""
    (sequence, tenant_id, stream, op, key, has_row_key, final, final_op, final_key, final_of_batch,
     root_of_batch) = row  # fmt: skip
    if op in CORRECTIONS:
        return "with_target" if root_of_batch else Left(sequence, "correction", _CORRECTION[op])
    if final_op == "void":
        return "void"
    if final is not None:
        if final_of_batch:
            return Voidable(final, tenant_id, stream, final_key)
        return Left(
            sequence, "amended", f"it was amended by sequence {final}, which is not of this batch; void that one"
        )
    if has_row_key or _is_keyed(definitions, stream):
        return Left(sequence, "keyed_stream", "its stream is keyed: send the row as it should be, or delete it")
    if key is None:
        return Left(
            sequence, "no_key", "it has no key, so no event can name it; send an event with the opposite quantity"
        )
    return Voidable(sequence, tenant_id, stream, key)


_CORRECTION = {
    "void": "it is a void of another event, which cannot be taken back; send that event again under another key",
    "amend": "it is an amendment of another event, which would be lost with it; amend this amendment, or void it",
}


def _is_keyed(definitions: Definitions, stream: str) -> bool:
    declared = definitions.streams.get(stream)
    return declared is not None and bool(declared.key)
