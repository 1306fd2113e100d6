"""The intake: from decoded events to durable verdicts, for every source (HTTP, files, connectors)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import msgspec

from tidelock.definitions import Definitions
from tidelock.ingest.admit import Admission, Writer
from tidelock.ingest.identity import Salts
from tidelock.ingest.wire import WireEvent
from tidelock.model import Answer, Event, Rejected, Verdict
from tidelock.settings import Settings

# Admitting this many events takes a millisecond or two; then the sequencer gets a turn. It makes several round trips
# per commit, and each would otherwise wait for a whole request.
_EVENTS_PER_TURN = 100


class SaltsChanged(Exception):
    """The salts were rotated after these events were admitted: derive their keys again."""


class Recorder(Protocol):
    """Records judged events, one verdict each, durable when it returns."""

    salts: Salts

    async def record(self, events: Sequence[Event | Rejected], salts_version: int) -> list[Verdict]: ...


class Intake:
    """Admits events by the definitions and hands them to the recorder as one collection."""

    def __init__(self, recorder: Recorder, definitions: Definitions, settings: Settings, *, streams_open: bool) -> None:
        self._recorder = recorder
        self._definitions = definitions
        self._settings = settings
        self._streams_open = streams_open
        # One request at a time: taking turns among requests would only make all of them ready at the same late moment.
        self._admitting = asyncio.Lock()

    async def take(
        self,
        sent: Sequence[WireEvent | Rejected],
        writer: Writer,
        *,
        escapes: bool,
        received: Sequence[int | None] | None = None,
    ) -> Answer:
        """`received`: when an older system received each of them; by default all are received now."""
        while True:
            admission = self._admission(writer, escapes)
            async with self._admitting:
                events = await self._admit(admission, sent)
            if received is not None:
                events = [_received(event, at) for event, at in zip(events, received, strict=True)]
            try:
                return Answer.of(await self._recorder.record(events, admission.salts.version))
            except SaltsChanged:
                continue

    async def _admit(self, admission: Admission, sent: Sequence[WireEvent | Rejected]) -> list[Event | Rejected]:
        events: list[Event | Rejected] = []
        for start in range(0, len(sent), _EVENTS_PER_TURN):
            if start:
                await asyncio.sleep(0)
            events += [
                wire if isinstance(wire, Rejected) else admission.admit(wire)
                for wire in sent[start : start + _EVENTS_PER_TURN]
            ]
        return events

    def _admission(self, writer: Writer, escapes: bool) -> Admission:
        return Admission(
            self._definitions,
            self._recorder.salts,
            self._streams_open,
            self._settings.event_bytes_max,
            data_depth_max=self._settings.data_depth_max,
            writer=writer,
            escapes=escapes,
        )


def _received(event: Event | Rejected, at: int | None) -> Event | Rejected:
    return event if isinstance(event, Rejected) else msgspec.structs.replace(event, received_at=at)
