"""Causality: the events of one run, across streams, in total order, each with the event that caused it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import psycopg

from tidelock.ingest.identity import identity_digest
from tidelock.ledger.reader import Page, Slice, read_page
from tidelock.model import Recorded
from tidelock.postgres.queries import load

QUERIES = load("tidelock.ledger", "sql/causality.sql")


class Caused(Recorded, frozen=True, gc=False, rename="camel", kw_only=True):
    """A recorded event and its parent edge."""

    #: sequence of the event whose key is `causation_id`, of the same tenant; None: there is none
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
