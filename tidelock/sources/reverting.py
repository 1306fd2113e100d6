"""Reverting: void the events of a batch, page by page; each once, however often it is stopped and run again.

The key of a void derives from its target, so what was voided by an earlier run, or by hand, is a duplicate.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psycopg

from tidelock.definitions import Definitions
from tidelock.ingest.wire import NAME_CHARACTERS_MAX, WireEvent
from tidelock.model import Accepted, Duplicate, Rejected, Verdict
from tidelock.postgres.reconnect import Steady
from tidelock.sources.sender import Chunk, Sender
from tidelock.usage.batches import (
    LEFT_LISTED_MAX,
    BatchEvents,
    Left,
    Voidable,
    WantedRevert,
    batch_events,
    batch_size,
)

#: events of the batch that are read at a time, and so the most that are voided by one request
PAGE = 1_000

#: records voids as one request; one verdict for each
Take = Callable[[list[WireEvent]], Awaitable[Sequence[Verdict]]]
#: called with the number of events that are done, and their share of all
Progress = Callable[[int, float], None]


@dataclass(slots=True)
class RevertResult:
    """What became of the events of a batch."""

    voided: int = 0
    #: void already
    duplicates: int = 0
    #: how many stay in the meters, and the first of them
    left_count: int = 0
    left: list[Left] = field(default_factory=list)
    #: events that were looked at
    done: int = 0
    finished: bool = False

    def leave(self, left: Sequence[Left]) -> None:
        self.left_count += len(left)
        self.left += left[: LEFT_LISTED_MAX - len(self.left)]


async def void_page(take: Take, found: BatchEvents, wanted: WantedRevert, result: RevertResult) -> None:
    """Void what can be voided of a page, and add what became of it to the result."""
    result.duplicates += found.void
    result.leave(found.left)
    if found.voidable:
        reason = wanted.reason if wanted.reason is not None else _reason(wanted.batch_id)
        verdicts = await take([_void(event, reason) for event in found.voidable])
        for event, verdict in zip(found.voidable, verdicts, strict=True):
            if isinstance(verdict, Accepted):
                result.voided += 1
            elif isinstance(verdict, Duplicate):
                result.duplicates += 1
            else:
                message = verdict.error.message if isinstance(verdict, Rejected) else "its void has other content"
                result.leave([Left(event.ingress_sequence, "rejected", message)])
    result.done += found.events


def _void(event: Voidable, reason: str) -> WireEvent:
    return WireEvent(tenant_id=event.tenant_id, stream=event.stream, op="void", target=event.key, reason=reason)


def _reason(batch_id: str) -> str:
    return f"revert of batch {batch_id}"[:NAME_CHARACTERS_MAX]


async def revert_batch(
    steady: Steady, sender: Sender, definitions: Definitions, wanted: WantedRevert, progress: Progress
) -> RevertResult:
    """Void a whole batch, until the sender is stopped. Raises NotFound where there is no such batch."""
    size = await steady.run(partial(batch_size, wanted=wanted))
    result, after = RevertResult(), 0

    async def take(events: list[WireEvent]) -> Sequence[Verdict]:
        (verdicts,) = await sender.send([Chunk(0, list(events))])
        return verdicts

    async def page(connection: psycopg.AsyncConnection[Any]) -> BatchEvents:
        return await batch_events(connection, wanted, definitions, after=after, through=size.last_sequence, limit=PAGE)

    while not sender.stop.is_set():
        found = await steady.run(page)
        await void_page(take, found, wanted, result)
        progress(result.done, min(1.0, result.done / size.events))
        after = found.last
        if after >= size.last_sequence:
            result.finished = True
            break
    return result
