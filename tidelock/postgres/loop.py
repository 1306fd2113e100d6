"""The loop of a reader: does what its course decides, on a thread or on an event loop. They differ in who waits.

A service says what is its own: its connection's name, its channels, how often it looks, and how it opens, what a turn
does, what an error means. The rest is the same for all: see `course`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import psycopg

from tidelock.postgres.course import IDLE, PAUSE_MAX_S, Action, Course, Do, Failure, Turn, failure_of
from tidelock.postgres.database import Database
from tidelock.postgres.listener import Listener, listen_to
from tidelock.postgres.reconnect import in_words

logger = logging.getLogger(__name__)

#: how long it takes at most to see that it should stop
_STOP_S = 0.25

Connection = psycopg.Connection[Any]
AsyncConnection = psycopg.AsyncConnection[Any]


class Reader:
    """What a service on a thread says of itself; its law: killed at any moment, the next `open` goes on rightly."""

    #: how often it looks without being told
    poll_s: float = 2.0
    #: the longest pause after failures
    pause_max_s: float = PAUSE_MAX_S

    def open(self, connection: Connection) -> bool:
        """Take the lease over this connection, and find the position. False: another process works, so stand by."""
        raise NotImplementedError

    def turn(self) -> Turn:
        """Go on from the position by one step."""
        raise NotImplementedError

    def finish(self) -> None:
        """Before it stops: give what is under way a moment."""

    def leave(self) -> None:
        """Forget what is half done; `open` comes next, or nothing."""

    def failed(self, error: Exception) -> Failure:
        """After `leave`: what an error means, and a word to people. Raises what ends the loop."""
        return failure_of(error)


class Saying:
    """Says once what is waited for, however often one asks."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self._topic = ""

    def once(self, topic: str, text: str) -> None:
        """Say it, unless this topic is what was said last."""
        if self._topic != topic:
            self._topic = topic
            self.tell(text)

    def over(self) -> bool:
        """Nothing is waited for any more; whether something was."""
        waited, self._topic = bool(self._topic), ""
        return waited


class ReaderLoop:
    """Runs readers on this thread. Several share the connection that listens; one that pauses holds up no other."""

    def __init__(
        self,
        database: Database,
        readers: Sequence[Reader],
        *,
        name: str,
        channels: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        """`name`: of the connection. `pause` waits where there is nothing to hear."""
        self._database = database
        self._name = name
        self._channels = channels
        self._courses = [(each, Course(poll_s=each.poll_s, pause_max_s=each.pause_max_s)) for each in readers]
        self._clock = clock
        self._pause = pause
        self._connection: Connection | None = None
        self._listener: Listener | None = None
        self._heard = False

    def run(self, stop: threading.Event, *, done: Callable[[], bool] = lambda: False) -> None:
        """Until told to stop, until all is done, or until an error that retrying does not fix."""
        try:
            while not stop.is_set() and not done():
                waits = [self._step(reader, course) for reader, course in self._courses]
                if not done() and all(waits):
                    self._wait([step for step in waits if step is not None], stop)
            for reader, _ in self._courses:
                reader.finish()
        finally:
            for reader, _ in self._courses:
                reader.leave()
            self._disconnect()

    def _step(self, reader: Reader, course: Course) -> Action | None:
        """Do what comes next for one reader, unless that is to wait."""
        step = course.next(self._clock())
        if step.do in (Do.WAIT, Do.PAUSE):
            return step
        try:
            if step.do is Do.CONNECT:
                self._connect()
                return None
            assert self._connection is not None
            # Read while it is busy, too: announcements must not pile up, and a lease that is lost must be seen.
            self._hear()
            if step.do is Do.OPEN:
                self._open(reader, course)
            else:
                course.turning()
                turn = reader.turn()
                course.turned(turn, self._clock())
        # Whatever it is: what it means is for the reader to say.
        except Exception as error:
            self._failed(reader, course, error)
        return None

    def _open(self, reader: Reader, course: Course) -> None:
        assert self._connection is not None
        if reader.open(self._connection):
            course.opened()
        else:
            course.stands_by(self._clock())

    def _failed(self, reader: Reader, course: Course, error: Exception) -> None:
        reader.leave()
        failure = reader.failed(error)
        if failure is Failure.FATAL:
            raise error
        course.failed(failure, self._clock())
        if failure is Failure.YIELDED or (self._listener is not None and not self._listener.fit):
            self._disconnect()

    def _connect(self) -> None:
        self._disconnect()
        self._connection = self._database.connect_sync(name=self._name)
        self._listener = Listener(self._connection, self._note)
        if self._channels:
            self._connection.execute(listen_to(self._channels))
        for _, course in self._courses:
            course.connected()

    def _disconnect(self) -> None:
        """Every lease ends with the connection."""
        connection, self._connection, self._listener = self._connection, None, None
        for reader, course in self._courses:
            if course.is_open:
                reader.leave()
            course.disconnected()
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def _note(self, _: psycopg.Notify) -> None:
        self._heard = True

    def _hear(self, seconds: float = 0.0) -> bool:
        """Hear what has arrived, or arrives in this time; whether there was something. Raises psycopg.Error."""
        assert self._listener is not None
        self._listener.read()
        if seconds and not self._heard:
            self._listener.wait(seconds)
        heard, self._heard = self._heard, False
        if heard:
            for _, course in self._courses:
                course.heard()
        return heard

    def _wait(self, steps: Sequence[Action], stop: threading.Event) -> None:
        """Until something is announced to a reader that waits for it, or the next is due."""
        waiting = any(step.do is Do.WAIT for step in steps)
        until = self._clock() + min(step.seconds for step in steps)
        while (left_s := min(_STOP_S, until - self._clock())) > 0 and not stop.is_set():
            if self._listener is None:
                self._pause(stop, left_s)
                continue
            try:
                if self._hear(left_s) and waiting:
                    return
            except psycopg.Error as error:
                for reader, course in self._courses:
                    self._failed(reader, course, error)
                self._disconnect()
                return


async def nothing() -> Turn:
    """The turn of a loop that only listens, for another that works over connections of its own."""
    return IDLE


class AsyncReaderLoop:
    """Runs one reader on the event loop, until it is cancelled: nothing else ends it.

    With a `database` there is a connection that listens, given to `opened`; the turn may use it. Without, it is woken
    by `wake` alone.
    """

    def __init__(
        self,
        turn: Callable[[], Awaitable[Turn]],
        *,
        what: str,
        poll_s: float,
        database: Database | None = None,
        name: str = "",
        channels: Sequence[str] = (),
        opened: Callable[[AsyncConnection], Awaitable[None]] | None = None,
        heard: Callable[[psycopg.Notify], bool] = lambda _: True,
        failed: Callable[[Exception], object] | None = None,
        wanted: Callable[[], bool] = lambda: True,
        rest: Callable[[], Awaitable[None]] | None = None,
        gather_s: float = 0.0,
        pause_max_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`what` are held up when it fails, for the log. `heard` says whether an announcement asks for a turn.

        While it is not `wanted` it holds no connection and takes no turn, and `rest` is told when that begins.
        `gather_s`: how long it waits for more before each turn.
        """
        self._turn = turn
        self._what = what
        self._database = database
        self._name = name
        self._channels = channels
        self._opened = opened
        self._on_heard = heard
        self._on_failed = failed
        self._wanted = wanted
        self._rest = rest
        self._gather_s = gather_s
        self._clock = clock
        self._sleep = sleep
        self._course = Course(poll_s=poll_s, pause_max_s=pause_max_s, connected=database is None)
        self._woken = asyncio.Event()
        self._connection: AsyncConnection | None = None
        self._listener: Listener | None = None
        #: what the connection was lost by, while it was only listened to
        self._lost: psycopg.Error | None = None

    def wake(self) -> None:
        """There is something to do, or it is wanted again."""
        self._course.heard()
        self._woken.set()

    async def run(self) -> None:
        try:
            while True:
                await self._while_wanted()
                await self._step()
        finally:
            await self._disconnect()

    async def _while_wanted(self) -> None:
        if self._wanted():
            return
        await self._disconnect()
        if self._rest is not None:
            try:
                await self._rest()
            except Exception as error:
                await self._failed(error)
        while not self._wanted():
            self._woken.clear()
            await self._woken.wait()

    async def _step(self) -> None:
        step = self._course.next(self._clock())
        try:
            match step.do:
                case Do.PAUSE:
                    await self._sleep(step.seconds)
                case Do.WAIT:
                    await self._wait(step.seconds)
                case Do.CONNECT:
                    await self._connect()
                case Do.OPEN:
                    if self._opened is not None and self._connection is not None:
                        await self._opened(self._connection)
                    self._course.opened()
                case Do.TURN:
                    if self._gather_s:
                        await self._sleep(self._gather_s)
                    if self._listener is not None:
                        self._listener.read()
                    self._course.turning()
                    self._woken.clear()
                    turn = await self._turn()
                    self._course.turned(turn, self._clock())
        except Exception as error:
            # psycopg, cancelled in a statement, waits for the statement's end: a connection that is lost meanwhile
            # raises its own error in place of the cancellation.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError from error
            await self._failed(error)

    async def _failed(self, error: Exception) -> None:
        """Nothing may end it: those it works for would wait for ever."""
        failure = failure_of(error)
        if failure is Failure.FATAL:
            failure = Failure.DEFECT
        self._course.failed(failure, self._clock())
        if failure is Failure.DEFECT or (failure is Failure.AWAY and self._course.failures == 1):
            logger.warning("%s are delayed: %s", self._what, in_words(error), exc_info=failure is Failure.DEFECT)
        if self._database is not None and (self._listener is None or not self._listener.fit):
            await self._disconnect()
        if self._on_failed is not None:
            self._on_failed(error)

    async def _connect(self) -> None:
        assert self._database is not None
        await self._disconnect()
        self._connection = await self._database.connect(name=self._name)
        self._listener = Listener(self._connection, self._note)
        if self._channels:
            await self._connection.execute(listen_to(self._channels))
        self._course.connected()

    async def _disconnect(self) -> None:
        connection, self._connection, self._listener = self._connection, None, None
        if self._database is not None:
            self._course.disconnected()
        if connection is not None:
            with suppress(psycopg.Error):
                await connection.close()

    def _note(self, notification: psycopg.Notify) -> None:
        if self._on_heard(notification):
            self.wake()

    async def _wait(self, seconds: float) -> None:
        """Until it is woken, or something is announced. The connection is nobody else's meanwhile."""
        listener, loop = self._listener, asyncio.get_running_loop()
        if listener is not None:
            # What came with the answer to the last statement.
            listener.read()
            loop.add_reader(listener.fileno, self._readable, listener)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
        finally:
            if listener is not None:
                loop.remove_reader(listener.fileno)
        if (lost := self._lost) is not None:
            self._lost = None
            raise lost

    def _readable(self, listener: Listener) -> None:
        try:
            listener.read()
        except psycopg.Error as error:
            self._lost = error
            self._woken.set()
