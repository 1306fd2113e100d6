"""Catching up: changes of the past that one view has, read from the log up to where the follower is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from tidelock.errors import ResumeExpired
from tidelock.live.backlogs import Backlog
from tidelock.live.decoding import changes_of, fits
from tidelock.live.log import Place, read_page
from tidelock.live.masks import mask_of
from tidelock.live.readers import Connection, Readers
from tidelock.live.shared import Share, Shared
from tidelock.live.views import Event, View


@dataclass(frozen=True, slots=True)
class Caught:
    """Some changes of the past, as events of a view."""

    events: Backlog
    #: where the next ones begin; None: these were the last
    place: Place | None


class Catchups:
    """Reads them, page by page: nothing is held of the database while a client takes its time."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._shared: Shared[Caught] = Shared()

    def join(self, view: View, place: Place, *, after: int, through: int) -> Share[Caught]:
        """Events of a view behind a place in the log, above a source timestamp and through a sequence of the fold.

        There may be some before that time among them. Its result raises ResumeExpired.
        """
        work = partial(_read, view=view, place=place, after=after, through=through)
        return self._shared.join((view, place, after, through), lambda: self._readers.insist(work))

    async def close(self) -> None:
        await self._shared.close()


def _read(connection: Connection, view: View, place: Place, after: int, through: int) -> Caught:
    mask = mask_of(view.expression)

    def seen(_: str, changes: pa.Table) -> pa.Table:
        if not fits(changes, view.table):
            raise ResumeExpired(
                f"the definition of {view.table.name} was changed after {after}; begin anew with a snapshot",
                field="after",
            )
        return mask.apply(changes)

    page = read_page(connection, [view.table.name], place, after=after, through=through, seen=seen)
    return Caught(Backlog([changes for _, changes in page.changes], partial(_events, view)), page.place)


def _events(view: View, batch: pa.RecordBatch) -> list[Event]:
    events = map(view.event_of, changes_of(view.table, batch))
    return [event for event in events if event is not None]
