"""Connecting: records the changes of a connector, each once, however often either side is lost.

A timestamp is recorded when it is complete, by key, in collections of at most a thousand. Only then does the position
move: repeated changes are duplicates by identity. If the position is lost, the whole view is compared with the latest
rows of the ledger, and only the difference is recorded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from tidelock.errors import TidelockError, Unreachable
from tidelock.instants import MILLISECOND, SECOND, format_instant
from tidelock.model import Accepted, Conflict, Duplicate, Rejected, Verdict
from tidelock.postgres.reconnect import database_errors
from tidelock.sections import number_of
from tidelock.settings.groups import ConnectSettings
from tidelock.sources.connect.connector import Connector, MomentPart, PositionLost, Unrecordable
from tidelock.sources.connect.memory import EVENTS_MAX, Memory, ViewFeed
from tidelock.sources.connect.rows import KeyedChange, chunk, pages, rows
from tidelock.sources.sender import Sender

T = TypeVar("T")
Tell = Callable[[str], None]

_FIRST_PAUSE_S = 0.5
# Progress is reported every second; a slightly old position costs a few duplicates.
_MOVE_EVERY_S = 1.0
_TELL_EVERY_S = 10.0


@dataclass(slots=True)
class Connected:
    """Counts of changes by outcome."""

    moments: int = 0
    accepted: int = 0
    duplicates: int = 0
    #: of the accepted
    deletes: int = 0
    #: whole views that were compared
    snapshots: int = 0
    #: number of reconnects
    reconnects: int = 0
    #: everything up to here is recorded
    position: str | None = None


class _EndWanted(Exception):
    """It was asked to stop."""


class Connecting:
    """One run. `tell` is called with lines for people."""

    def __init__(
        self,
        connector: Connector,
        feed: ViewFeed,
        memory: Memory,
        sender: Sender,
        settings: ConnectSettings,
        tell: Tell,
    ) -> None:
        self.result = Connected()
        #: set it to stop after what is being recorded
        self.stop = sender.stop
        self._connector = connector
        self._feed = feed
        self._memory = memory
        self._sender = sender
        self._settings = settings
        self._tell = tell
        self._adopt = False
        self._spooled = False
        self._moved = self._told = 0.0
        #: when the current series of failures began, and their number
        self._lost_at: float | None = None
        self._failures = 0

    async def run(self, *, restart: bool = False, adopt: bool = False) -> Connected:
        """Runs until it is stopped, or the view is final. Raises SettingsError, Unreachable."""
        self._adopt = adopt
        try:
            with _outage():
                await self._begin(restart=restart)
            while True:
                try:
                    with _outage():
                        await self._follow()
                    self._tell(f"{self._feed.view} has ended: nothing in it will change any more")
                    break
                except PositionLost as lost:
                    await self._forget(str(lost))
                except Unreachable as error:
                    await self._wait(error)
        except _EndWanted:
            with _outage():
                await self._memory.insist(lambda: self._move(force=True))
        finally:
            await asyncio.gather(self._connector.close(), self._memory.close(), return_exceptions=True)
        return self.result

    async def _begin(self, *, restart: bool) -> None:
        await self._unless_stopped(self._connector.open(self._feed.stream))
        await self._memory.insist(lambda: self._find_position(restart=restart))
        where = f"{self._feed.view} at {self._feed.place}"
        how = f"after {_moment(self.result.position)}" if self.result.position else "from a snapshot"
        self._tell(f'following {where} into stream "{self._feed.stream.name}", {how}')

    async def _find_position(self, *, restart: bool) -> None:
        self.result.position = await self._memory.position()
        if restart and self.result.position is not None:
            await self._memory.move(None)
            self.result.position = None

    async def _follow(self) -> None:
        """One subscription, from the position on."""
        await self._memory.clear()
        self._spooled = False
        position = self.result.position
        not_before_ms = await self._memory.not_before_ms() if position is None else None
        parts = self._connector.parts(position, not_before_ms)
        try:
            while (part := await self._unless_stopped(_next(parts))) is not None:
                self._lost_at, self._failures = None, 0
                await self._take(part)
        except Unrecordable:
            # The history from here on has it too, for as long as it is kept, whatever the view is made to be.
            await self._memory.move(None)
            raise
        finally:
            await parts.aclose()
        await self._move(force=True)

    async def _take(self, part: MomentPart) -> None:
        told = rows(self._feed.stream, self._feed.view, part.changes)
        if part.position is None or part.whole or self._spooled:
            self._spooled = True
            await self._memory.add(told)
        if part.position is None:
            return
        if not self._spooled:
            for page in pages(told, EVENTS_MAX):
                await self._record(page, part)
        else:
            if part.whole:
                await self._memory.compare(adopt=self._adopt)
            async for page in self._memory.pages(differences=part.whole):
                await self._record(page, part)
            await self._memory.clear()
            self._spooled = False
        self.result.position = part.position
        self.result.moments += bool(part.changes) or part.whole
        self.result.snapshots += part.whole
        await self._move(force=part.whole)
        self._report(force=part.whole)

    async def _record(self, page: Sequence[KeyedChange], part: MomentPart) -> None:
        """One collection, durable when this returns."""
        feed = self._feed
        made = chunk(
            page, part.at_ms, stream=feed.stream.name, tenant_id=feed.tenant_id, view=feed.view, source=feed.source
        )
        (verdicts,) = await self._sender.send([made])
        for row, verdict in zip(page, verdicts, strict=True):
            self._count(row, verdict, part)
        if self.stop.is_set():
            # The timestamp is not complete, so its position is not stored: it will be repeated.
            raise _EndWanted

    def _count(self, row: KeyedChange, verdict: Verdict, part: MomentPart) -> None:
        match verdict:
            case Accepted():
                self.result.accepted += 1
                self.result.deletes += row.op == "delete"
            case Duplicate():
                self.result.duplicates += 1
            case Conflict():
                told = f"the row {row.key!r} at {part.at_ms} is recorded with other content"
                if part.whole:
                    raise Unrecordable(f"{told}, as sequence {verdict.ingress_sequence}; another producer used its key")
                # It was recorded when the stream had other columns; a comparison of the whole view finds what is
                # missing.
                raise PositionLost(told)
            case Rejected(error=problem):
                raise Unrecordable(
                    f"the ledger rejects the row {row.key!r} of {self._feed.view} at {part.at_ms}: {problem.message} "
                    f"({problem.code}); change the view or the setting. Earlier rows are recorded"
                )

    async def _move(self, *, force: bool) -> None:
        now = time.monotonic()
        if self.result.position is not None and (force or now - self._moved >= _MOVE_EVERY_S):
            self._moved = now
            await self._memory.move(self.result.position)

    async def _forget(self, why: str) -> None:
        """Before any comparison: a snapshot must never be followed by earlier changes."""
        self._tell(f"{why}; comparing the whole view with what is recorded")
        self.result.position = None
        try:
            with _outage():
                await self._memory.move(None)
        except Unreachable as error:
            await self._wait(error)

    async def _wait(self, error: Unreachable) -> None:
        """Pause and reopen both sides, until that succeeds or patience runs out."""
        while True:
            now = time.monotonic()
            self._lost_at = now if self._lost_at is None else self._lost_at
            pause_s = min(_FIRST_PAUSE_S * 2**self._failures, self._settings.pause_max / SECOND)
            if now + pause_s > self._lost_at + self._settings.patience / SECOND:
                raise error
            self._failures += 1
            self._tell(f"{error.message}; trying again in {pause_s:.1f} s")
            await self._unless_stopped(asyncio.sleep(pause_s))
            try:
                with _outage():
                    await self._unless_stopped(self._connector.open(self._feed.stream))
                    await self._memory.open()
                    if self.result.position is None:
                        await self._memory.move(None)
            except Unreachable as again:
                error = again
                continue
            self.result.reconnects += 1
            return

    def _report(self, *, force: bool) -> None:
        now = time.monotonic()
        if force or now - self._told >= _TELL_EVERY_S:
            self._told = now
            result = self.result
            self._tell(
                f"{number_of(result.accepted, 'change')} recorded, {number_of(result.deletes, 'delete')} among them, "
                f"through {_moment(result.position)}"
            )

    async def _unless_stopped(self, wanted: Coroutine[Any, Any, T]) -> T:
        """The result, or _Stopped, whichever comes first."""
        task, stopping = asyncio.ensure_future(wanted), asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise _EndWanted
        finally:
            task.cancel()
            stopping.cancel()
            await asyncio.gather(task, stopping, return_exceptions=True)


@contextmanager
def _outage() -> Iterator[None]:
    """An outage of either side. A failure caused by cancelling this task is not one, and must not keep it running."""
    try:
        with database_errors("connect"):
            yield
    except TidelockError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError from error
        raise


async def _next(parts: AsyncGenerator[MomentPart, None]) -> MomentPart | None:
    return await anext(parts, None)


def _moment(position: str | None) -> str:
    """A position for people, with its time if it is a timestamp."""
    if position is None or not position.isdecimal():
        return str(position)
    try:
        return f"{position} ({format_instant(int(position) * MILLISECOND)})"
    except (ValueError, OverflowError):
        return position
