"""The sender: chunks of rows to the ledger, strictly in order, even if the ledger fails in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from tidelock.errors import Overloaded, RequestError, Unreachable
from tidelock.ingest.admit import Writer
from tidelock.ingest.intake import Intake, Recorder, SaltsChanged
from tidelock.ingest.wire import ABSENT, WireEvent
from tidelock.instants import SECOND
from tidelock.model import Conflict, Event, Problem, Rejected, Verdict
from tidelock.postgres.reconnect import Patience
from tidelock.settings import Settings


@dataclass(slots=True)
class Chunk:
    """Rows that are recorded together, as events."""

    #: everything through this row is done once they are recorded
    last: int
    events: list[WireEvent | Rejected] = field(default_factory=list)
    #: some text had \\u escapes, so that NUL is possible in it
    escapes: bool = False
    #: when an older system received each event; None: they are received now
    received: list[int | None] | None = None
    #: positions of exported events whose time may replace one that was never sent
    timed_by_receipt: list[int] = field(default_factory=list)
    #: positions of exported amendments, which have the quantity and the data of their targets where none was sent
    amended: list[int] = field(default_factory=list)


def _comes_back(error: BaseException) -> bool:
    return isinstance(error, Unreachable | Overloaded)


class _InTurn:
    """A recorder that submits a collection only when the previous one is durable.

    The next chunk is admitted meanwhile; but if it were queued as well, it could be recorded while the previous one
    fails.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.salts = recorder.salts
        self._recorder = recorder
        self._ahead: asyncio.Future[bool] | None = None

    def begin(self) -> None:
        """Forget how the last ones ended."""
        self._ahead = None

    async def record(self, events: Sequence[Event | Rejected], salts_version: int) -> list[Verdict]:
        ahead, own = self._ahead, asyncio.get_running_loop().create_future()
        self._ahead = own
        went_well = False
        try:
            if ahead is not None and not await ahead:
                raise Unreachable("earlier events of the file were not recorded")
            verdicts = await self._recorder.record(events, salts_version)
            went_well = True
            return verdicts
        except SaltsChanged:
            # It returns after those waiting now; their keys are just as old, so they are returned as well.
            went_well = True
            raise
        finally:
            self.salts = self._recorder.salts
            own.set_result(went_well)


class Sender:
    """Sends chunks; `stop` ends its patience."""

    def __init__(self, recorder: Recorder, settings: Settings, *, streams_open: bool) -> None:
        self.stop = asyncio.Event()
        self._turns = _InTurn(recorder)
        opened = streams_open if settings.streams_open is None else settings.streams_open
        self._intake = Intake(self._turns, settings.definitions, settings, streams_open=opened)
        self._patience = Patience(settings.outage_patience / SECOND, again=_comes_back, stop=self.stop.is_set)

    async def send(self, batch: Sequence[Chunk]) -> list[list[Verdict]]:
        """The durable verdicts of each chunk. Raises Unreachable if the ledger stays unavailable."""
        self._turns.begin()
        answers = await asyncio.gather(*(self._take(chunk) for chunk in batch), return_exceptions=True)
        verdicts: list[list[Verdict]] = []
        for chunk, answer in zip(batch, answers, strict=True):
            if not isinstance(answer, BaseException):
                verdicts.append(answer)
            elif isinstance(answer, Unreachable | RequestError):
                # From the first failure on nothing was recorded: retry one by one, with patience.
                verdicts.append(await self._take_patiently(chunk))
            else:
                raise answer
        return verdicts

    async def _take_patiently(self, chunk: Chunk) -> list[Verdict]:
        try:
            return await self._patience.insist(lambda: self._take_again(chunk))
        except Overloaded:
            raise
        except RequestError:
            return await self._take_singly(chunk)

    async def _take_again(self, chunk: Chunk) -> list[Verdict]:
        """Events that were recorded anyway turn out to be duplicates."""
        self._turns.begin()
        return await self._take(chunk)

    async def _take(self, chunk: Chunk) -> list[Verdict]:
        answer = await self._intake.take(chunk.events, Writer(), escapes=chunk.escapes, received=chunk.received)
        return await self._without_stand_ins(chunk, answer.results)

    async def _take_singly(self, chunk: Chunk) -> list[Verdict]:
        """The database refuses something in this chunk: row by row only the guilty one fails."""
        verdicts: list[Verdict] = []
        for index, event in enumerate(chunk.events):
            received = None if chunk.received is None else [chunk.received[index]]
            single = Chunk(chunk.last, events=[event], escapes=chunk.escapes, received=received)
            try:
                verdicts += await self._patience.insist(partial(self._take_again, single))
            except Overloaded:
                raise
            except RequestError as error:
                verdicts.append(Rejected(Problem("invalid_event", error.message)))
        return verdicts

    async def _without_stand_ins(self, chunk: Chunk, verdicts: list[Verdict]) -> list[Verdict]:
        """An export gives an event without ts its time of receipt, and an amendment what it left as it was; in its own
        ledger that looks like a conflict.

        Sent again without it, it is a duplicate. Nothing is recorded by this: the key is in use.
        """
        for standing_in, without in (
            (chunk.timed_by_receipt, {"occurred_at": None, "ts": None}),
            (chunk.amended, {"data": ABSENT}),
            (chunk.amended, {"quantity": ABSENT}),
            (chunk.amended, {"data": ABSENT, "quantity": ABSENT}),
        ):
            doubtful = [index for index in standing_in if isinstance(verdicts[index], Conflict)]
            if doubtful:
                events = [msgspec.structs.replace(chunk.events[index], **without) for index in doubtful]
                answer = await self._intake.take(events, Writer(), escapes=chunk.escapes)
                for index, verdict in zip(doubtful, answer.results, strict=True):
                    verdicts[index] = verdict
        return verdicts
